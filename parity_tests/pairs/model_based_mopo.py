"""MOPO on the ladder: updates on two buffers, and roll-outs of a small model that is made up."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.errors import errors
from parity_tests.families import Family
from parity_tests.interpreter import interpreted
from parity_tests.pair import Facts, Loss, Mistake, Pair
from shared.data.dynamics import Draws, ModelSizes, extract_known
from shared.data.transitions import Batch
from shared.frameworks import jax_data, jax_online, torch_online
from shared.frameworks.exchange import blank_state, to_jax
from shared.frameworks.twins import load_twin

# Of a run of the dynamics pair in Hopper, in both frameworks' files
MODEL = Path(__file__).parent / "policies" / "hopper_model"
SMALL: dict[str, Any] = {"hidden_dims": (48, 40), "rollout_batch_size": 30, "rollout_length": 3, "rollout_freq": 4} | {
    "model_retain_epochs": 2,
    "real_ratio": 0.3,
    "dynamics": str(MODEL),
}
# Synthetic rows, and the capacity of their ring
SEEN, CAPACITY = 50, 60
# Of the made-up model
SIZES = ModelSizes(11, 3, 3, 2)
# Roll-outs on the ladder, each of as many rows
ROLLOUTS, ROWS = 3, 20


def load(raw: dict[str, np.ndarray]) -> Batch:
    """Transitions whose next state is known, as they are."""
    return extract_known(raw, "hopper")


class Tensors(NamedTuple):
    """What the PyTorch twin's batches are taken from."""

    rows: Batch
    ring: Batch


def synthetic(dataset: Batch) -> Batch:
    """Rows that no dataset holds, as NumPy's arrays."""
    rng = np.random.default_rng(6)
    columns = (column[:SEEN] + rng.normal(size=column[:SEEN].shape) for column in map(np.asarray, dataset))
    return Batch(*columns)._replace(terminals=(rng.random(SEEN) < 0.3).astype(float))


def ready(twin: Any, dataset: Any, config: Any) -> Any:
    """The dataset with a ring of synthetic rows beside it, which is not yet full."""
    if isinstance(dataset, Batch):
        ring = torch_online.Ring(dataset, CAPACITY, keeps_dataset=False)
        ring.extend(Batch(*(torch.as_tensor(c).to(d) for c, d in zip(synthetic(dataset), dataset, strict=True))))
        return Tensors(dataset, ring.rows)
    columns = Batch(
        *(jnp.asarray(column)[None] for column in synthetic(jax_data.take(dataset, jnp.arange(len(dataset)))))
    )
    empty = jax_online.Ring.create(dataset, CAPACITY, keeps_dataset=False)
    return jax_online.Sources(dataset, jax_online.push_kept(empty, columns, jnp.ones((1, SEEN), bool)))


def take(twin: Any, sources: Any, indices: Any, config: Any) -> Batch:
    """A batch of both, the dataset's rows first."""
    size = len(sources.rows.rewards if isinstance(sources.rows, Batch) else sources.rows)
    return twin.take_both(sources.rows, sources.ring, indices, int((indices < size).sum()))


def terminated(states: Any) -> Any:
    """An end that some states of every kind of data have."""
    return (7.0 * states[..., 3] + states[..., 5]) % 1.0 < 0.3


@cache
def models(dtype: torch.dtype) -> tuple[Any, Any]:
    """The same fresh model in PyTorch and in JAX, with scaled inputs and elites in an order of their own."""
    twins = [load_twin(side, "model_based/dynamics") for side in ("torch", "jax")]
    settings: dict[str, Any] = {"dynamics_hidden_dims": (16,), "dynamics_weight_decay": (1e-4, 1e-4), "device": "cpu"}
    configs = [twin.TrainConfig(n_ensemble=SIZES.n_ensemble, n_elites=SIZES.n_elites, **settings) for twin in twins]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        trainer = twins[0].create_trainer(configs[0], SIZES.state_dim, SIZES.action_dim, 1.0)
    trainer.best_loss.copy_(torch.tensor([2.0, 3.0, 1.0]))
    trainer.std.fill_(3.0)
    # Asked for in the middle of a trace, too
    with jax.ensure_compile_time_eval():
        state = to_jax(trainer, blank_state(twins[1], configs[1], SIZES.state_dim, SIZES.action_dim))
        return trainer.model(terminated), state.model(terminated)


