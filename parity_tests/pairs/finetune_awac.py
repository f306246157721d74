"""AWAC, offline to online, on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Facts, Pair, unlikelihood
from parity_tests.pairs import awac
from parity_tests.pairs.finetune_iql import FILLED

PAIR = Pair(
    name="finetune/awac",
    title="AWAC, offline to online",
    family=Family.FINETUNING,
    use="Few settings, and a policy that forgets little at the switch.",
    paper="Nair et al. 2020",
    url="https://arxiv.org/abs/2006.09359",
    benchmark_updates=150,
    outputs=awac.PAIR.outputs,
    losses=awac.PAIR.losses,
    variants=awac.PAIR.variants,
    draw_inputs=lambda dataset, action_dim: (FILLED, action_dim),
    interval_statics=lambda config, start, num_updates: {"size": FILLED},
    explores=True,
    facts=Facts(rewarded="critic_loss", imitation=unlikelihood, sharp={"awac_lambda": 0.01}),
)
