"""`corl-twins collect hopper-medium`: makes a dataset like D4RL's of that name, with an agent trained here.

`corl-twins collect pointmaze-medium-navigate` makes one like OGBench's, with a scripted policy.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from shared.commands.collecting import oracles
from shared.commands.collecting.agents import Agent, FiniteDQN, SoftActorCritic
from shared.commands.collecting.choosing import Snapshot, choose_policies
from shared.commands.collecting.recording import Recorder, described, joined, returns_of, split, spread
from shared.commands.collecting.training import train
from shared.commands.collecting.writing import write_arrays, write_hdf5, write_minari
from shared.commands.common import Parser, at_least
from shared.data.experience import Rows, load_rows
from shared.envs.minatar import PREFIX as MINATAR
from shared.envs.registry import fingerprint, is_registered, make_env
from shared.envs.scores import REFERENCES, scale
from shared.envs.spaces import spaces_of
from shared.errors import InputError, Stopped
from shared.frameworks.saved_run import SavedRun
from shared.names import NAMES, RECIPES, ROBOTS, nearest
from shared.runs.actions import action_units

_OF_FRAMEWORK = {"torch": ("torch",), "jax": ("jax", "jaxlib")}
_PACKAGES = ("mujoco", "gymnasium", "numpy")
_SIZE = 25_000
# Rows of a scripted policy, which costs no training
_SCRIPTED_SIZE = 100_000
_LICENCE = "Apache-2.0"
# Options of the training
_TRAINING = {
    "steps": "environment steps of training, and about as many updates",
    "random_steps": "steps before learning begins",
    "batch_size": "transitions of one update",
    "hidden_dim": "width of the networks",
    "eval_freq": "steps between two policies to choose from",
}
# Options of the box of actions
_BOUNDS = {"action_low": "least actions", "action_high": "greatest actions"}
# Parts of random episodes from which the return of random play is estimated
_RANDOM_PARTS = 10


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` explains it.

    Raises:
        InputError: The command line cannot be used.
    """
    parser = Parser(
        prog="corl-twins collect",
        description="Trains an agent and writes a dataset with D4RL's recipe for that kind: "
        + "; ".join(f"{kind}: {what}" for kind, what in RECIPES.items())
        + f". The agent is soft actor-critic, for finite actions DQN, whose defaults are the environment's row in "
        f"configs/{FiniteDQN.algorithm}.yaml. OGBench's scripted policies make {', '.join(oracles.names())}.",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help=f"such as hopper-medium: {', '.join(ROBOTS[:-1])} or {ROBOTS[-1]}, with D4RL's physics; or such as "
        "CartPole-v1-medium: any Gymnasium environment, or your own module:Id-medium",
    )
    parser.add_argument(
        "--size",
        type=at_least(1),
        metavar="N",
        help=f"rows per policy that D4RL's reader keeps (default: {_SIZE:,}); for a replay, maximum of rows, in whole "
        f"episodes spread over it (default: all); for a scripted policy, rows in whole episodes (default: "
        f"{_SCRIPTED_SIZE:,})",
    )
    parser.add_argument("--framework", choices=_OF_FRAMEWORK, default="jax", help="which twin trains (default: jax)")
    parser.add_argument("--format", choices=("hdf5", "minari"), default="hdf5", help="D4RL's or Minari's layout")
    parser.add_argument(
        "--compact", action="store_true", help="leave out everything D4RL's reader ignores: next states, infos"
    )
    parser.add_argument("--output", help="file to write (default: NAME.hdf5), or Minari's name for the set")
    parser.add_argument(
        "--work_dir",
        type=Path,
        help="keeps training and episodes: an interrupted collection resumes from there, and another one doesn't "
        "train again (default: runs/collect/ENVIRONMENT-sSEED-FRAMEWORK)",
    )
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="decides everything (default: 0)")
    for name, meaning in _TRAINING.items():
        words = f"{meaning} (default: {SoftActorCritic.defaults[name]:,})"
        parser.add_argument(f"--{name}", type=at_least(1), metavar="N", help=words)
    for name, meaning in _BOUNDS.items():
        words = f"{meaning}: one number, or one for each component (default: the environment's bounds)"
        parser.add_argument(f"--{name}", type=float, nargs="+", metavar="X", help=words)
    options = parser.parse_args(arguments)
    options.scripted = options.name in oracles.names()
    if options.scripted:
        _check_scripted(options)
        options.output = options.output or f"{options.name}.hdf5"
        return options
    options.env_id, options.kind = _meant(options.name)
    place = options.name.removesuffix(f"-{options.kind}").replace("/", "-").replace(":", "-")
    options.work_dir = options.work_dir or Path(f"runs/collect/{place}-s{options.seed}-{options.framework}")
    default = f"collected/{place}/{options.kind}-v0" if options.format == "minari" else f"{place}-{options.kind}.hdf5"
    options.output = options.output or default
    return options