def drawn(seed: int, length: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What all steps of roll-outs draw."""
    rng = np.random.default_rng(seed)
    normals = rng.normal(size=(length, SIZES.n_ensemble, rows, SIZES.state_dim + 1))
    return rng.normal(size=(length, rows, SIZES.action_dim)), normals, rng.integers(SIZES.n_elites, size=(length, rows))


def rolled_out(twin: Any, batch: Batch) -> dict[str, Any]:
    """What several roll-outs leave in a ring that wraps round, and where it stands."""
    length, starts = twin.hp.rollout_length, batch.observations[:ROWS]
    capacity, width = ROWS * length, SIZES.state_dim * 2 + SIZES.action_dim + 2
    if isinstance(starts, torch.Tensor):
        return _torch_rolled_out(twin, batch, starts, length, capacity)
    blank = jax_data.PackedDataset(jnp.zeros((1, width), starts.dtype), Batch, _shapes(), (False,) * 5, {})
    ring = jax_online.Ring.create(blank, capacity, keeps_dataset=False)
    model = models(torch.float64 if starts.dtype == jnp.float64 else torch.float32)[1]
    for number in range(ROLLOUTS):
        noise, normals, chosen = (jnp.asarray(column) for column in drawn(number, length, len(starts)))
        noise, normals = noise.astype(starts.dtype), normals.astype(starts.dtype)

        def draw(step: Any, noise: Any = noise, normals: Any = normals, chosen: Any = chosen) -> Any:
            return _Drawn(noise[step], Draws(normals[step], chosen[step]))

        ring = jax_online.push_kept(ring, *twin.roll_out(model, starts + 0.1 * number, draw))
    return {"rows": ring.rows, "size": ring.size, "pointer": ring.pointer}


class _Drawn(NamedTuple):
    """As a twin's `StepDraws`."""

    actor: Any
    model: Draws


def _shapes() -> tuple[tuple[int, ...], ...]:
    return (SIZES.state_dim,), (SIZES.action_dim,), (), (SIZES.state_dim,), ()


def _torch_rolled_out(twin: Any, batch: Batch, starts: torch.Tensor, length: int, capacity: int) -> dict[str, Any]:
    ring = torch_online.Ring(batch, capacity, keeps_dataset=False)
    model = models(starts.dtype)[0]
    for number in range(ROLLOUTS):
        noise, normals, chosen = (torch.as_tensor(column) for column in drawn(number, length, len(starts)))

        def draw(step: int, rows: Any, noise: Any = noise, normals: Any = normals, chosen: Any = chosen) -> Any:
            return _Drawn(noise[step, rows].to(starts), Draws(normals[step][:, rows].to(starts), chosen[step, rows]))

        ring.extend(twin.roll_out(model, starts + 0.1 * number, draw))
    columns = [column.flatten(1) if column.ndim > 1 else column[:, None] for column in ring.rows]
    return {"rows": torch.cat(columns, dim=1), "size": ring.size, "pointer": ring.content()["pointer"]}


def in_parts(twin: Any, state: Any, model: Any, rows: Any, ring: Any, key: Any, step: Any) -> tuple[Any, Any]:
    """What `imagine` of the JAX twin makes of the same, by the functions that it is made of."""
    hp = state.hp
    start_key, steps_key = jax.random.split(jax.random.fold_in(key, step))

    def draw(number: Any) -> Any:
        return twin.draw_step(jax.random.fold_in(steps_key, number), hp, hp.rollout_batch_size, SIZES)

    starts = jax_data.take(rows, twin.draw_starts(start_key, hp, len(rows)).indices).observations
    columns, kept = state.roll_out(model, starts, draw)
    flags, numbers = kept[..., None], abs(jnp.append(columns.next_observations, columns.rewards[..., None], axis=-1))
    logged = {
        "rollout_transitions": 1.0 * kept.sum(),
        "rollout_reward": (kept * columns.rewards).sum() / kept.sum(),
        "rollout_largest": (flags * numbers).max(),
    }
    return jax_online.push_kept(ring, columns, kept), logged


def shipped(scene: Any) -> dict[str, float]:
    """The compiled roll-outs against their parts, after no update and after some, in a ring that comes round."""
    twin, hp, rows = scene.jax_twin, scene.hp, scene.jax_dataset.rows
    # Of few rows each is drawn soon, and none beyond them.
    starts = {int(row) for seed in range(20) for row in twin.draw_starts(jax.random.key(seed), hp, 20).indices}
    found = {"first states": float(starts != set(range(20)))}
    model, number = models(torch.get_default_dtype())[1], hp.rollout_batch_size * hp.rollout_length
    ring = jax_online.Ring.create(rows, number + 10, keeps_dataset=False)
    # Once a state is the largest number, and once a reward below 0, of which much is taken off
    for step, penalty_coef in ((0, hp.penalty_coef), (8, 1000.0)):
        state = scene.state().replace(hp=replace(hp, penalty_coef=penalty_coef))
        given = state, model, rows, ring, jax.random.key(4), step
        expected, figures = interpreted(partial(in_parts, twin))(*given)
        ring, logged = scene.run(twin.imagine, *jax.tree.map(jnp.copy, given), sizes=SIZES)
        found |= {f"roll-outs at {step}: {name}": error for name, error in errors(logged, figures).items()}
        ours, theirs = (
            {name: getattr(side, name) for name in ("rows", "size", "pointer")} for side in (ring, expected)
        )
        found |= {f"ring at {step}: {name}": error for name, error in errors(ours, theirs).items()}
    return found


def replays(patch: Any) -> None:
    """In a run of the JAX twin, where roll-outs begin and what they draw is what the PyTorch twin had before."""
    ours, theirs = (load_twin(side, "model_based/mopo") for side in ("jax", "torch"))
    starts: list[Any] = []
    steps: list[dict[int, tuple[np.ndarray, Any]]] = []
    draw_starts, roll_out, replayed = theirs.draw_starts, theirs.MOPO.roll_out, ours.MOPO.roll_out

    def record_starts(hp: Any, size: int) -> Any:
        starts.append(draw_starts(hp, size))
        return starts[-1]

    def record(self: Any, model: Any, observations: Any, draw: Any) -> Any:
        steps.append({})

        def drawing(number: int, rows: Any) -> Any:
            steps[-1][number] = rows.numpy(), draw(number, rows)
            return steps[-1][number][1]

        return roll_out(self, model, observations, drawing)

    def replay(self: Any, model: Any, observations: Any, draw: Any) -> Any:
        found, rows, length = steps.pop(0), len(observations), self.hp.rollout_length
        noise = np.zeros((length, rows, SIZES.action_dim))
        normals, chosen = np.zeros((length, SIZES.n_ensemble, rows, SIZES.state_dim + 1)), np.zeros((length, rows), int)
        for number, (alive, draws) in found.items():
            noise[number, alive], chosen[number, alive] = draws.actor, draws.model.chosen
            normals[number][:, alive] = draws.model.normals
        given = jax.tree.map(jnp.asarray, _Drawn(noise, Draws(normals, chosen)))
        return replayed(self, model, observations, lambda number: jax.tree.map(lambda column: column[number], given))

    patch.setattr(theirs, "draw_starts", record_starts)
    patch.setattr(theirs.MOPO, "roll_out", record)
    patch.setattr(ours, "draw_starts", lambda *args: ours.Starts(jnp.asarray(starts.pop(0).indices.numpy())))
    patch.setattr(ours.MOPO, "roll_out", replay)
    # Traced anew each time, so that each roll-out has its own draws
    patch.setattr(ours, "imagine", ours.imagine.__wrapped__)


def corner(trainer: Any) -> None:
    """A temperature beyond its bound, where it has no target of its own that brings it below."""
    if trainer.hp.target_entropy is None:
        trainer.log_alpha.constant.data.fill_(0.5)


def prepared(twin: Any) -> dict[str, Any]:
    """The shares of batches, which draws are too few to tell."""
    of = {
        (size, ratio): twin.TrainConfig(batch_size=size, real_ratio=ratio) for size in (7, 256) for ratio in (0.05, 0.3)
    }
    return {f"shares of {size} by {ratio}": np.asarray(twin.shares(config)) for (size, ratio), config in of.items()}


PAIR = Pair(
    name="model_based/mopo",
    title="MOPO",
    family=Family.MODEL,
    use="Soft actor-critic on a model's roll-outs: it may leave the data where the model is sure.",
    paper="Yu et al. 2020",
    url="https://arxiv.org/abs/2005.13239",
    benchmark_updates=100,
    outputs=lambda twin, batch: {
        "mean": twin.actor(batch.observations)[0],
        "std": twin.actor(batch.observations)[1],
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    },
    predicted=rolled_out,
    losses={
        "critic_loss": Loss(of=("critic_1", "critic_2")),
        "actor_loss": Loss(of=("actor",)),
        "alpha_loss": Loss(of=("log_alpha",), inputs=("log_prob",), used=lambda config: config.auto_alpha),
    },
    variants={
        "default": SMALL,
        "other": SMALL
        | {"discount": 0.9, "tau": 0.1, "actor_lr": 1e-2, "critic_lr": 3e-3, "alpha_lr": 1e-1, "target_entropy": -20.0}
        | {"real_ratio": 0.8, "rollout_length": 4, "penalty_coef": 0.0, "max_timesteps": 40, "num_updates_on_epoch": 8},
        "fixed temperature": SMALL
        | {
            "auto_alpha": False,
            "alpha": 0.7,
            "uncertainty_mode": "ensemble_std",
            "real_ratio": 0.5,
            "rollout_length": 1,
        },
    },
    corner=corner,
    extra_inputs=lambda rng, size: {"log_prob": rng.normal(size=size)},
    draw_inputs=lambda dataset, action_dim: (len(dataset[0]), SEEN, action_dim),
    further_rows=SEEN,
    drawn_once=("draw_starts", "draw_step"),
    drawn_with={"draw_step": (SIZES,)},
    replays=replays,
    shipped=shipped,
    take=take,
    ready=ready,
    load=load,
    prepared=prepared,
    gathers=2,
    full_size={"dynamics": str(MODEL)},
    # As of SAC-N: near an action's bound 1 - tanh(u)^2 has lost most of its digits, in each framework others. A loss
    # differs by up to 3e-11, after a step by 7e-10, a moment by 4e-10, a gradient by 1.2e-9. In single precision a last
    # bias, which is near 0, differs by 3e-4.
    float64={"loss": 1e-10, "gradient": 5e-9, "update": 2e-9, "log": 2e-9, "shipped path": 1e-8},
    float32={"update": 1e-3, "shipped path": 1e-3},
    facts=Facts(rewarded="critic_loss"),
)

ROLLED = "return (step.next_observations, alive & ~step.terminals), (batch, alive)"
MISTAKES = [
    Mistake("log-deviation bounded by -20", "clamp(self.sigma(hidden), -5.0, 2.0)",
            "clamp(self.sigma(hidden), -20.0, 2.0)", "forward"),
    Mistake("bound of actions outside the logarithm",
            "log(actor.module.max_action * (1.0 - square(squashed)) + 1e-6)",
            "log(1.0 - square(squashed) + 1e-6)", "loss"),
    Mistake("no tanh correction", "    log_prob = log_prob - log(actor.module.max_action * (1.0 - square(squashed)) + "
            "1e-6).sum(axis=-1)\n", "", "loss"),
    Mistake("inverted done flag", "(1.0 - batch.terminals)", "batch.terminals", "loss", breaks="terminals_are_masked"),
    Mistake("no entropy in the target", "(next_q - self.alpha() * log_prob)", "next_q", "loss"),
    Mistake("online critics in the target", "self.critic_1_target, self.critic_2_target\n",
            "self.critic_1, self.critic_2\n", "loss"),
    Mistake("targets broadcast to (B, B)", "square(q1 - target).mean()", "square(q1[:, None] - target).mean()", "loss"),
    Mistake("temperature not clamped", "return clamp(exp(self.log_alpha), 0.0, 1.0)", "return exp(self.log_alpha)",
            "loss"),
    Mistake("target entropy of 0", "self.hp.target_entropy or -self.actor.module.action_dim",
            "self.hp.target_entropy or 0.0", "loss"),
    Mistake("policy on the old critics", "value_and_grad(state.actor_loss,", "value_and_grad(self.actor_loss,",
            "update"),
    Mistake("policy on the mean of the critics", "q = minimum(critic_1(batch.observations, actions), "
            "critic_2(batch.observations, actions))", "q = (critic_1(batch.observations, actions) + "
            "critic_2(batch.observations, actions)) / 2.0", "loss"),
    Mistake("cosine per update", "done = updates // hp.num_updates_on_epoch * hp.num_updates_on_epoch",
            "done = updates", "update", "other"),
    Mistake("cosine over epochs of one update", "math.pi * done / hp.max_timesteps",
            "math.pi * (done // hp.num_updates_on_epoch) / hp.max_timesteps", "update", "other"),
    Mistake("cosine for the critics too", '"critic_1": hp.critic_lr, "critic_2": hp.critic_lr}',
            '"critic_1": partial(actor_lr, hp), "critic_2": partial(actor_lr, hp)}', "update", "other"),
    Mistake("temperature learns by the critics' rate", "rates.get(part, hp.alpha_lr)", "rates.get(part, hp.critic_lr)",
            "update", "other"),
    Mistake("fixed temperature tuned", "        if hp.auto_alpha:\n", "        if True:\n", "update",
            "fixed temperature"),
    Mistake("targets from the old critics", "soft_update(state.critic_1_target, state.critic_1, hp.tau)",
            "soft_update(state.critic_1_target, self.critic_1, hp.tau)", "update"),
    Mistake("one target not moved",
            "            critic_2_target=soft_update(state.critic_2_target, state.critic_2, hp.tau),\n", "", "update",
            breaks="targets_move_once_when_due"),
    Mistake("Polyak the wrong way round", "old * (1.0 - tau) + new * tau", "old * tau + new * (1.0 - tau)", "update"),
    Mistake("temperature logged before its step", '"alpha": state.alpha()}', '"alpha": self.alpha()}', "log", "other"),
    Mistake("real and synthetic shares swapped", "return real, hp.batch_size - real",
            "return hp.batch_size - real, real", "draws"),
    Mistake("real share rounded up", "int(hp.batch_size * hp.real_ratio)", "math.ceil(hp.batch_size * hp.real_ratio)",
            "rewards"),
    Mistake("synthetic rows beyond what is stored", "(synthetic,), 0, synthetic_size)",
            "(synthetic,), 0, synthetic_size + 10)", "draws"),
    Mistake("both buffers drawn from with one key", "jax.random.randint(keys[1], (synthetic,)",
            "jax.random.randint(keys[0], (synthetic,)", "draws"),
    Mistake("batches of the dataset alone", "take_both(dataset.rows, dataset.ring, indices, shares(hp)[0])",
            "take(dataset.rows, indices % len(dataset.rows))", "shipped path"),
    Mistake("same noise at every update", "jax.random.split(jax.random.fold_in(key, step), 4)",
            "jax.random.split(jax.random.fold_in(key, 0 * step), 4)", "draws"),
    Mistake("elites of all members", "(rows,), 0, sizes.n_elites)", "(rows,), 0, sizes.n_ensemble)", "draws"),
    Mistake("one draw for policy and model", "jax.random.normal(normals_key,", "jax.random.normal(actor_key,", "draws"),
    Mistake("roll-outs from the first rows alone", "(hp.rollout_batch_size,), 0, dataset_size)",
            "(hp.rollout_batch_size,), 0, dataset_size // 2)", "draws"),
    Mistake("termination ignored", ROLLED, ROLLED.replace("alive & ~step.terminals", "alive"), "act"),
    Mistake("an end forgotten a step later", ROLLED, ROLLED.replace("alive & ~step.terminals", "~step.terminals"),
            "act"),
    Mistake("the last row of an episode left out", ROLLED, ROLLED.replace("(batch, alive)",
            "(batch, alive & ~step.terminals)"), "act"),
    Mistake("roll-outs go on from where they began", ROLLED, ROLLED.replace("(step.next_observations,",
            "(observations,"), "act"),
    Mistake("penalty added", "model.step(observations, actions, draws.model, hp.penalty_coef,",
            "model.step(observations, actions, draws.model, -hp.penalty_coef,", "act"),
    Mistake("penalty taken off twice", "Batch(observations, actions, step.rewards, step.next_observations, terminals)",
            "Batch(observations, actions, step.rewards - hp.penalty_coef * step.penalties, step.next_observations, "
            "terminals)", "act"),
    Mistake("rewards without a penalty", "Batch(observations, actions, step.rewards,",
            "Batch(observations, actions, step.raw_rewards,", "act"),
    Mistake("the same roll-outs at every time", "jax.random.split(jax.random.fold_in(key, step))",
            "jax.random.split(jax.random.fold_in(key, 0 * step))", "shipped path"),
    Mistake("one key for all steps of a roll-out", "jax.random.fold_in(steps_key, number)", "steps_key",
            "shipped path"),
    Mistake("ended roll-outs stored too", "push_kept(ring, found, kept)", "push_kept(ring, found, jnp.ones_like(kept))",
            "shipped path"),
    Mistake("ring cleared at each time", "ring = push_kept(ring,",
            "ring = push_kept(ring.replace(size=0 * ring.size, pointer=0 * ring.pointer),", "shipped path"),
    Mistake("one draw for all steps", "draws = draw(number)", "draws = draw(0 * number)", "act"),
    Mistake("the mean action in roll-outs", "actions, _ = sample(self.actor, observations, draws.actor)",
            "actions, _ = sample(self.actor, observations, 0.0 * draws.actor)", "act"),
]  # fmt: skip
