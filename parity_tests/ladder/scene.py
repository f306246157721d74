"""Scenes: both twins at the same weights, with their data."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.engine.interpreter import interpreted
from parity_tests.ladder.stretching import SPREAD, stretched
from parity_tests.pair import Pair
from parity_tests.pictures import pictured
from shared import names
from shared.data import transitions
from shared.envs.spaces import shape_of
from shared.frameworks import jax_data, jax_side, torch_data, torch_side
from shared.frameworks.exchange import blank_state, to_jax
from shared.runs.encoders import NO_ENCODER

# Returns the further arguments of an update's draws, for these settings and this update number
Statics = Callable[[Any, int], dict[str, Any]]
# Wraps a function in another one that computes the same
Engine = Callable[[Callable], Callable]

# Fresh weights and moments are no test in float32: Adam's first step is lr * g / (|g| + eps), a sign function if g is
# close to eps. About 30 steps later it is smooth.
WARM_UPDATES = 30
# Small, to keep the ladder quick; the variant FULL_SIZE has CORL's defaults instead.
BATCH_SIZE = 32
FULL_SIZE = "full size"
DATASET_SIZE = 200


def bundled_rows() -> dict[str, np.ndarray]:
    """Rows of the bundled dataset's file around the end of an episode."""
    raw = transitions.read_hdf5(names.dataset_path("mini/hopper-medium-expert"))
    end = int(np.flatnonzero(raw["terminals"])[0])
    first = max(0, end - DATASET_SIZE // 2)
    rows = {key: values[first : first + DATASET_SIZE + 1].copy() for key, values in raw.items()}
    rows["timeouts"][-1] = True
    return rows


def cornered_rows(bound: float, state_dim: int = 11, action_dim: int = 3) -> dict[str, np.ndarray]:
    """Made-up rows with corner cases: terminals, actions at their bounds, ties, extreme states and rewards."""
    rng, size = np.random.default_rng(2), DATASET_SIZE + 1
    observations = _observations(rng, state_dim)
    rewards = rng.normal(size=size)
    rewards[::9] *= 100.0
    rewards[::5] = 0.0
    actions = rng.normal(size=(size, action_dim))
    return _with_ties(observations, np.clip(bound * actions, -bound, bound), rewards, rng.random(size) < 0.3)


def extreme_rows() -> dict[str, np.ndarray]:
    """Made-up rows with rewards so large that squared errors dominate all other terms of a loss.

    Otherwise a gradient may be the small difference of large sums, and rounding would take its digits.
    """
    rng, size = np.random.default_rng(0), DATASET_SIZE + 1
    observations = _observations(rng, 11)
    actions = np.clip(rng.normal(size=(size, 3)), -1.0, 1.0)
    rewards = rng.choice([-100.0, -1.0, 0.0, 1.0, 1000.0], size=size)
    return _with_ties(observations, actions, rewards, rng.random(size) < 0.3)


def _observations(rng: np.random.Generator, state_dim: int) -> np.ndarray:
    observations = rng.normal(size=(DATASET_SIZE + 1, state_dim))
    observations[::7] *= 10.0
    return observations


def _with_ties(*columns: np.ndarray) -> dict[str, np.ndarray]:
    """The columns by name, with some rows repeated."""
    rows = dict(zip(("observations", "actions", "rewards", "terminals"), columns, strict=True))
    for column in rows.values():
        column[1::10] = column[:-1:10]
    return rows | {"timeouts": np.arange(DATASET_SIZE + 1) == DATASET_SIZE}


Rows = Callable[[], dict[str, np.ndarray]]
DATASETS: dict[str, Rows] = {"bundled": bundled_rows, "cornered": partial(cornered_rows, 2.0)}
# The datasets for checking ports: their authors may assume a bound of 1, which all D4RL environments have.
ROWS: dict[str, Rows] = DATASETS | {"made-up": partial(cornered_rows, 1.0), "extreme": extreme_rows}
# The bound of every action component. Most environments have 1, which would hide a forgotten factor.
MAX_ACTIONS = {"bundled": 1.0, "cornered": 2.0, "made-up": 1.0, "extreme": 1.0}


@dataclass(frozen=True)
class Scene:
    """Both twins at the same weights, with their data.

    Attributes:
        pair: The adapter.
        jax_twin: The JAX module, which may contain a planted mistake.
        config: The PyTorch module's config; the JAX module's has the same fields.
        dataset: The pair's named tuple of NumPy columns.
        sizes: S or (C, H, W), then A and the bound of every action component.
        trainer: The PyTorch twin, after `updates` updates.
        updates: The number of updates made.
        engine: Computes the JAX twin's functions: `interpreted`, or `jax.jit` as for users.
    """

    pair: Pair
    jax_twin: ModuleType
    config: Any
    dataset: Any
    sizes: tuple[Any, int, float]
    trainer: Any
    updates: int = 0
    engine: Engine = interpreted

    @classmethod
    def create(
        cls,
        pair: Pair,
        jax_twin: ModuleType,
        variant: str,
        dataset: str,
        warm: bool = True,
        engine: Engine = interpreted,
        left: frozenset[str] = frozenset(),
    ) -> "Scene":
        """Creates twins with a variant's settings, either fresh or after `WARM_UPDATES` updates of the PyTorch twin.

        The settings in `left` keep their defaults, as for a port that does not have them.
        """
        scene = _scene(pair, variant, dataset, warm, torch.get_default_dtype(), left)
        torch_side.seed_everything(1)
        return replace(scene, jax_twin=jax_twin, trainer=copy.deepcopy(scene.trainer), engine=engine)

    def advanced(self, updates: int) -> "Scene":
        """The scene after further updates of the PyTorch twin, which is changed in place."""
        for indices, noise in islice(self.draws(), updates):
            self.trainer.update(self.torch_batch(indices), noise)
        return replace(self, updates=self.updates + updates)

    def stretched(self, spread: float = SPREAD, corner: Callable[[Any], None] = lambda trainer: None) -> "Scene":
        """The scene with networks that reach their bounds and give values of both signs; `corner` moves others."""
        rows = self.torch_batch(np.arange(min(DATASET_SIZE, len(self.dataset[0]))))
        outputs = self.pair.outputs

        def run(trainer: Any) -> Any:
            return outputs(trainer, rows)

        return replace(self, trainer=stretched(self.trainer, run, self.sizes[1], corner, spread))

    def draws(self, statics: Statics | None = None) -> Any:
        """Yields the PyTorch twin's (indices, noise) endlessly, from the next update on, with the pair's `statics`."""
        step, statics = self.updates, statics or self.pair.draw_statics
        draw = self.pair.torch_draws(self.config, self.dataset, self.sizes[1], torch.device("cpu"))
        while True:
            step += 1
            yield draw(**statics(self.config, step))

    def jax_draw(self, key: Any, step: int, statics: dict[str, Any]) -> tuple[Any, Any]:
        """The JAX twin's indices and noise; updates are numbered from 0 in its draws."""
        inputs = self.pair.draw_inputs(self.dataset, self.sizes[1])
        return self.drawing(self.jax_twin.draw_noise, *inputs, **statics)(key, step)

    def drawing(self, draw: Callable, *inputs: Any, **statics: Any) -> Callable:
        """Fills in a drawing function's arguments except the key and the step number; equal draws share one trace."""
        return _drawing(draw, self.hp, inputs, tuple(sorted(statics.items())))

    @cached_property
    def hp(self) -> Any:
        """The JAX twin's settings that an update depends on."""
        return jax_side.narrow(self.jax_config, self.jax_twin.Hyperparameters)

    def torch_batch(self, indices: Any) -> Any:
        """A batch in the form that the PyTorch twin takes."""
        return self.pair.take(self.pair.torch, self._torch_dataset, torch.as_tensor(np.asarray(indices)), self.config)

    def jax_batch(self, indices: Any) -> Any:
        """A batch in the form that the JAX twin takes."""
        return self.pair.take(self.jax_twin, self.jax_dataset, jnp.asarray(np.asarray(indices)), self.jax_config)

    @cached_property
    def _torch_dataset(self) -> Any:
        dataset = torch_data.to_device(self.dataset, torch.device("cpu"))
        return self.pair.ready(self.pair.torch, dataset, self.config)

    @cached_property
    def jax_dataset(self) -> Any:
        """The dataset, packed."""
        return self.pair.ready(self.jax_twin, jax_data.to_device(self.dataset), self.jax_config)

    def jax_noise(self, noise: Any) -> Any:
        """Converts the PyTorch twin's noise to the JAX twin's."""
        return self.jax_twin.Noise(*jax.tree.map(lambda draw: jnp.asarray(draw.numpy()), tuple(noise)))

    @cached_property
    def jax_config(self) -> Any:
        """The JAX twin's config with the same values."""
        return self.jax_twin.TrainConfig(**vars(self.config))

    def state(self) -> Any:
        """The JAX twin's state with the PyTorch twin's current weights."""
        return to_jax(self.trainer, _blank(self.jax_twin, self.jax_config, self.sizes, jax.enable_x64.value))

    def run(self, function: Callable, *args: Any, **statics: Any) -> Any:
        """Computes a function of the JAX twin with the engine; equal calls share one trace."""
        return _engined(self.engine, function, tuple(sorted(statics.items())))(*args)

    def update(self, state: Any, step: int, indices: Any, noise: Any) -> tuple[Any, Any]:
        """The JAX twin's next state and metrics, for its update with number `step` (from 1)."""
        statics = self.pair.update_statics(self.config, step)
        return self.run(type(state).update, state, self.jax_batch(indices), noise, *self.pair.number(step), **statics)

    def losses(self) -> dict[str, Any]:
        """The pair's losses that this config uses."""
        return {name: loss for name, loss in self.pair.losses.items() if self.pair.uses(name, self.config)}


# Cached for the rungs that start from the same scene, but not for longer, because networks and programs take memory.
# The precision is an argument because it determines the dtypes.


@lru_cache(maxsize=8)
def _scene(
    pair: Pair, variant: str, dataset: str, warm: bool, dtype: torch.dtype, left: frozenset[str] = frozenset()
) -> Scene:
    rows = ROWS[dataset]()
    settings = (
        pair.settings.get(FULL_SIZE, {})
        if variant == FULL_SIZE
        else {"batch_size": BATCH_SIZE} | pair.variants[variant]
    )
    config = pair.torch.TrainConfig(device="cpu", **{name: settings[name] for name in settings if name not in left})
    if (encoder := getattr(config, "encoder", NO_ENCODER)) == NO_ENCODER:
        columns = pair.load(rows)
    else:
        columns = pair.load(pictured(rows, encoder), config.frame_stack)
    torch_side.seed_everything(0)
    sizes = shape_of(columns.observations), rows["actions"].shape[1], MAX_ACTIONS[dataset]
    trainer = pair.torch.create_trainer(config, *sizes)
    pair.begins(trainer, len(columns[0]))
    scene = Scene(pair, pair.jax, config, columns, sizes, trainer)
    if not warm:
        return scene
    scene = scene.advanced(WARM_UPDATES)
    # Near an action's bound, log(1 - tanh^2 + 1e-6) keeps ten digits in double precision, and none in single.
    if dataset in ("bundled", "extreme") or dtype != torch.float64:
        return scene
    # The outermost corners, such as a silent critic, are only for our own twins: no real training gets there.
    return scene.stretched(corner=pair.corner) if dataset == "cornered" else scene.stretched()


@lru_cache(maxsize=8)
def _blank(twin: ModuleType, config: Any, sizes: tuple[Any, int, float], x64: bool) -> Any:
    return blank_state(twin, config, *sizes)


@lru_cache(maxsize=64)
def _engined(engine: Engine, function: Callable, statics: tuple[tuple[str, Any], ...]) -> Callable:
    return engine(partial(function, **dict(statics)))


@lru_cache(maxsize=16)
def _drawing(draw: Callable, hp: Any, inputs: tuple[Any, ...], statics: tuple[tuple[str, Any], ...]) -> Callable:
    return interpreted(lambda key, step: draw(key, step, hp, *inputs, **dict(statics)))