def _check_scripted(options: argparse.Namespace) -> None:
    """Checks that no options of a training are given for a dataset of a scripted policy.

    Raises:
        InputError: Some are.
    """
    given = [name for name in (*_TRAINING, *_BOUNDS, "work_dir") if getattr(options, name) is not None]
    given += ["format"] if options.format != "hdf5" else []
    if given:
        raise InputError(f"{options.name} is made by a scripted policy, without training: leave out --{given[0]}")


def _meant(name: str) -> tuple[str, str]:
    """Splits a dataset's name into its environment and its kind.

    Raises:
        InputError: There is no such environment or kind.
    """
    kind = max((kind for kind in RECIPES if name.endswith(f"-{kind}")), key=len, default="")
    place = name.removesuffix(f"-{kind}")
    env_id = f"d4rl/{place}-v2" if place in ROBOTS else place
    if not kind or not is_registered(env_id):
        raise InputError(
            f"cannot collect {name!r}; {nearest(name, [*NAMES, *oracles.names()])}, or name an environment of "
            "Gymnasium's and a kind: CartPole-v1-medium"
        )
    return env_id, kind


class Collection:
    """The training in one environment, as far as it is needed, and the recording of its policies."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Prepares the agent, without training.

        Raises:
            InputError: The environment cannot be created here, or its spaces cannot be used.
        """
        self._options, self._folder, self.env_id = options, options.work_dir, options.env_id
        env = make_env(self.env_id)
        state_dim, self.actions = spaces_of(self.env_id, env)
        env.close()
        self._shape = state_dim
        given = {name: value for name in _TRAINING if (value := getattr(options, name)) is not None}
        kind = FiniteDQN if self.actions.finite else SoftActorCritic
        bounds = {name: tuple(value) for name in _BOUNDS if (value := getattr(options, name)) is not None}
        self.agent: Agent = kind(options.framework, self.env_id, options.seed, given, bounds)
        self._paths: dict[int, Path] = {}

    def make(self) -> dict[str, tuple[list[Rows], dict[str, Any]]]:
        """Makes the dataset: for each of its parts, the episodes and their description.

        Raises:
            InputError: Training is too short to leave two policies to choose from, or `work_dir` contains another
                training.
        """
        kind = self._options.kind
        if kind == "random":
            return {kind: self._recorded("random", 0)}
        if self.agent.config.max_timesteps < 2 * self.agent.config.eval_freq:
            raise InputError("training would leave fewer than 2 policies; raise --steps or lower --eval_freq")
        self._paths = train(self.agent.twin, self.agent.algorithm, self.agent.config, self._folder)
        if kind == "full-replay":
            return {"replay": self._replay(max(self._paths))}
        if kind == "medium-replay":
            return {"replay": self._replay(self._chosen["medium"].step)}
        return {name: self._recorded(name, self._chosen[name].step) for name in kind.split("-")}

    def references(self) -> dict[str, float]:
        """The returns of random play and of the expert, if no other returns count as 0 and 100.

        Empty if the expert is no better, or if there is none, because a random dataset needs no training.
        """
        if not self._paths or scale(self.env_id).bounds is not None:
            return {}
        low, high = self._rate(0, _RANDOM_PARTS).return_mean, self._chosen["expert"].return_mean
        return dict(zip(REFERENCES, (low, high), strict=True)) if low < high else {}

    @cached_property
    def _chosen(self) -> dict[str, Snapshot]:
        """The medium policy and the expert."""
        # A bar that is redrawn would flood a log file, so only terminals get one.
        steps = tqdm(self._paths, desc="rating", unit=" policies", disable=None)
        return choose_policies(steps, self._rate)

    def _recorder(self, step: int) -> Recorder:
        """The recorder of the policy after this many environment steps, or of an untrained policy for 0."""
        path = self._paths[step] if step else None
        units = action_units(self.agent.config, self.actions) if path is None else SavedRun.open(path).units
        load = partial(self.agent.acting, path, self._shape, self.actions.size, units.bound)
        seed = int(np.random.SeedSequence([self._options.seed, step]).generate_state(1)[0])
        return Recorder(self.env_id, load, seed, self._folder / "episodes" / str(step), units)

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
    """Makes the dataset, writes it and prints its description.

    Raises:
        InputError: As for `Collection.make` and the writers.
    """
    collection = Collection(options)
    parts = collection.make()
    attributes = _provenance(collection, options) | collection.references()
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


