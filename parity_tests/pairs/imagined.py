"""Shared parts of the adapters for pairs that learn from a model's roll-outs: two buffers and a small made-up model."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.engine.interpreter import interpreted
from parity_tests.errors import errors
from parity_tests.pair import Pair
from shared.data.dynamics import Draws, ModelSizes, extract_known
from shared.data.transitions import Batch
from shared.frameworks import jax_data, jax_ring, torch_ring
from shared.frameworks.exchange import blank_state, to_jax
from shared.frameworks.twins import load_twin

# A checkpoint of a run of the dynamics pair in Hopper, in both frameworks' formats
MODEL = Path(__file__).parent / "policies" / "hopper_model"
# Settings for a run with this model
LEARNT = {"env": "mini/hopper-medium-replay", "dynamics": str(MODEL)}
# Synthetic rows, and the capacity of their ring
SEEN, CAPACITY = 50, 60
# The sizes of the made-up model
SIZES = ModelSizes(11, 3, 3, 2)
# Farther than any state of a dataset
FAR = 1000.0
# The number of roll-outs on the ladder, and of rows in each
ROLLOUTS, ROWS = 3, 20


def load(raw: dict[str, np.ndarray]) -> Batch:
    """Transitions with a known next state, unchanged."""
    return extract_known(raw, "d4rl/hopper-v2")


class Tensors(NamedTuple):
    """The sources of the PyTorch twin's batches."""

    rows: Batch
    ring: Batch


def synthetic(dataset: Batch) -> Batch:
    """Rows that are in no dataset, as NumPy arrays."""
    rng = np.random.default_rng(6)
    columns = (column[:SEEN] + rng.normal(size=column[:SEEN].shape) for column in map(np.asarray, dataset))
    return Batch(*columns)._replace(terminals=(rng.random(SEEN) < 0.3).astype(float))


def ready(twin: Any, dataset: Any, config: Any) -> Any:
    """The dataset and a ring of synthetic rows, which is not yet full."""
    if isinstance(dataset, Batch):
        ring = torch_ring.Ring(dataset, CAPACITY, keeps_dataset=False)
        on_host = Batch(*(column.cpu() for column in dataset))
        ring.extend(Batch(*(torch.as_tensor(c).to(d) for c, d in zip(synthetic(on_host), dataset, strict=True))))
        return Tensors(dataset, ring.rows)
    columns = Batch(
        *(jnp.asarray(column)[None] for column in synthetic(jax_data.take(dataset, jnp.arange(len(dataset)))))
    )
    empty = jax_ring.Ring.create(dataset, CAPACITY, keeps_dataset=False)
    return jax_ring.Sources(dataset, jax_ring.push_kept(empty, columns, jnp.ones((1, SEEN), bool)))


def take(twin: Any, sources: Any, indices: Any, config: Any) -> Batch:
    """A batch from both sources, with the dataset's rows first."""
    # For an update's batch their number is known. Counting them would make the host wait for the device.
    if len(indices) == config.batch_size:
        return twin.take_both(sources.rows, sources.ring, indices, twin.shares(config)[0])
    size = len(sources.rows.rewards if isinstance(sources.rows, Batch) else sources.rows)
    return twin.take_both(sources.rows, sources.ring, indices, int((indices < size).sum()))


def terminated(states: Any) -> Any:
    """A terminal condition that some states of every kind of data meet."""
    return (7.0 * states[..., 3] + states[..., 5]) % 1.0 < 0.3


@cache
def models(dtype: torch.dtype, sizes: ModelSizes = SIZES) -> tuple[Any, Any]:
    """The same fresh model in PyTorch and in JAX, with scaled inputs and elites in an order of their own."""
    twins = [load_twin(side, "model_based/dynamics") for side in ("torch", "jax")]
    settings: dict[str, Any] = {"hidden_dims": (16,), "dynamics_weight_decay": (1e-4, 1e-4), "device": "cpu"}
    configs = [twin.TrainConfig(n_ensemble=sizes.n_ensemble, n_elites=sizes.n_elites, **settings) for twin in twins]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        trainer = twins[0].create_trainer(configs[0], sizes.state_dim, sizes.action_dim, 1.0)
    trainer.best_loss.copy_(torch.arange(sizes.n_ensemble).roll(-1))
    trainer.std.fill_(3.0)
    # This may be called during a trace, too
    with jax.ensure_compile_time_eval():
        state = to_jax(trainer, blank_state(twins[1], configs[1], sizes.state_dim, sizes.action_dim))
        return trainer.model(terminated), state.model(terminated)


