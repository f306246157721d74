"""The names of datasets: D4RL's, bundled, Minari's, OGBench's and users' own files; and D4RL's facts about its own."""

import difflib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from shared.errors import InputError
from shared.files import home

BUNDLED = Path(__file__).resolve().parent.parent / "datasets"

D4RL_FACTS = json.loads(Path(__file__).with_name("d4rl_infos.json").read_text())
_FILE_SUFFIXES = (".hdf5", ".h5")
# Further formats that the command `datasets import` reads
NUMPYS = (".npz", ".npy")
PICKLES = (".pkl", ".pickle")
MINARI = "minari:"  # prefix of Minari's datasets
OGBENCH = "ogbench:"  # prefix of OGBench's datasets
OGBENCH_ENVS = "ogbench/"  # prefix of OGBench's environments
ARRAYS = "arrays:"  # prefix of datasets that a Python program provides as arrays

_NAVIGATION, _MANIPULATION = ("navigate", "stitch"), ("play", "noisy")
OGBENCH_SETS = {
    **dict.fromkeys(("pointmaze-medium", "pointmaze-large", "pointmaze-giant", "pointmaze-teleport"), _NAVIGATION),
    **dict.fromkeys(("antmaze-medium", "antmaze-large", "antmaze-teleport"), (*_NAVIGATION, "explore")),
    **dict.fromkeys(("antmaze-giant", "antsoccer-arena", "antsoccer-medium"), _NAVIGATION),
    **dict.fromkeys(("humanoidmaze-medium", "humanoidmaze-large", "humanoidmaze-giant"), _NAVIGATION),
    **dict.fromkeys(("cube-single", "cube-double", "cube-triple", "cube-quadruple", "scene"), _MANIPULATION),
    **dict.fromkeys(("puzzle-3x3", "puzzle-4x4", "puzzle-4x5", "puzzle-4x6"), _MANIPULATION),
}
"""OGBench's environments with states, and the kinds of data for each."""

OGBENCH_TASKS = ("", "-task1", "-task2", "-task3", "-task4", "-task5")
"""The endings that name a single OGBench task; without a number it is the environment's default task."""

ATARI_GAMES = (
    "air-raid", "alien", "amidar", "assault", "asterix", "asteroids", "atlantis", "bank-heist", "battle-zone",
    "beam-rider", "berzerk", "bowling", "boxing", "breakout", "carnival", "centipede", "chopper-command",
    "crazy-climber", "demon-attack", "double-dunk", "elevator-action", "enduro", "fishing-derby", "freeway",
    "frostbite", "gopher", "gravitar", "hero", "ice-hockey", "jamesbond", "journey-escape", "kangaroo", "krull",
    "kung-fu-master", "montezuma-revenge", "ms-pacman", "name-this-game", "phoenix", "pitfall", "pong", "pooyan",
    "private-eye", "qbert", "riverraid", "road-runner", "robotank", "seaquest", "skiing", "solaris", "space-invaders",
    "star-gunner", "tennis", "time-pilot", "tutankham", "up-n-down", "venture", "video-pinball", "wizard-of-wor",
    "yars-revenge", "zaxxon",
)  # fmt: skip
"""The games of D4RL-Atari's datasets, from the DQN replay logs, as d4rl-atari spells them."""

_ATARI_EPOCHS = {"mixed": 1, "medium": 10, "expert": 50}
_ATARI_NAME = re.compile(
    r"(?P<game>[a-z-]+)-(?:(?P<kind>mixed|medium|expert)|epoch-(?P<epoch>[1-9]\d?))-v(?P<run>[0-4])"
)
_LAST_EPOCH = 50
OWN_FILE = "for a file of your own, give its path, which ends in .hdf5"
"""The end of the message about an unknown dataset."""
# The least similarity, from 0 to 1, of names that are suggested for an unknown one
_SIMILAR = 0.4
# The largest number of names that a message lists if none is similar
_FEW = 12

ROBOTS = ("halfcheetah", "hopper", "walker2d", "ant")
"""The robots of D4RL's locomotion datasets; each is an environment `d4rl/<robot>-v2`."""

RECIPES = {
    "random": "a freshly initialised policy",
    "medium": "a policy with about a third of the expert's return",
    "medium-replay": "all that the agent saw until it was that policy",
    "medium-expert": "the medium policy, then the expert",
    "expert": "the best policy",
    "full-replay": "all that the agent saw",
}
"""The recipe of each kind of dataset, under D4RL's name for the kind."""

NAMES = tuple(f"{robot}-{kind}" for robot in ROBOTS for kind in RECIPES)
"""The datasets that the command `collect` can make, named after D4RL's."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with up to three known names that are similar to `name`."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=_SIMILAR)
    if not close and 0 < len(known) <= _FEW:
        return f"choose one of {', '.join(known)}"
    return f"nearest: {', '.join(close)}" if close else "no known name is similar"


def has_published_results(name: str) -> bool:
    """Whether a dataset's results are compared with CORL's: D4RL's names, and the bundled robots' datasets.

    For these, CORL's own cuts of episodes, prompts and scales apply, even if they fit badly.
    """
    family = name.removeprefix("mini/").partition("-")[0]
    return name in D4RL_FACTS or (family in ROBOTS and name in bundled())


def is_file_name(name: str) -> bool:
    """Whether a dataset's name is the path of a user's own file."""
    return name.endswith(_FILE_SUFFIXES)


def is_own(name: str) -> bool:
    """Whether a dataset is the user's own, a file or arrays, so that its name says nothing about its environment."""
    return is_file_name(name) or name.startswith(ARRAYS)


