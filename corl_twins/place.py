"""The place of the project's modules: next to this package in a clone, inside it in an installed package."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "house"
ROOT = _INSTALLED if _INSTALLED.is_dir() else _HERE.parent


def enter() -> None:
    """Puts the project's modules first on the import path.

    A wheel contains them inside this package, so that `shared` and their other general names are in nobody's way before
    they are needed.

    Raises:
        ImportError: The program has already imported another module named `shared`.
    """
    loaded = sys.modules.get("shared")
    if loaded is not None and ROOT not in Path(loaded.__file__ or "/").resolve().parents:
        raise ImportError(f"corl_twins needs the name `shared`, which {loaded.__file__} has taken: rename that module")
    if sys.path[:1] != [str(ROOT)]:
        sys.path.insert(0, str(ROOT))
