"""The settings of a run, as opposed to an algorithm's: defined once, with the comments that `--help` prints.

An algorithm's `TrainConfig` inherits the settings that it uses, and may change their defaults. It repeats a comment
only if its meaning differs. `--help` lists the settings in this file as settings of the run.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from shared.data.goals import Shares
from shared.runs.encoders import ENCODERS, NO_ENCODER, Reader
from shared.runs.fields import bounded, bounds, choice, later, positive, unbounded


@dataclass(frozen=True)
class RecordConfig:
    """The settings that every run has."""

    # Project in Weights & Biases
    project: str = "CORL"
    # Group in Weights & Biases
    group: str = ""
    # First part of the run's name
    name: str = ""
    # Dataset: mini/hopper-mostly-expert, a D4RL id, minari:NAME, ogbench:NAME, or a file
    env: str = "mini/hopper-mostly-expert"
    # Updates between two evaluations
    eval_freq: int = bounded(5000, low=1)
    # Updates between two rows of metrics, each the mean since the previous row; null: rows only at evaluations, which
    # always have one. No effect while a finetune run acts in the environment
    log_freq: int | None = later(bounded(None, low=1))
    # Folder for a copy of every evaluation's checkpoint; null: keep only the last two and the best, in the run's folder
    checkpoints_path: str | None = None
    # Checkpoint to start from
    load_model: str = ""
    # Run to resume: its folder, or auto for the latest unfinished run with the same settings; empty: start a new run
    resume: str = ""
    # If a loss or an evaluation's outcome is NaN or infinite: stop, or continue to the last update
    on_nan: str = later(choice("stop", "continue"))
    # Seed of the weights, the batches and the noise
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # auto, cpu or cuda
    device: str = "auto"
    # Where run folders are made
    runs_path: str = "runs"
    # Weights & Biases: off, offline or online
    wandb_mode: str = choice("off", "offline", "online")
    # Whether to write TensorBoard's event file into the run's folder
    tensorboard: bool = later(field(default=False))

    @property
    def reader(self) -> Reader:
        """The settings with which observations are read."""
        return Reader()


@dataclass(frozen=True)
class RunConfig(RecordConfig):
    """The settings of every run that is scored in an environment."""

    # Episodes in an evaluation
    n_episodes: int = bounded(10, low=1)
    # Steps after which an episode in the environment is cut; null: its own time limit, or else the length of the
    # dataset's longest episode, or else 1000
    max_episode_steps: int | None = later(bounded(None, low=1))
    # Smallest actions, one number for all components or one for each; empty: the environment's bounds, else the data's
    action_low: tuple[float, ...] = later(bounds())
    # Largest actions, one number for all components or one for each; empty: the environment's bounds, else the data's
    action_high: tuple[float, ...] = later(bounds())
    # Seed of the weights, the batches, the noise and the evaluation's start states
    seed: int = bounded(0, low=0, high=2**32 - 1)

    @property
    def evaluation_seed(self) -> int:
        """The seed of the start states in evaluations."""
        return self.seed


@dataclass(frozen=True)
class LimitsConfig:
    """A run that reads a dataset, whose file may store time limits as terminals."""

    # Whether terminals that all come after the same number of steps, as time limits do, stay terminals; false: treat
    # them as time limits
    limits_as_terminals: bool = later(field(default=True))


@dataclass(frozen=True)
class DatasetConfig(LimitsConfig, RunConfig):
    """A run that starts with a dataset."""

    # Environment to evaluate in; empty: the dataset's own; none: no environment, so evaluations measure the policy's
    # actions on the data
    eval_env: str = ""
    # Source of the environment: today's Gymnasium, or the old gym with D4RL's own package, if that is installed
    eval_backend: str = choice("gymnasium", "d4rl")
    # How states are scaled, as in d3rlpy: by mean and standard deviation, or to [-1, 1]. It replaces normalize
    observation_scaler: str = later(choice("none", "standard", "min_max"))


@dataclass(frozen=True)
class RewardsConfig(DatasetConfig):
    """A run that learns from the rewards of a dataset's transitions, which may be scaled as d3rlpy does."""

    # How rewards are scaled, as in d3rlpy, if normalize_reward is false
    reward_scaler: str = later(choice("none", "multiply", "clip", "min_max", "standard", "return", "shift"))
    # Factor that any reward_scaler multiplies by
    reward_multiplier: float = later(positive(1.0))
    # Smallest reward for the reward_scaler clip; null: no bound
    reward_low: float | None = later(unbounded(None))
    # Largest reward for the reward_scaler clip; null: no bound
    reward_high: float | None = later(unbounded(None))
    # Number that the reward_scaler shift adds to rewards
    reward_shift: float = later(unbounded(0.0))
    # Whether the reward_scaler shift multiplies first and then adds
    multiply_first: bool = later(field(default=False))


