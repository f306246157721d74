"""A saved run: its checkpoint, of either framework, and the twins with its state.

No algorithm is named here, because a checkpoint states its own.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from shared.data.sequences import PromptedPolicy
from shared.envs.boxes import ActionBox, ActionUnits
from shared.envs.evaluation import ChunkedPolicy, ContextPolicy, Evaluator, Policy, SampledPolicy, epsilon_greedy
from shared.envs.scores import Scale, scale
from shared.envs.spaces import Shape, size_of_statistics
from shared.errors import InputError
from shared.frameworks import exchange, jax_checkpoints, jax_side, torch_checkpoints
from shared.frameworks.twins import acting, load_twin, trainable
from shared.runs.checkpoints import Checkpoints
from shared.runs.configs import from_settings, read_file
from shared.runs.episodes import cut_after
from shared.runs.opening import scoring_env
from shared.runs.own_data import with_corls_prompts
from shared.runs.settings import GoalConfig
from shared.runs.validation import NO_ENVIRONMENT

SUFFIXES = {"torch": ".pt", "jax": ".msgpack"}
_DATA = (".hdf5", ".h5", ".npz", ".npy")
# Facts about its run that a checkpoint of either framework states, by key
STATISTICS = ("state_mean", "state_std", "action_mean", "action_std", "action_low", "action_high")
FACTS = ("step", "settings", "dataset", "environment", *STATISTICS, "versions")
# States in a batch
_ROWS = 16_384
_RUN = re.compile(r".+-(torch|jax)-[0-9a-f]{8}")


def find(path: Path, framework: str | None = None) -> Path:
    """Finds the last checkpoint in a run's folder; a file is returned itself, and may be named without its suffix.

    Args:
        path: The folder or the file.
        framework: The framework to choose if there are checkpoints of both; None means that of the folder's run.

    Raises:
        InputError: There is no checkpoint, or the file contains data.
    """
    if path.suffix in _DATA:
        raise InputError(f"{path} is data, not a run: name a run's folder, or a .pt or .msgpack file")
    if path.is_file():
        return path
    stem = path / "checkpoint" if path.is_dir() else path
    run = _RUN.fullmatch(stem.resolve().parent.name)
    first = framework or (run[1] if run else "torch")
    suffixes = sorted(SUFFIXES.values(), key=lambda suffix: suffix != SUFFIXES[first])
    found = [file for suffix in suffixes if (file := stem.with_name(stem.name + suffix)).is_file()]
    for suffix in suffixes:
        checkpoints = Checkpoints(path / "checkpoints", suffix)
        found += [checkpoints.path(step) for step in reversed(checkpoints.steps())]
    if not found:
        inside = sorted(path.iterdir()) if path.is_dir() else []
        runs = [folder for folder in (*path.parents, *inside) if _RUN.fullmatch(folder.name)]
        example = f" such as {runs[0]}" if runs else ""
        raise InputError(f"there is no checkpoint at {path}: name a run's folder{example}, or a .pt or .msgpack file")
    return found[0]


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """A checkpoint, and the run that wrote it.

    Attributes:
        path: The path of the checkpoint.
        framework: `torch` or `jax`.
        algorithm: Name of the algorithm, such as `td3_bc`.
        config: The run's settings, as a `TrainConfig` of the PyTorch twin on the CPU.
        facts: The facts about its run that the file states, by key, out of `FACTS`.
    """

    path: Path
    framework: str
    algorithm: str
    config: Any
    facts: dict[str, Any]

    @classmethod
    def open(cls, path: Path, algorithm: str | None = None, config_path: Path | None = None) -> "SavedRun":
        """Reads the facts in a checkpoint; `trainer` and `state` read the networks.

        Args:
            path: The path of the checkpoint.
            algorithm: The algorithm of a file that does not state it, such as one of CORL's.
            config_path: The run's settings; None means the file next to the checkpoint.

        Raises:
            InputError: The file, the algorithm or the settings are missing or cannot be used.
        """
        framework = "jax" if path.suffix == SUFFIXES["jax"] else "torch"
        try:
            content = _CHECKPOINTS[framework].read_checkpoint(str(path))
        except InputError:
            if algorithm is None:
                raise
            content = {}  # such as CORL's file of CQL, with pickled classes that only its twin can read
        found = content.get("algorithm", algorithm)
        if found is None:
            raise InputError(f"{path} does not say of which algorithm it is: name it with --algorithm")
        if algorithm not in (None, found):
            raise InputError(f"{path} is of {found}, not of {algorithm}: leave out --algorithm")
        algorithm = found
        algorithm = trainable(framework, str(algorithm))
        facts = {key: content[key] for key in FACTS if key in content}
        # CORL's transformer stores them as matrices with one row.
        facts |= {key: np.asarray(facts[key]).flatten() for key in STATISTICS if key in facts}
        config = with_corls_prompts(_config(path, algorithm, facts, config_path))
        return cls(path, framework, algorithm, dataclasses.replace(config, device="cpu"), facts)

    @property
    def torch(self) -> ModuleType:
        """The PyTorch twin."""
        return load_twin("torch", self.algorithm)

    @cached_property
    def result(self) -> dict[str, Any]:
        """`env`, `metric` and `score` of the run that ended with this checkpoint; empty if it has not ended."""
        path = self.path.parent / "result.json"
        if self.path.stem != "checkpoint" or not path.is_file():
            return {}
        try:
            content = json.loads(path.read_text())
            return {"env": content["evaluation"]["env"], "metric": content["metric"], "score": content["final"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged: remove it, and nothing but the run's score is lost") from error

    @cached_property
    def env_id(self) -> str:
        """The environment that scores the run."""
        if self.result:
            return self.result["env"]
        environment = self.facts.get("environment")
        return environment["id"] if environment else scoring_env(self.config)

    @cached_property
    def sizes(self) -> tuple[Shape, int, float]:
        """S, or (C, H, W), then A and the bound of every action component, which the config may set.

        The environment is only created for a file that does not state them, such as CORL's.
        """
        if environment := self.facts.get("environment"):
            state_dim, action_dim, bound = (environment[key] for key in ("state_dim", "action_dim", "max_action"))
        else:
            evaluator = Evaluator(self.env_id, n_episodes=1, seed=0, frame_stack=self.config.reader.frame_stack)
            evaluator.close()
            state_dim, action_dim, bound = evaluator.state_dim, evaluator.action_dim, evaluator.max_action
        shape = state_dim if isinstance(state_dim, int) else tuple(state_dim)
        return shape, action_dim, getattr(self.config, "max_action", bound)

    @property
    def scale(self) -> Scale:
        """The scale on which returns are reported."""
        return scale(self.env_id, self.facts.get("environment"))

    def evaluator(self, n_episodes: int, seed: int | None = None, env_id: str | None = None, **how: Any) -> Evaluator:
        """An evaluator for the run's policy, which normalizes states as the run's own evaluations did.

        Args:
            n_episodes: Episodes in an evaluation.
            seed: The seed of the start states; None means the run's own.
            env_id: The environment to evaluate in, with the same sizes; None means the run's own.
            how: Further arguments of `Evaluator`.

        Raises:
            InputError: As for `statistics`, or the environment cannot be created or has other sizes.
        """
        if self.env_id == NO_ENVIRONMENT and env_id is None:
            raise InputError(
                f"{self.path} was learnt from data alone, so no environment is known to act in: set load_model "
                "to it and eval_env to one, and train on"
            )
        seed = self.evaluation_seed if seed is None else seed
        limits = [self._cut(env_id)]
        if self.is_prompted:
            how = {"num_envs": n_episodes} | how
            limits.append(self.config.episode_len)
        stated = self.facts.get("environment") if env_id in (None, self.env_id) else None
        known: dict[str, Any] = {"units": self.units, "stated": stated}
        known["frame_stack"] = self.config.reader.frame_stack
        known["max_steps"] = min((steps for steps in limits if steps), default=None)
        how = known | how
        evaluator = Evaluator(env_id or self.env_id, n_episodes, seed, *self.statistics(), **how)
        if (found := (evaluator.state_dim, evaluator.action_dim)) != self.sizes[:2]:
            evaluator.close()
            raise InputError(
                f"{self.path} acts on observations {self.sizes[0]} with actions {self.sizes[1]}, {env_id} has "
                f"{found[0]} and {found[1]}: name an environment like {self.env_id}"
            )
        return evaluator

    def _cut(self, env_id: str | None) -> int | None:
        """The step after which an episode is cut in this environment; None if only its own time limit applies."""
        environment = self.facts.get("environment") or {}
        return environment.get("max_episode_steps") or cut_after(
            getattr(self.config, "max_episode_steps", None), env_id or self.env_id
        )

    @property
    def evaluation_seed(self) -> int:
        """The seed of the start states in the run's evaluations."""
        return getattr(self.config, "eval_seed", self.config.seed)

    def policy(self, seed: int | None = None, framework: str = "torch") -> Policy | ContextPolicy:
        """The run's policy for an evaluator; a sequence model is prompted with the run's first target return.

        Args:
            seed: The seed of a policy that samples; None means the run's own.
            framework: The framework of the twin that computes the actions, `torch` or `jax`.

        Raises:
            InputError: As for `trainer`, or the run did not learn a policy.
        """
        self.check_acts()
        config, act = self.config, self.trainer().act if framework == "torch" else self._jax_act()
        seed = self.evaluation_seed if seed is None else seed
        if self.draw is not None and self.is_chunked:
            return ChunkedPolicy(act, self.draw, seed, config.horizon_length)
        if self.draw is not None:
            return SampledPolicy(act, self.draw, seed)
        if (epsilon := getattr(config, "eval_epsilon", 0.0)) > 0.0:
            return epsilon_greedy(act, epsilon, self.sizes[1], seed)
        if not self.is_prompted:
            return act
        return PromptedPolicy(act, config.target_returns[0], config.reward_scale, config.seq_len, self.sizes[1])

    def actions(self, *columns: np.ndarray) -> list[np.ndarray]:
        """The policy's actions (N, A), in its own units, for each column (N, S) of normalised observations.

        A policy that samples draws once for each row, seeded with the run's evaluation seed.

        Raises:
            InputError: As for `trainer`, or the policy needs more than an observation.
        """
        self.check_acts()
        if self.is_prompted:
            raise InputError(f"{self.path} is of a sequence model, which acts on more than a state: name another run")
        if self.takes_goals:
            raise InputError(f"{self.path} is given a goal, not a state alone: name another run")
        if self.is_chunked:
            raise InputError(f"{self.path} plays chunks of actions, not an action for each state: name another run")
        act, draw = self.trainer().act, self.draw
        rng = np.random.default_rng(self.evaluation_seed)

        def noise(rows: int) -> list[np.ndarray]:
            return [] if draw is None else [np.stack([draw(rng) for _ in range(rows)]).astype(np.float32)]

        def of(observations: np.ndarray) -> np.ndarray:
            parts = (observations[first : first + _ROWS] for first in range(0, len(observations), _ROWS))
            return np.concatenate([act(part, *noise(len(part))) for part in parts])

        return [of(observations) for observations in columns]

    def check_acts(self) -> None:
        """Checks that the run learnt a policy.

        Raises:
            InputError: The run evaluated a policy instead.
        """
        if not hasattr(self.torch, "policy"):
            raise InputError(f"{self.path} is of {self.algorithm}, which learns no policy: name the run that it judged")

    @property
    def draw(self) -> Callable[[np.random.Generator], np.ndarray] | None:
        """A function that draws the policy's noise for one step of an episode; None if the policy draws nothing."""
        draw = getattr(self.torch, "draw_acting_noise", None)
        return draw and partial(draw, hp=self.config, action_dim=self.sizes[1])

    @property
    def is_prompted(self) -> bool:
        """Whether the policy is a sequence model, which takes a target return."""
        return hasattr(self.config, "target_returns")

    @property
    def is_chunked(self) -> bool:
        """Whether the policy chooses several actions at once."""
        return hasattr(self.config, "horizon_length")

    @property
    def takes_goals(self) -> bool:
        """Whether the policy is given a goal beside an observation."""
        return isinstance(self.config, GoalConfig)

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation, (S,), with which the run normalised its states; for images (1,) and unused.

        Raises:
            InputError: The checkpoint lacks them, as CORL's do, or their size is wrong.
        """
        if "state_mean" not in self.facts:
            raise InputError(
                f"{self.path} does not hold the statistics of its states: set load_model to it and train on, and "
                "the new checkpoints will"
            )
        mean, std = self.facts["state_mean"], self.facts["state_std"]
        if not mean.shape == std.shape == (size_of_statistics(self.sizes[0]),):
            raise InputError(f"{self.path} holds statistics of other states than {self.env_id} has: name its run")
        return mean, std

    def action_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """The offset (A,) and the scale (A,) of the policy's actions; the scale is applied first.

        Raises:
            InputError: The size of the checkpoint's statistics is wrong.
        """
        action_dim = self.sizes[1]
        mean = self.facts.get("action_mean", np.zeros(action_dim, np.float32))
        std = self.facts.get("action_std", np.ones(action_dim, np.float32))
        if not mean.shape == std.shape == (action_dim,):
            raise InputError(f"{self.path} holds statistics of other actions than {self.env_id} has: name its run")
        return mean, std

    @property
    def box(self) -> ActionBox | None:
        """The box of the environment's actions; None if the checkpoint does not state it.

        Raises:
            InputError: The size of the checkpoint's box is wrong.
        """
        if "action_low" not in self.facts or "action_high" not in self.facts:
            return None
        box = ActionBox.of(self.facts["action_low"], self.facts["action_high"])
        if not box.low.shape == box.high.shape == (self.sizes[1],):
            raise InputError(f"{self.path} holds bounds of other actions than {self.env_id} has: name its run")
        return box

    @property
    def units(self) -> ActionUnits:
        """The conversion of the policy's actions to the environment's.

        Raises:
            InputError: As for `action_statistics` and `box`.
        """
        return ActionUnits(*self.action_statistics(), bound=self.sizes[2], box=self.box)

    def trainer(self) -> Any:
        """Creates the PyTorch twin's trainer at the checkpoint's state, whichever framework wrote it.

        Raises:
            InputError: The file is damaged, or is from another algorithm, or has other networks.
        """
        trainer = self.torch.create_trainer(self.config, *self.sizes)
        if self.framework == "torch":
            self.torch.load(trainer, str(self.path))
        else:
            state, trainer.total_it = self.state()
            exchange.to_torch(state, trainer)
        return trainer

    def state(self) -> tuple[Any, int]:
        """The JAX twin's state and its number of updates, whichever framework wrote the checkpoint.

        Raises:
            InputError: As for `trainer`.
        """
        if self.framework == "jax":
            content = jax_checkpoints.load_checkpoint(str(self.path), self.algorithm, self._empty_state())
            return content["state"], content["total_it"]
        trainer = self.trainer()
        return exchange.to_jax(trainer, self._empty_state()), trainer.total_it

    def _jax_act(self) -> Callable[..., np.ndarray]:
        """The JAX twin's equivalent of the PyTorch twin's `act`."""
        act, network = load_twin("jax", self.algorithm).act, acting(self.state()[0])
        return lambda *inputs: np.asarray(act(network, *inputs))

    def _empty_state(self) -> Any:
        jax_side.default_device()  # raises an error if JAX has no device
        twin = load_twin("jax", self.algorithm)
        return exchange.blank_state(twin, twin.TrainConfig(**vars(self.config)), *self.sizes)


def _config(path: Path, algorithm: str, facts: dict[str, Any], config_path: Path | None) -> Any:
    """The settings of a checkpoint: from the given file, else from the checkpoint, else from the file next to it."""
    config_class = load_twin("torch", algorithm).TrainConfig
    if config_path is None and isinstance(facts.get("settings"), dict):
        return from_settings(config_class, algorithm, facts["settings"], f"settings in {path}: ")
    beside = config_path or path.parent / "config.yaml"
    if not beside.is_file():
        raise InputError(f"the settings of {path} are not at {beside}: name their file with --config_path")
    return read_file(config_class, algorithm, beside)


_CHECKPOINTS = {"torch": torch_checkpoints, "jax": jax_checkpoints}
