"""Behaviour cloning on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Loss, Pair

PAIR = Pair(
    name="any_percent_bc",
    title="BC, the best trajectories or all",
    family=Family.IMITATION,
    use="A baseline for all others: it copies the data's actions, or those of the best episodes.",
    paper="Pomerleau 1991; Chen et al. 2021",
    url="https://arxiv.org/abs/2106.01345",
    benchmark_updates=1000,
    outputs=lambda twin, batch: {"actor": twin.actor(batch.observations)},
    losses={"actor_loss": Loss(of=("actor",), inputs=("batch",))},
    variants={"default": {}, "images": {"encoder": "minatar", "frame_stack": 2, "crop_padding": 2}},
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]),),
)
