"""`corl-twins collect hopper-medium` makes a dataset like D4RL's of that name, with an agent trained here."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from tqdm import tqdm

from shared.commands.collecting.choosing import Snapshot, choose_policies
from shared.commands.collecting.recording import Recorder, described, joined, returns_of, split, spread
from shared.commands.collecting.training import train
from shared.commands.collecting.writing import write_hdf5, write_minari
from shared.commands.common import Parser, at_least
from shared.data.experience import Rows, load_rows
from shared.envs.registry import fingerprint, make_env
from shared.errors import InputError, Stopped
from shared.frameworks.twins import load_twin
from shared.names import NAMES, RECIPES, nearest

_ALGORITHM = "sac"
_OF_FRAMEWORK = {"torch": ("torch",), "jax": ("jax", "jaxlib")}
_PACKAGES = ("mujoco", "gymnasium", "numpy")
_SIZE = 25_000
_LICENCE = "Apache-2.0"
# Settings of the training that are options here, with what made the bundled sets, which is quick rather than best
_TRAINING = {
    "steps": ("max_timesteps", 150_000, "environment steps of training, and about as many updates"),
    "random_steps": ("random_steps", 5_000, "steps of uniform actions before learning begins"),
    "batch_size": ("batch_size", 128, "transitions of one update"),
    "hidden_dim": ("hidden_dim", 128, "width of the networks"),
    "eval_freq": ("eval_freq", 5_000, "steps between two policies to choose from"),
}
# Options that do not decide what the dataset holds
_PLACES = ("output", "work_dir")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; `--help` explains it.

    Raises:
        InputError: It cannot be used.
    """
    parser = Parser(
        prog="corl-twins collect",
        description="Trains soft actor-critic in one of the environments that step as D4RL's did, and writes a dataset "
        "by the recipe of D4RL's set of that name: " + "; ".join(f"{kind}: {what}" for kind, what in RECIPES.items()),
    )
    parser.add_argument("name", metavar="NAME", help="such as hopper-medium: halfcheetah, hopper, walker2d or ant")
    parser.add_argument(
        "--size",
        type=at_least(1),
        metavar="N",
        help=f"rows of each policy that D4RL's reader keeps (default: {_SIZE:,}); of a replay, rows at most, in whole "
        "episodes spread over it (default: all)",
    )
    parser.add_argument("--framework", choices=_OF_FRAMEWORK, default="jax", help="which twin trains (default: jax)")
    parser.add_argument("--format", choices=("hdf5", "minari"), default="hdf5", help="D4RL's or Minari's layout")
    parser.add_argument(
        "--compact", action="store_true", help="leave out what D4RL's reader does not use: next states, infos"
    )
    parser.add_argument("--output", help="file to write (default: NAME.hdf5), or Minari's name for the set")
    parser.add_argument(
        "--work_dir",
        type=Path,
        help="keeps training and episodes: a collection that was cut goes on from there, another of the same robot "
        "trains no more (default: runs/collect/ROBOT-sSEED-FRAMEWORK)",
    )
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="decides everything (default: 0)")
    for name, (_, default, meaning) in _TRAINING.items():
        words = f"{meaning} (default: {default:,})"
        parser.add_argument(f"--{name}", type=at_least(1), default=default, metavar="N", help=words)
    options = parser.parse_args(arguments)
    if options.name not in NAMES:
        raise InputError(f"cannot collect {options.name!r}; {nearest(options.name, NAMES)}")
    options.robot, _, options.kind = options.name.partition("-")
    options.work_dir = options.work_dir or Path(f"runs/collect/{options.robot}-s{options.seed}-{options.framework}")
    minari_name = f"collected/{options.robot}/{options.kind}-v0"
    options.output = options.output or (minari_name if options.format == "minari" else f"{options.name}.hdf5")
    return options


