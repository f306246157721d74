"""The algorithms' files by name.

An algorithm's name is its file's path below `corl_torch` and `corl_jax`: `cql`, `finetune/iql`. SAC is older than its
folder, so checkpoints and tables call it `sac`, but `online/sac` is accepted too.
"""

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from shared.errors import InputError
from shared.names import nearest

ROOT = Path(__file__).resolve().parents[2]
# The frameworks' usual names, by their names in folders
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}
_OLDER_NAMES = {"online/sac": "sac"}


def algorithms(framework: str, root: Path = ROOT) -> dict[str, Path]:
    """A framework's files by the names of their algorithms, sorted."""
    folder = root / f"corl_{framework}"
    names = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("[!_]*.py")}
    return {_OLDER_NAMES.get(name, name): names[name] for name in sorted(names)}


def name_of(framework: str, algorithm: str) -> str:
    """The name of an algorithm in checkpoints and tables.

    Raises:
        InputError: There is no such algorithm.
    """
    files = algorithms(framework)
    name = _OLDER_NAMES.get(algorithm, algorithm)
    if name not in files:
        raise InputError(f"unknown algorithm {algorithm!r}; {nearest(algorithm, files)}")
    return name


def path_of(framework: str, algorithm: str) -> Path:
    """The file of a twin.

    Raises:
        InputError: As for `name_of`.
    """
    return algorithms(framework)[name_of(framework, algorithm)]


def page_of(algorithm: str) -> str:
    """The name of an algorithm's page; all pages are in one folder, `docs/algorithms`."""
    return algorithm.replace("/", "_")


@cache
def load_twin(framework: str, algorithm: str) -> ModuleType:
    """Imports the module of a twin.

    Raises:
        InputError: As for `name_of`.
    """
    return importlib.import_module(".".join(path_of(framework, algorithm).relative_to(ROOT).with_suffix("").parts))


def acting(state: Any) -> Any:
    """The first argument of a twin's `policy` and `act`: the actor, a sequence model, or several networks."""
    return next(getattr(state, name) for name in ("acting", "actor", "model") if hasattr(state, name))
