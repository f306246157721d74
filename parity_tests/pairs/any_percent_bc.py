"""Behaviour cloning on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Loss, Mistake, Pair
from parity_tests.pairs import crops

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

MISTAKES = [
    Mistake("tanh forgotten", "            nn.tanh,\n", "", "forward"),
    Mistake("an activation forgotten", "            Linear(256),\n            nn.relu,\n            Linear(256),\n",
            "            Linear(256),\n            lambda x: x,\n            Linear(256),\n", "forward"),
    Mistake("actions not scaled to their bound", "return self.max_action * self.net(", "return 0.5 * self.net(",
            "forward"),
    Mistake("sum over action dimensions", "square(actions - batch.actions).mean()",
            "square(actions - batch.actions).sum(-1).mean()", "loss"),
    Mistake("absolute distance", "square(actions - batch.actions).mean()",
            "jnp.abs(actions - batch.actions).mean()", "loss"),
    Mistake("next observations", "actions = actor(batch.observations)", "actions = actor(batch.next_observations)",
            "loss"),
    Mistake("weighted by reward", "square(actions - batch.actions).mean()",
            "(square(actions - batch.actions).mean(-1) * batch.rewards).mean()", "loss"),
    Mistake("another learning rate", "optax.adam(3e-4)", "optax.adam(1e-3)", "update"),
    Mistake("Adam's epsilon", "optax.adam(3e-4)", "optax.adam(3e-4, eps=1e-5)", "update"),
    Mistake("moments not kept", 'f"{part}_optimizer": moments})', 'f"{part}_optimizer": ADAM.init(gradient)})',
            "update"),
    Mistake("every update from the first batch", "return state.update(take(dataset, indices), noise)",
            "return state.update(take(dataset, draws[0][0]), noise)", "shipped path"),
    Mistake("same batch at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("rows beyond the data", "(hp.batch_size,), 0, dataset_size)",
            "(hp.batch_size,), dataset_size, 2 * dataset_size)", "draws"),
    Mistake("images as they are", "if noise.crops is not None:", "if False:", "update", "images"),
    Mistake("one crop for the whole batch", "batch.observations, noise.crops,",
            "batch.observations, noise.crops[:1] + 0 * noise.crops,", "update", "images"),
    Mistake("rows and columns exchanged", "batch.observations, noise.crops,",
            "batch.observations, noise.crops[:, ::-1],", "update", "images"),
    Mistake("images that only move one way", "noise.crops, self.hp.crop_padding)", "noise.crops, 0)", "update",
            "images"),
    *crops.DRAWN,
]  # fmt: skip
