"""AWAC on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair

SMALL = {"hidden_dim": 64}


class Adapter(Pair):
    """This pair's overrides."""

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "mean": twin.actor(batch.observations)[0],
            "std": twin.actor(batch.observations)[1],
            "critic_1": twin.critic_1(batch.observations, batch.actions),
            "critic_2": twin.critic_2(batch.observations, batch.actions),
        }


PAIR = Adapter(
    name="awac",
    title="AWAC",
    family=Family.WEIGHTED,
    use="You have little data and will continue in the environment.",
    paper="Nair et al. 2020",
    url="https://arxiv.org/abs/2006.09359",
    benchmark_updates=50,
    variants={
        "default": SMALL,
        # With such a low temperature, weights reach their cap; with such a large rate, the deviations move.
        "sharp": SMALL | {"advantage_temperature": 0.01, "discount": 0.9, "tau": 0.1, "learning_rate": 3e-3},
    },
)
