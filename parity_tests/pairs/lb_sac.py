"""LB-SAC on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Facts, Mistake, Pair
from parity_tests.pairs import ensemble
from parity_tests.pairs.ensemble import FLOAT32, FLOAT64, LOSSES, OTHER, SMALL, outputs
from shared.data.transitions import extract_transitions

PAIR = Pair(
    name="lb_sac",
    title="LB-SAC",
    family=Family.UNCERTAINTY,
    use="SAC-N in fewer but larger updates, for a GPU.",
    paper="Nikulin et al. 2022",
    url="https://arxiv.org/abs/2211.11092",
    benchmark_updates=2,
    outputs=outputs,
    corners=("bounded std",),
    losses=LOSSES,
    variants={
        "default": SMALL,
        # One of the two flags alone: they must not be mistaken for each other.
        "other": OTHER | {"edac_init": True},
        "layer norm": SMALL | {"critic_layernorm": True, "edac_init": True},
    },
    # A tenth of the default batch: the updates that warm it up would take minutes. And heads that start small. With
    # PyTorch's own heads the actions of the made-up rows lie very near their bounds. There float32 has no digits left
    # for the policy's gradient, which is 5e-3 apart (float64: 1e-11).
    full_size={"batch_size": 1000, "edac_init": True},
    # States are never normalised.
    load=extract_transitions,
    float32=FLOAT32,
    float64=FLOAT64,
    facts=Facts(rewarded="critic_loss"),
)

MISTAKES = [
    *ensemble.MISTAKES,
    Mistake("sum over the ensemble", "square(q - target).mean()", "square(q - target).mean(axis=1).sum()", "loss"),
    Mistake("targets broadcast to (B, B)", "square(q - target).mean()", "square(q[:, :, None] - target).mean()",
            "loss"),
    Mistake("LayerNorm's epsilon", "epsilon=1e-5", "epsilon=1e-6", "forward", "layer norm"),
    Mistake("layer norm over the batch", "nn.LayerNorm, epsilon=1e-5", "nn.LayerNorm, reduction_axes=-2, epsilon=1e-5",
            "forward", "layer norm"),
    Mistake("noise of a chunk's updates alike", "return draw_noise(key, step, hp,",
            "return draw_noise(key, start + (step - start) // CHUNK * CHUNK, hp,", "shipped path"),
    Mistake("every chunk's noise alike", "return draw_noise(key, step, hp,",
            "return draw_noise(key, start + (step - start) % CHUNK, hp,", "shipped path"),
    Mistake("every update from the first row", "return state.update(take(dataset, indices), noise)",
            "return state.update(take(dataset, 0 * indices), noise)", "shipped path"),
]  # fmt: skip
