"""The names of datasets: D4RL's, bundled, Minari's and files of one's own; and what D4RL says of its own."""

import difflib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from shared.errors import InputError

BUNDLED = Path(__file__).resolve().parent.parent / "datasets"

D4RL_FACTS = json.loads(Path(__file__).with_name("d4rl_infos.json").read_text())
_FILE_SUFFIXES = (".hdf5", ".h5")
MINARI = "minari:"  # what the names of Minari's datasets begin with here

ROBOTS = ("halfcheetah", "hopper", "walker2d", "ant")
"""What D4RL's locomotion datasets are of; each is an environment `d4rl/<robot>-v2`."""

RECIPES = {
    "random": "a freshly initialised policy",
    "medium": "a policy with about a third of the expert's return",
    "medium-replay": "all that the agent saw until it was that policy",
    "medium-expert": "the medium policy, then the expert",
    "expert": "the best policy",
    "full-replay": "all that the agent saw",
}
"""What each kind of dataset is made of, in D4RL's words for the kinds."""

NAMES = tuple(f"{robot}-{kind}" for robot in ROBOTS for kind in RECIPES)
"""What the command `collect` can make: datasets like D4RL's of these names."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the three known words most like `name`."""
    return f"nearest: {', '.join(difflib.get_close_matches(name, list(known), n=3, cutoff=0.0)) or 'none'}"


def is_file_name(name: str) -> bool:
    """Whether a dataset's name is the path of a file of one's own."""
    return name.endswith(_FILE_SUFFIXES)


def is_known(name: str) -> bool:
    """Whether `name` is a D4RL id, a bundled or Minari's dataset or the path of a file, which need not be there."""
    return name in D4RL_FACTS or name in bundled() or is_file_name(name) or name.startswith(MINARI)


def dataset_path(name: str) -> Path:
    """Finds a dataset's file, and downloads nothing.

    Args:
        name: `mini/...` for a bundled dataset, a D4RL id such as `hopper-medium-v2`, or the path of an `.hdf5` file.

    Raises:
        InputError: The name is unknown, or the file is not where it belongs.
    """
    path = dataset_location(name)
    if not os.path.isfile(path):  # False too of a name that the system does not take
        where = ", or set D4RL_DATASET_DIR to the folder that holds it" if name in D4RL_FACTS else ""
        raise InputError(f"dataset {name!r} is missing: put its file at {path}{where}")
    return path


def dataset_location(name: str) -> Path:
    """Where the file of a dataset of `dataset_path` belongs, whether it is there or not.

    Raises:
        InputError: The name is unknown.
    """
    if is_file_name(name):
        return Path(name)
    if name in D4RL_FACTS:
        return d4rl_folder() / d4rl_file(name)
    if name in bundled():
        return BUNDLED / f"{name}.hdf5"
    raise InputError(
        f"unknown dataset {name!r}; {nearest(name, [*D4RL_FACTS, *bundled()])}, or give the path of an .hdf5 file"
    )


def d4rl_folder() -> Path:
    """Where D4RL's files lie: `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, where the d4rl package puts them too."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets")


def d4rl_file(name: str) -> str:
    """The name of the file of a D4RL id; no two files of D4RL's have the same."""
    return Path(D4RL_FACTS[name]["url_path"]).name


def bundled() -> list[str]:
    """Names of the datasets that are part of the repository."""
    return sorted(path.relative_to(BUNDLED).with_suffix("").as_posix() for path in BUNDLED.glob("mini/*.hdf5"))
