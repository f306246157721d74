"""The algorithms' files by name.

An algorithm's name is its file's path below `corl_torch` and `corl_jax`: `cql`, `finetune/iql`. SAC is older than its
folder, so checkpoints and tables call it `sac`, but `online/sac` is accepted too.

Any other name is a pair of the user's own, as `corl-twins new --into` writes it: `my_td3` has the files
`my_td3_torch.py` and `my_td3_jax.py`, in the current folder or on PYTHONPATH.
"""

import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from shared.errors import InputError
from shared.modules import has_module, module_of
from shared.names import nearest

ROOT = Path(__file__).resolve().parents[2]
# The frameworks' usual names, by their names in folders
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}
_OLDER_NAMES = {"online/sac": "sac"}
_OWN_NAME = re.compile(r"[a-z][a-z0-9_]*")


def algorithms(framework: str, root: Path = ROOT) -> dict[str, Path]:
    """A framework's files by the names of their algorithms, sorted."""
    folder = root / f"corl_{framework}"
    names = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("[!_]*.py")}
    return {_OLDER_NAMES.get(name, name): names[name] for name in sorted(names)}


def name_of(framework: str, algorithm: str) -> str:
    """The name of one of our algorithms in checkpoints and tables; its family may be left out if no other has the name.

    Raises:
        InputError: There is no such algorithm.
    """
    files = algorithms(framework)
    name = _OLDER_NAMES.get(algorithm, algorithm)
    if name not in files:
        alike = [each for each in files if each.rpartition("/")[2] == name]
        if len(alike) == 1:
            return alike[0]
        raise InputError(f"unknown algorithm {algorithm!r}; {nearest(algorithm, files)}")
    return name


def trainable(framework: str, algorithm: str) -> str:
    """The same for an algorithm of ours or of the user's own.

    Raises:
        InputError: There is no such algorithm.
    """
    is_ours = algorithm in algorithms(framework) or algorithm in _OLDER_NAMES
    if not is_ours and _OWN_NAME.fullmatch(algorithm) and has_module(_own_module(framework, algorithm)):
        return algorithm
    try:
        return name_of(framework, algorithm)
    except InputError as error:
        own = f"if it is your own, call this in the folder of {_own_module(framework, algorithm)}.py"
        raise InputError(f"{error}; {own}") from None


def _own_module(framework: str, algorithm: str) -> str:
    return f"{algorithm}_{framework}"


def path_of(framework: str, algorithm: str) -> Path:
    """The file of one of our twins.

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
        InputError: As for `trainable`, or the user's own twin cannot be imported.
    """
    name = trainable(framework, algorithm)
    if (path := algorithms(framework).get(name)) is None:
        return module_of(_own_module(framework, name), f"algorithm {name!r}")
    return importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def acting(state: Any) -> Any:
    """The first argument of a twin's `policy` and `act`: the actor, a sequence model, or several networks."""
    return next(getattr(state, name) for name in ("acting", "actor", "model") if hasattr(state, name))