@dataclass(frozen=True)
class OfflineConfig(DatasetConfig):
    """A run that only uses a dataset."""

    # How actions are scaled, as in d3rlpy: min_max maps each component's range in the data to [-1, 1]
    action_scaler: str = later(choice("none", "min_max"))
    # Share of the episodes held out of training, on which to measure the policy's actions; null: 0.1 if eval_env is
    # none, else 0
    validation_share: float | None = later(bounded(None, low=0, high=0.9))
    # Updates in all
    max_timesteps: int = bounded(1_000_000, low=1)


@dataclass(frozen=True)
class ImagesConfig:
    """A run whose observations may be images."""

    # Encoder of images: none, for vectors; plain convolutions, from DQN's paper (nature) or for MinAtar's small images
    # (minatar); residual networks, as in jaxrl_m (impala, resnet)
    encoder: str = later(choice(NO_ENCODER, *ENCODERS))
    # Images in an observation, the newest last
    frame_stack: int = later(bounded(1, low=1))

    @property
    def reader(self) -> Reader:
        """The settings with which observations are read."""
        return Reader(self.encoder, self.frame_stack, getattr(self, "crop_padding", 0))


@dataclass(frozen=True)
class ModelledConfig:
    """A run whose dynamics model must know where episodes end."""

    # Where the model ends an episode: empty, as is known of the environment; none, only at a time limit. It may also be
    # your own module:function, from states (..., S) of the framework to booleans (...)
    termination: str = later(field(default=""))


@dataclass(frozen=True)
class FinetuneConfig(RewardsConfig):
    """A run that learns from a dataset first, and then continues online in the environment."""

    # Dataset to begin with: mini/hopper-medium-replay, a D4RL id, minari:NAME, ogbench:NAME, or a file
    env: str = "mini/hopper-medium-replay"
    # Capacity of the replay buffer: the dataset's transitions, then the environment's, which overwrite the oldest
    buffer_size: int = bounded(2_000_000, low=1)
    # Updates on the dataset alone
    offline_iterations: int = bounded(1_000_000, low=0)
    # Environment steps after those, each with an update
    online_iterations: int = bounded(1_000_000, low=0)
    # Environment steps that are followed by the same number of updates, which JAX makes in one call. CORL uses 1. With
    # more, training is faster, but the policy acts on older weights. No effect in PyTorch
    updates_per_call: int = bounded(1, low=1)

    @property
    def switch(self) -> int:
        """Updates before the first environment step: those on the dataset, and any that come before them."""
        return self.offline_iterations

    @property
    def max_timesteps(self) -> int:
        """The total number of updates."""
        return self.switch + self.online_iterations


@dataclass(frozen=True)
class ImitationConfig(OfflineConfig):
    """A run on a dataset of single transitions that ignores the rewards."""

    # Largest dataset accepted, in transitions
    buffer_size: int = bounded(2_000_000, low=1)