class Collection:
    """One robot's training, as far as it is needed, and what is recorded of its policies."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Trains nothing yet."""
        self._options, self._folder = options, options.work_dir
        self._twin: ModuleType = load_twin(options.framework, _ALGORITHM)
        self.env_id = f"d4rl/{options.robot}-v2"
        settings = {setting: getattr(options, name) for name, (setting, *_) in _TRAINING.items()}
        # Policies are rated by their own episodes here, so the run's evaluation can be short.
        self._config: Any = self._twin.TrainConfig(env=self.env_id, seed=options.seed, n_episodes=1, **settings)
        self._paths: dict[int, Path] = {}

    def make(self) -> dict[str, tuple[list[Rows], dict[str, Any]]]:
        """The dataset: the episodes of each of its parts, and what there is to say about them.

        Raises:
            InputError: Training is too short to leave two policies to choose from, or `work_dir` holds another.
        """
        kind = self._options.kind
        if kind == "random":
            return {kind: self._recorded("random", 0)}
        if self._config.max_timesteps < 2 * self._config.eval_freq:
            raise InputError("training would leave fewer than 2 policies; raise --steps or lower --eval_freq")
        self._paths = train(self._twin, self._config, self._folder)
        if kind == "full-replay":
            return {"replay": self._replay(max(self._paths))}
        # A bar redrawn into a log file would flood it, so there is one on terminals only.
        steps = tqdm(self._paths, desc="rating", unit=" policies", disable=None)
        chosen = choose_policies(steps, self._rate)
        if kind == "medium-replay":
            return {"replay": self._replay(chosen["medium"].step)}
        return {name: self._recorded(name, chosen[name].step) for name in kind.split("-")}

    def _recorder(self, step: int) -> Recorder:
        """Of the policy after some environment steps, 0 for a fresh one."""
        env = make_env(self.env_id)
        observations, actions = env.observation_space, env.action_space
        assert isinstance(observations, gymnasium.spaces.Box)
        assert isinstance(actions, gymnasium.spaces.Box)
        sizes = observations.shape[0], actions.shape[0], float(actions.high[0])
        env.close()
        path = str(self._paths[step]) if step else ""

        def load() -> Callable:
            # By the fields' own names, since config classes are frozen.
            settings = vars(self._config) | {"load_model": path}
            return self._twin.load_policy(type(self._config)(**settings), *sizes)

        seed = int(np.random.SeedSequence([self._options.seed, step]).generate_state(1)[0])
        return Recorder(self.env_id, load, seed, self._folder / "episodes" / str(step))

    def _rate(self, step: int, parts: int) -> Snapshot:
        recorder = self._recorder(step)
        episodes = [episode for number in range(parts) for episode in recorder.part(number)]
        falls = [bool(episode.terminals.any()) for episode in episodes]
        return Snapshot(step, float(returns_of(episodes).mean()), float(np.mean(falls)))

    def _recorded(self, name: str, step: int) -> tuple[list[Rows], dict[str, Any]]:
        recorder = self._recorder(step)
        episodes = recorder.record(self._options.size or _SIZE, name)
        return episodes, {"training_steps": step, "seed": recorder.seed}

    def _replay(self, step: int) -> tuple[list[Rows], dict[str, Any]]:
        episodes = split(load_rows(self._paths[step].parent, step, Rows))
        return spread(episodes, self._options.size or step), {"training_steps": step, "seed": self._options.seed}


def collect(options: argparse.Namespace) -> None:
    """Makes the dataset, writes it and prints what there is to say about it.

    Raises:
        InputError: As `Collection.make` and the writers.
    """
    collection = Collection(options)
    parts = collection.make()
    attributes = _provenance(collection.env_id, options)
    for name, (episodes, facts) in parts.items():
        told = described([episode.rewards for episode in episodes])
        attributes |= {f"{name}_{fact}": value for fact, value in (told | facts).items()}
    episodes = [episode for recorded, _ in parts.values() for episode in recorded]
    if options.format == "minari":
        write_minari(options.output, episodes, attributes)
    else:
        write_hdf5(Path(options.output), episodes, attributes, options.compact)
    for name, value in attributes.items():
        print(f"{name}: {value}")
    print(f"{options.output}: {len(joined(episodes).rewards):,} rows in {len(episodes):,} episodes")


def _provenance(env_id: str, options: argparse.Namespace) -> dict[str, Any]:
    """What there is to say about the dataset that does not depend on the policies."""
    env = make_env(env_id)
    facts = fingerprint(env)
    env.close()
    given = {key: getattr(options, key) for key in ("seed", "framework", "size", *_TRAINING)}
    flags = [part for key, value in given.items() if value is not None for part in (f"--{key}", str(value))]
    flags += ["--compact"] if options.compact else []
    return {
        "env_id": facts["env"],
        "total_mass": facts["total_mass"],
        "algorithm": _ALGORITHM.upper(),
        "policy": "stochastic",
        "command": shlex.join(["corl-twins", "collect", options.name, *flags]),
        "training_seed": options.seed,
        "licence": _LICENCE,
        **{f"{name}_version": version(name) for name in (*_PACKAGES, *_OF_FRAMEWORK[options.framework])},
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status, which says how it was stopped, if it was.

    Raises:
        InputError: What it was given cannot be used.
        OSError: A file cannot be read or written.
        RunError: The training cannot go on.
    """
    try:
        collect(parse_arguments(arguments))
    except KeyboardInterrupt as stop:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return stop.exit_status if isinstance(stop, Stopped) else 130
    return 0
