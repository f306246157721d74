"""The agents that datasets are made with: soft actor-critic for actions that are vectors, DQN for finite ones."""

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
"""The share of random actions among the finite ones that are recorded."""


class Agent(ABC):
    """Trains in an environment, and acts there while it is recorded.

    Attributes:
        algorithm: Its name.
        policy: How it acts, in words.
        defaults: What options are where the command line does not say it.
        twin: Its file.
        options: What its training was told on the command line, by the options' names, defaults included.
        settings: Of its training, where they differ from the algorithm's defaults.
        config: All of them.
    """

    algorithm: ClassVar[str]
    policy: ClassVar[str]
    defaults: ClassVar[Mapping[str, int]]

    def __init__(
        self,
        framework: str,
        env_id: str,
        seed: int,
        given: Mapping[str, int],
        bounds: Mapping[str, tuple[float, ...]] = {},
    ) -> None:
        """Trains nothing yet.

        Args:
            framework: Of the twin that trains.
            env_id: The environment.
            seed: Decides the training.
            given: Some of `steps`, `random_steps`, `batch_size`, `hidden_dim` and `eval_freq`, by these names.
            bounds: `action_low` and `action_high`, where the environment's own shall not count.

        Raises:
            InputError: The environment's row of the algorithm's table cannot be used.
        """
        self.twin = load_twin(framework, self.algorithm)
        self.options = {**self.defaults, **given}
        config_class = self.twin.TrainConfig
        self.settings = dataset_row(config_class, self.algorithm, env_id) | self._settings()
        # Policies are rated by their own episodes here, so the run's evaluation can be short.
        self.config: Any = config_class(**self.settings | dict(bounds) | {"env": env_id, "seed": seed, "n_episodes": 1})

    @property
    def title(self) -> str:
        """The name that the field uses."""
        return self.algorithm.upper()

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The settings of the algorithm that the options decide."""

    @abstractmethod
    def acting(self, path: Path | None, state_dim: Shape, action_dim: int, max_action: float) -> Acting:
        """The policy of a checkpoint; without one, of an agent that has learnt nothing."""


class SoftActorCritic(Agent):
    """Its policy samples from a normal distribution. Its defaults made the bundled sets: they are quick ones."""

    algorithm = "sac"
    policy = "stochastic"
    defaults: ClassVar[Mapping[str, int]] = {
        "steps": 150_000,
        "random_steps": 5_000,
        "batch_size": 128,
        "hidden_dim": 128,
        "eval_freq": 5_000,
    }

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = dict(self.options)
        return settings | {"max_timesteps": settings.pop("steps")}

    def acting(self, path: Path | None, state_dim: Shape, action_dim: int, max_action: float) -> Acting:
        """Its policy, by its own twin."""
        # By the fields' own names, since config classes are frozen.
        config = type(self.config)(**vars(self.config) | {"load_model": "" if path is None else str(path)})
        policy = self.twin.load_policy(config, state_dim, action_dim, max_action)

        def act(observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            noise = rng.standard_normal((len(observations), action_dim)).astype(np.float32)
            return np.asarray(policy(observations, noise))

        return act


class FiniteDQN(Agent):
    """Its policy takes the best action, or in a share `EPSILON` of its steps a random one.

    Without options its training follows the environment's row of its table.
    """

    algorithm = "online/dqn"
    policy = f"the best action, in {EPSILON:.0%} of the steps a random one"
    defaults: ClassVar[Mapping[str, int]] = {}

    @property
    def title(self) -> str:
        """The name that the field uses."""
        return "Double DQN" if self.config.double else "DQN"

    def _settings(self) -> dict[str, Any]:
        names = {"steps": "max_timesteps", "random_steps": "learning_starts"}
        settings: dict[str, Any] = {names.get(name, name): value for name, value in self.options.items()}
        if "hidden_dim" in settings:
            settings["hidden_dims"] = (settings.pop("hidden_dim"),) * 2
        return settings

    def acting(self, path: Path | None, state_dim: Shape, action_dim: int, max_action: float) -> Acting:
        """Its policy; one that has learnt nothing takes random actions alone."""
        best = None if path is None else SavedRun.open(path).trainer().act

        def act(observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            uniform, random = rng.random(len(observations)), rng.integers(action_dim, size=len(observations))
            return random if best is None else np.where(uniform < EPSILON, random, best(observations))

        return act
