"""CQL of finite actions on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Pair, load_choices
from parity_tests.pairs import quantiles

SMALL = {"hidden_dims": (64, 48), "target_update_interval": 2, "learning_rate": 1e-3}

PAIR = Pair(
    name="discrete/cql",
    title="CQL, finite actions",
    family=Family.FINITE,
    use="A first choice for mixed data: values of actions outside the data are held low.",
    paper="Kumar et al. 2020",
    url="https://arxiv.org/abs/2006.04779",
    benchmark_updates=2000,
    outputs=quantiles.outputs,
    corners=("acting",),
    losses={"critic_loss": Loss(of=("critics",))},
    variants={
        "default": SMALL,
        # The form of d3rlpy 2.8.1, with several critics
        "double": SMALL
        | {"double": True, "target_update_interval": 3, "n_critics": 3, "cql_alpha": 4.0}
        | {"discount": 0.9, "learning_rate": 3e-3, "adam_eps": 3e-4},
        **{name: SMALL | settings for name, settings in quantiles.VARIANTS.items()},
        "images": SMALL | quantiles.VARIANTS["images"] | {"crop_padding": 2},
        "ensemble": SMALL | {"n_critics": 2, "target_update_interval": 5, "cql_alpha": 0.3},
    },
    corner=quantiles.corner,
    load=load_choices,
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]),),
    update_statics=lambda config, step: {"copied": (step - 1) % config.target_update_interval == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.target_update_interval},
    records_on_cpu=False,
    facts=Facts(rewarded="critic_loss", rate=""),
)