def check_imported(name: str) -> None:
    """Checks that a dataset is not in a format that must first be converted to an HDF5 file.

    Raises:
        InputError: It is in such a format.
    """
    if Path(name).suffix in (*NUMPYS, *PICKLES) or (os.path.isdir(name) and name not in D4RL_FACTS):
        raise InputError(f"{name} is no HDF5 file: `corl-twins datasets import {name} OUT.hdf5` makes one of it")


def is_known(name: str) -> bool:
    """Whether `name` is a D4RL id, a bundled, D4RL-Atari's, Minari's or OGBench's dataset, arrays, or a file's path.

    The dataset need not exist on this machine.
    """
    hosted = name in D4RL_FACTS or is_atari(name) or name.startswith((MINARI, OGBENCH))
    return hosted or name in bundled() or is_own(name)


def is_atari(name: str) -> bool:
    """Whether `name` is one of D4RL-Atari's datasets, such as `breakout-mixed-v0` or `pong-epoch-7-v2`."""
    found = _ATARI_NAME.fullmatch(name)
    return found is not None and found["game"] in ATARI_GAMES and int(found["epoch"] or 1) <= _LAST_EPOCH


def atari_folder(name: str) -> Path:
    """The folder for the files of a D4RL-Atari dataset, which need not exist; it is next to D4RL's own files.

    The folder is `<Game>/<run>/<epoch>`. Versions count runs from 0, folders from 1.
    """
    found = _ATARI_NAME.fullmatch(name)
    assert found is not None, "is_atari was asked"
    game = "".join(word.capitalize() for word in found["game"].split("-"))
    epoch = found["epoch"] or str(_ATARI_EPOCHS[found["kind"]])
    return d4rl_folder() / game / str(int(found["run"]) + 1) / epoch


class OGBenchSet(NamedTuple):
    """An OGBench dataset: its file, its environment, and whether it has goals in place of a single task's rewards."""

    file: str
    env_id: str
    has_goals: bool


def _ogbench_sets() -> dict[str, OGBenchSet]:
    return {
        f"{OGBENCH}{env}-{kind}{task}-v0": OGBenchSet(
            f"{env}-{kind}-v0.npz", f"{OGBENCH_ENVS}{env}{task}-v0", has_goals=not task
        )
        for env, kinds in OGBENCH_SETS.items()
        for kind in kinds
        for task in ("", *(f"-singletask{task}" for task in OGBENCH_TASKS))
    }


def ogbench_set(name: str) -> OGBenchSet:
    """Parses the name of an OGBench dataset with states.

    Args:
        name: For example `ogbench:cube-single-play-v0` for its goals, or `ogbench:cube-single-play-singletask-task1-v0`
            for the rewards of one task.

    Raises:
        InputError: OGBench has no such dataset with states.
    """
    known = _ogbench_sets()
    if name not in known:
        raise InputError(f"{name!r} is no dataset of OGBench's with states; {nearest(name, known)}")
    return known[name]


def ogbench_path(name: str) -> Path:
    """The path of the file of an OGBench dataset, which need not exist: where the package looks for it.

    Raises:
        InputError: As for `ogbench_set`.
    """
    return home() / ".ogbench" / "data" / ogbench_set(name).file


def row_name(name: str) -> str:
    """The dataset whose row of settings applies: for OGBench's tasks, the name without their number."""
    return re.sub(r"-task[1-5]-v0$", "-v0", name) if name.startswith(OGBENCH) else name


def dataset_path(name: str) -> Path:
    """Finds a dataset's file, without downloading it.

    Args:
        name: `mini/...` for a bundled dataset, a D4RL id such as `hopper-medium-v2`, or the path of an `.hdf5` file.

    Raises:
        InputError: The name is unknown, or the file is missing.
    """
    path = dataset_location(name)
    if not os.path.isfile(path):  # also for names that the system does not allow
        if is_file_name(name):
            what = "is a folder: name a file in it" if os.path.isdir(path) else "does not exist: check its path"
            raise InputError(f"the dataset {name!r} {what}")
        where = ", or set D4RL_DATASET_DIR to the folder that holds it" if name in D4RL_FACTS else ""
        raise InputError(f"dataset {name!r} is missing: put its file at {path}{where}")
    return path


def dataset_location(name: str) -> Path:
    """The path of the file for a name that `dataset_path` accepts; the file need not exist.

    Raises:
        InputError: The name is unknown.
    """
    if is_file_name(name):
        return Path(name)
    if name in D4RL_FACTS:
        return d4rl_folder() / d4rl_file(name)
    if name in bundled():
        return BUNDLED / f"{name}.hdf5"
    check_imported(name)
    known = [*D4RL_FACTS, *bundled(), *(f"{game}-mixed-v0" for game in ATARI_GAMES)]
    raise InputError(f"unknown dataset {name!r}; {nearest(name, known)}; {OWN_FILE}")


def d4rl_folder() -> Path:
    """The folder of D4RL's files: `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, as in the d4rl package."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or home() / ".d4rl" / "datasets")


def d4rl_file(name: str) -> str:
    """The name of a D4RL dataset's file; no two datasets share one."""
    return Path(D4RL_FACTS[name]["url_path"]).name


def bundled() -> list[str]:
    """The names of the datasets in the repository."""
    return sorted(path.relative_to(BUNDLED).with_suffix("").as_posix() for path in BUNDLED.glob("mini/*.hdf5"))