def collect_scripted(options: argparse.Namespace) -> None:
    """Makes a dataset with one of OGBench's scripted policies, writes it and prints its description.

    Raises:
        InputError: OGBench's package is not installed.
    """
    oracle, size = oracles.oracle(options.name), options.size or _SCRIPTED_SIZE
    arrays, reached = oracle.record(size, options.seed)
    command = ["corl-twins", "collect", options.name, "--size", str(size), "--seed", str(options.seed)]
    attributes = {
        "env_id": oracle.env_id,
        "policy": "OGBench's scripted policy",
        "command": shlex.join(command),
        "licence": _LICENCE,
        "goals_reached": reached,
        "random_success": oracles.random_success(oracle.env_id, options.seed),
        **{f"{name}_version": version(name) for name in (*_PACKAGES, "ogbench")},
    }
    write_arrays(Path(options.output), arrays, attributes)
    for name, value in attributes.items():
        print(f"{name}: {value}")
    print(f"{options.output}: {len(arrays['rewards']):,} rows in {int(arrays['timeouts'].sum()):,} episodes")


def _provenance(collection: Collection, options: argparse.Namespace) -> dict[str, Any]:
    """The part of the dataset's description that does not depend on the policies."""
    env = make_env(collection.env_id)
    facts = fingerprint(collection.env_id, env)
    env.close()
    agent, actions = collection.agent, collection.actions
    trained = options.kind != "random"
    told = agent.options if trained else {key: agent.options[key] for key in agent.shaping}
    given = {key: getattr(options, key) for key in ("seed", "framework", "size")} | told
    flags = [part for key, value in given.items() if value is not None for part in (f"--{key}", str(value))]
    flags += [part for key in _BOUNDS if (value := getattr(options, key)) for part in (f"--{key}", *map(str, value))]
    flags += ["--compact"] if options.compact else []
    packages = (*_PACKAGES, *(["minatar"] if facts["env"].startswith(MINATAR) else []))
    return {
        "env_id": facts["env"],
        **({} if facts["total_mass"] is None else {"total_mass": facts["total_mass"]}),
        **({"n_actions": actions.size} if actions.finite else {}),
        **({"algorithm": agent.title} if trained else {}),
        "policy": agent.policy if trained else agent.untrained,
        "command": shlex.join(["corl-twins", "collect", options.name, *flags]),
        **({"training_seed": options.seed, "training_settings": json.dumps(agent.settings)} if trained else {}),
        "licence": _LICENCE,
        **{f"{name}_version": version(name) for name in (*packages, *_OF_FRAMEWORK[options.framework])},
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status, which depends on the signal if a signal stopped it.

    Raises:
        InputError: The command line cannot be used.
        OSError: A file cannot be read or written.
        RunError: The training cannot continue.
    """
    options = parse_arguments(arguments)
    try:
        (collect_scripted if options.scripted else collect)(options)
    except KeyboardInterrupt as stop:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return stop.exit_status if isinstance(stop, Stopped) else 130
    return 0