@dataclass(frozen=True)
class GoalSettings:
    """The goals of a batch, as OGBench's code draws them; a part of a goal-conditioned algorithm's hyperparameters."""

    # Discount factor per step, also of the geometric distribution of goals
    discount: float = bounded(0.99, low=0, high=0.9999)
    # Share of value goals that are the state itself
    value_p_curgoal: float = bounded(0.2, low=0, high=1)
    # Share of value goals that are later states of the same trajectory
    value_p_trajgoal: float = bounded(0.5, low=0, high=1)
    # Share of value goals that are any states of the dataset; the three shares sum to 1
    value_p_randomgoal: float = bounded(0.3, low=0, high=1)
    # Whether nearer states are more likely value goals, by a geometric distribution; false: all later ones are alike
    value_geom_sample: bool = True
    # Share of the policy's goals that are the state itself
    actor_p_curgoal: float = bounded(0.0, low=0, high=1)
    # Share of the policy's goals that are later states of the same trajectory
    actor_p_trajgoal: float = bounded(1.0, low=0, high=1)
    # Share of the policy's goals that are any states of the dataset; the three shares sum to 1
    actor_p_randomgoal: float = bounded(0.0, low=0, high=1)
    # Whether nearer states are more likely goals of the policy, by a geometric distribution
    actor_geom_sample: bool = False
    # Whether rewards are 0 in the goal and otherwise -1, rather than 1 and 0
    gc_negative: bool = True

    @property
    def value_goals(self) -> Shares:
        """The kinds of value goals."""
        return Shares(self.value_p_curgoal, self.value_p_trajgoal, self.value_p_randomgoal, self.value_geom_sample)

    @property
    def actor_goals(self) -> Shares:
        """The kinds of the policy's goals."""
        return Shares(self.actor_p_curgoal, self.actor_p_trajgoal, self.actor_p_randomgoal, self.actor_geom_sample)


@dataclass(frozen=True)
class GoalConfig(ImitationConfig):
    """A run of a goal-conditioned algorithm."""

    # Dataset: mini/pointmaze-medium-navigate, an OGBench set such as ogbench:antmaze-large-navigate-v0, or a file
    env: str = "mini/pointmaze-medium-navigate"
    # Updates between two evaluations
    eval_freq: int = bounded(100_000, low=1)
    # Episodes in an evaluation, which take the environment's tasks in turn
    n_episodes: int = bounded(250, low=1)


@dataclass(frozen=True)
class TransitionsConfig(RewardsConfig, ImitationConfig):
    """A run on a dataset of single transitions."""

    # Steps whose rewards are summed before the next value is used, as in d3rlpy
    n_steps: int = later(bounded(1, low=1))


@dataclass(frozen=True)
class EvalSeedConfig(RunConfig):
    """A run whose evaluations have a separate seed."""

    # Seed of the weights, the batches and the noise
    seed: int = bounded(0, low=0, high=2**32 - 1)
    # Seed of the evaluation's start states
    eval_seed: int = bounded(42, low=0)

    @property
    def evaluation_seed(self) -> int:
        """The seed of the start states in evaluations."""
        return self.eval_seed


@dataclass(frozen=True)
class DeterministicConfig(EvalSeedConfig):
    """A run that PyTorch can be made to reproduce exactly."""

    # Refuse operations that are not deterministic, in PyTorch; no effect in JAX
    deterministic_torch: bool = False


@dataclass(frozen=True)
class EpochsConfig(RunConfig):
    """A run whose updates CORL counts in epochs."""

    # Updates in an epoch, the unit of CORL's num_epochs and eval_every
    num_updates_on_epoch: int = bounded(1000, low=1)

    CORL_EPOCHS: ClassVar[dict[str, str]] = {"num_epochs": "max_timesteps", "eval_every": "eval_freq"}


@dataclass(frozen=True)
class EnsembleConfig(DeterministicConfig, EpochsConfig, TransitionsConfig):
    """A run of an algorithm with many critics."""

    # Dataset: mini/pendulum-replay, a D4RL id, minari:NAME, ogbench:NAME, or a file
    env: str = "mini/pendulum-replay"
    buffer_size: int = bounded(1_000_000, low=1)
    seed: int = bounded(10, low=0, high=2**32 - 1)
    # Updates between two records in CORL; no effect here, where log_freq decides; kept so that CORL's files load
    log_every: int = bounded(100, low=1)
