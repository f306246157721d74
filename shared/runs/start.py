"""The first import of a twin's file, before any package, so that Ctrl-C works from the start.

Loading the frameworks takes seconds. If such a file is the program, Ctrl-C ends the process at once from here on.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.interrupts import end_at_once

_TWINS = [Path(__file__).resolve().parents[2] / f"corl_{framework}" for framework in ("torch", "jax")]


def cli(train: Callable[[Any], Any], config_class: type, algorithm: str) -> None:
    """Runs `train` with the config of the command line; imports `shared.runs.configs.cli` only when it is called."""
    from shared.runs import configs

    configs.cli(train, config_class, algorithm)


def _is_twin(file: str | None) -> bool:
    return file is not None and any(folder in Path(file).resolve().parents for folder in _TWINS)


if _is_twin(getattr(sys.modules["__main__"], "__file__", None)):
    end_at_once()
