"""The agents that collect datasets: soft actor-critic for vector actions, DQN for finite ones."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shared.envs.spaces import Shape
from shared.frameworks.saved_run import SavedRun
from shared.frameworks.twins import load_twin
from shared.runs.configs import dataset_row

Acting = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Maps observations (E, S) and a generator to actions: (E, A), or finite ones (E,)."""

EPSILON = 0.05
"""The share of random actions in episodes recorded with finite actions."""


class Agent(ABC):
    """Trains in an environment, and acts there while its episodes are recorded.

    Attributes:
        algorithm: The name of the algorithm.
        policy: A description of how it acts.
        defaults: Values of options that are not on the command line.
        untrained: A description of its policy without training.
        shaping: The options on which that policy depends.
        twin: The module of the algorithm.
        options: The options of its training, by name, including defaults.
        settings: The settings of its training that differ from the algorithm's defaults.
        config: All settings of its training.
    """

    algorithm: ClassVar[str]
    policy: ClassVar[str]
    defaults: ClassVar[Mapping[str, int]]
    untrained: ClassVar[str]
    shaping: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        framework: str,
        env_id: str,
        seed: int,
        given: Mapping[str, int],
        bounds: Mapping[str, tuple[float, ...]] = {},
    ) -> None:
        """Prepares the config, without training.

        Args:
            framework: The framework of the twin that trains.
            env_id: The environment.
            seed: The seed of the training.
            given: Some of `steps`, `random_steps`, `batch_size`, `hidden_dim` and `eval_freq`, by these names.
            bounds: `action_low` and `action_high`, if they should replace the environment's.

        Raises:
            InputError: The environment's row in the algorithm's table cannot be used.
        """
        self.twin = load_twin(framework, self.algorithm)
        self.options = {**self.defaults, **given}
        config_class = self.twin.TrainConfig
        self.settings = dataset_row(config_class, self.algorithm, env_id) | self._settings()
        # Policies are rated by separate episodes later, so the run's evaluations can be short.
        self.config: Any = config_class(**self.settings | dict(bounds) | {"env": env_id, "seed": seed, "n_episodes": 1})

    @property
    def title(self) -> str:
        """The usual name of the algorithm."""
        return self.algorithm.upper()

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The algorithm's settings that follow from the options."""

    @abstractmethod
    def acting(self, path: Path | None, state_dim: Shape, action_dim: int, max_action: float) -> Acting:
        """The policy in a checkpoint; without one, of an untrained agent."""


class SoftActorCritic(Agent):
    """Its policy samples from a normal distribution. The bundled datasets used its defaults, which are quick."""

    algorithm = "sac"
    policy = "stochastic"
    defaults: ClassVar[Mapping[str, int]] = {
        "steps": 150_000,
        "random_steps": 5_000,
        "batch_size": 128,
        "hidden_dim": 128,
        "eval_freq": 5_000,
    }
    untrained = "SAC's, freshly initialised"
    shaping = ("hidden_dim",)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = dict(self.options)
        return settings | {"max_timesteps": settings.pop("steps")}

    def acting(self, path: Path | None, state_dim: Shape, action_dim: int, max_action: float) -> Acting:
        """The policy, as its own twin computes it."""
        # Constructed from the fields' own names, because config classes are frozen.
        config = type(self.config)(**vars(self.config) | {"load_model": "" if path is None else str(path)})
        policy = self.twin.load_policy(config, state_dim, action_dim, max_action)

        def act(observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            noise = rng.standard_normal((len(observations), action_dim)).astype(np.float32)
            return np.asarray(policy(observations, noise))

        return act


class FiniteDQN(Agent):
    """Its policy takes the best action, except for a random action in a share `EPSILON` of its steps.

    Without options, its training follows the environment's row in its table.
    """

    algorithm = "online/dqn"
    policy = f"the best action, in {EPSILON:.0%} of the steps a random one"
    defaults: ClassVar[Mapping[str, int]] = {}
    untrained = "random actions"
    shaping = ()

    @property
    def title(self) -> str:
        """The usual name of the algorithm."""
        return "Double DQN" if self.config.double else "DQN"

    def _settings(self) -> dict[str, Any]:
        names = {"steps": "max_timesteps", "random_steps": "learning_starts"}
        settings: dict[str, Any] = {names.get(name, name): value for name, value in self.options.items()}
        if "hidden_dim" in settings:
            settings["hidden_dims"] = (settings.pop("hidden_dim"),) * 2
        return settings

    def acting(self, path: Path | None, state_dim: Shape, action_dim: int, max_action: float) -> Acting:
        """The policy; an untrained one only takes random actions."""
        best = None if path is None else SavedRun.open(path).trainer().act

        def act(observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            uniform, random = rng.random(len(observations)), rng.integers(action_dim, size=len(observations))
            return random if best is None else np.where(uniform < EPSILON, random, best(observations))

        return act