def drawn(seed: int, length: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The draws of all steps of a roll-out."""
    rng = np.random.default_rng(seed)
    normals = rng.normal(size=(length, SIZES.n_ensemble, rows, SIZES.state_dim + 1))
    return rng.normal(size=(length, rows, SIZES.action_dim)), normals, rng.integers(SIZES.n_elites, size=(length, rows))


def rolled_out(twin: Any, batch: Batch) -> dict[str, Any]:
    """The contents of a ring that wraps around after several roll-outs, and its position."""
    length, starts = twin.hp.rollout_length, batch.observations[:ROWS]
    capacity, width = ROWS * length, SIZES.state_dim * 2 + SIZES.action_dim + 2
    if isinstance(starts, torch.Tensor):
        return _torch_rolled_out(twin, batch, starts, length, capacity)
    blank = jax_data.PackedDataset(jnp.zeros((1, width), starts.dtype), Batch, _shapes(), (False,) * 5, {})
    ring = jax_ring.Ring.create(blank, capacity, keeps_dataset=False)
    model = models(torch.float64 if starts.dtype == jnp.float64 else torch.float32)[1]
    for number in range(ROLLOUTS):
        noise, normals, chosen = (jnp.asarray(column) for column in drawn(number, length, len(starts)))
        noise, normals = noise.astype(starts.dtype), normals.astype(starts.dtype)

        def draw(step: Any, noise: Any = noise, normals: Any = normals, chosen: Any = chosen) -> Any:
            return _Drawn(noise[step], Draws(normals[step], chosen[step]))

        ring = jax_ring.push_kept(ring, *twin.roll_out(model, starts + 0.1 * number, draw))
    return {"rows": ring.rows, "size": ring.size, "pointer": ring.pointer}


class _Drawn(NamedTuple):
    """Stands in for a twin's `StepDraws`."""

    actor: Any
    model: Draws


def _shapes() -> tuple[tuple[int, ...], ...]:
    return (SIZES.state_dim,), (SIZES.action_dim,), (), (SIZES.state_dim,), ()


def _torch_rolled_out(twin: Any, batch: Batch, starts: torch.Tensor, length: int, capacity: int) -> dict[str, Any]:
    ring = torch_ring.Ring(batch, capacity, keeps_dataset=False)
    model = models(starts.dtype)[0]
    for number in range(ROLLOUTS):
        noise, normals, chosen = (torch.as_tensor(column) for column in drawn(number, length, len(starts)))

        def draw(step: int, rows: Any, noise: Any = noise, normals: Any = normals, chosen: Any = chosen) -> Any:
            return _Drawn(noise[step, rows].to(starts), Draws(normals[step][:, rows].to(starts), chosen[step, rows]))

        ring.extend(twin.roll_out(model, starts + 0.1 * number, draw))
    columns = [column.flatten(1) if column.ndim > 1 else column[:, None] for column in ring.rows]
    return {"rows": torch.cat(columns, dim=1), "size": ring.size, "pointer": ring.content()["pointer"]}


def in_parts(twin: Any, state: Any, model: Any, rows: Any, ring: Any, key: Any, step: Any) -> tuple[Any, Any]:
    """The result of the JAX twin's `imagine`, computed with the functions that it consists of."""
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
    return jax_ring.push_kept(ring, columns, kept), logged


class Shifted(NamedTuple):
    """A model of the JAX twin with `more` reward; states are far below 0 where an episode ends, then far above."""

    model: Any
    more: Any

    def step(self, observations: Any, *args: Any) -> Any:
        """A step of the model; states after the end of an episode exceed all others."""
        step = self.model.step(observations, *args)
        after = abs(observations).max(axis=-1, keepdims=True) > FAR / 2
        states = jnp.where(after, 10.0 * FAR, step.next_observations - FAR * step.terminals[..., None])
        return step._replace(rewards=step.rewards + self.more, next_observations=states)


def shipped(scene: Any) -> dict[str, float]:
    """Compares compiled roll-outs with their parts, before any update and after some, in a ring that wraps around."""
    twin, hp, rows = scene.jax_twin, scene.hp, scene.jax_dataset.rows
    # With few rows, each one is drawn soon, and no row beyond them.
    starts = {int(row) for seed in range(20) for row in twin.draw_starts(jax.random.key(seed), hp, 20).indices}
    found = {"first states": float(starts != set(range(20)))}
    model, number = models(torch.get_default_dtype())[1], hp.rollout_batch_size * hp.rollout_length
    ring = jax_ring.Ring.create(rows, number + 10, keeps_dataset=False)
    # In one case a state is the largest number, in the other a reward below 0; states of no transition are larger
    for step, more in ((0, 0.0), (8, -100.0 * FAR)):
        given = scene.state(), Shifted(model, jnp.asarray(more, dtype=float)), rows, ring, jax.random.key(4), step
        expected, figures = interpreted(partial(in_parts, twin))(*given)
        ring, logged = scene.run(twin.imagine, *jax.tree.map(jnp.copy, given), sizes=SIZES)
        found |= {f"roll-outs at {step}: {name}": error for name, error in errors(logged, figures).items()}
        ours, theirs = (
            {name: getattr(side, name) for name in ("rows", "size", "pointer")} for side in (ring, expected)
        )
        found |= {f"ring at {step}: {name}": error for name, error in errors(ours, theirs).items()}
    return found


def replays(name: str, trainer: str) -> Callable[[Any], None]:
    """Returns a patch that makes a JAX twin's run start and draw roll-outs as the PyTorch twin's run did."""
    return partial(_replays, name, trainer)


def _replays(name: str, trainer: str, patch: Any) -> None:
    ours, theirs = (load_twin(side, name) for side in ("jax", "torch"))
    classes = getattr(ours, trainer), getattr(theirs, trainer)
    starts: list[Any] = []
    steps: list[dict[int, tuple[np.ndarray, Any]]] = []
    draw_starts, roll_out, replayed = theirs.draw_starts, classes[1].roll_out, classes[0].roll_out

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
    patch.setattr(classes[1], "roll_out", record)
    patch.setattr(ours, "draw_starts", lambda *args: ours.Starts(jnp.asarray(starts.pop(0).indices.numpy())))
    patch.setattr(classes[0], "roll_out", replay)
    # Traced again each time, so that each roll-out has its own draws
    patch.setattr(ours, "imagine", ours.imagine.__wrapped__)


def prepared(twin: Any) -> dict[str, Any]:
    """The shares of batches, which a few draws do not reveal."""
    of = {
        (size, ratio): twin.TrainConfig(batch_size=size, real_ratio=ratio) for size in (7, 256) for ratio in (0.05, 0.3)
    }
    return {f"shares of {size} by {ratio}": np.asarray(twin.shares(config)) for (size, ratio), config in of.items()}


class ImaginedPair(Pair):
    """A pair that also learns from a model's roll-outs."""

    further_rows = SEEN
    drawn_once = {"draw_starts": (), "draw_step": (SIZES,)}
    gathers = 2
    # Because their temperatures have no axes
    compiled_in = "float32"

    shipped = staticmethod(shipped)
    ready = staticmethod(ready)
    prepared = staticmethod(prepared)

    def take(self, twin: ModuleType, dataset: Any, indices: Any, config: Any) -> Batch:
        return take(twin, dataset, indices, config)

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Batch:
        return load(raw)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return len(dataset[0]), SEEN, action_dim
