"""CQL of finite actions on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import FinitePair
from parity_tests.pairs import quantiles

SMALL = {"hidden_dims": (64, 48), "target_update_period": 2, "learning_rate": 1e-3}


class Adapter(FinitePair):
    """This pair's overrides."""

    corners = ("acting",)
    records_on_cpu = False

    outputs = staticmethod(quantiles.outputs)

    corner = staticmethod(quantiles.corner)

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"copied": (step - 1) % config.target_update_period == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.target_update_period}


PAIR = Adapter(
    name="discrete/cql",
    title="CQL, finite actions",
    family=Family.FINITE,
    use="A good first choice for mixed data: it keeps values of actions outside the data low.",
    paper="Kumar et al. 2020",
    url="https://arxiv.org/abs/2006.04779",
    benchmark_updates=500,
    variants={
        "default": SMALL,
        # The form of d3rlpy 2.8.1, with several critics
        "double": SMALL
        | {"double": True, "target_update_period": 3, "n_critics": 3, "cql_alpha": 4.0}
        | {"discount": 0.9, "learning_rate": 3e-3, "adam_eps": 3e-4},
        **{name: SMALL | settings for name, settings in quantiles.VARIANTS.items()},
        "images": SMALL | quantiles.VARIANTS["images"] | {"crop_padding": 2},
        "ensemble": SMALL | {"n_critics": 2, "target_update_period": 5, "cql_alpha": 0.3},
    },
)
