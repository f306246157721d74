"""Modules of the user's own that a setting names: installed, on PYTHONPATH, or in the current folder."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from shared.errors import InputError, reason


def module_of(name: str, wanted_by: str) -> ModuleType:
    """Imports a module; the current folder is searched last, so that no file in it hides a package.

    Args:
        name: The module's name, such as `myenvs` or `lab.tasks`.
        wanted_by: The user's words that need it, for messages.

    Raises:
        InputError: There is no such module, or it cannot be imported.
    """
    _search_here()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"{wanted_by} needs the module {error.name!r}, which is not here: install it, or put its folder on "
                "PYTHONPATH"
            ) from error
        raise _failed(name, wanted_by, error) from error
    except Exception as error:  # a user's module may raise anything
        raise _failed(name, wanted_by, error) from error


def has_module(name: str) -> bool:
    """Whether there is a module of this name, which is not imported; it contains no dot."""
    _search_here()
    return importlib.util.find_spec(name) is not None


def _search_here() -> None:
    """Lets Python find the current folder's modules too; by default, it looks in the running script's folder."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


def _failed(name: str, wanted_by: str, error: Exception) -> InputError:
    return InputError(
        f"{wanted_by} needs the module {name!r}, which cannot be imported ({type(error).__name__}: {reason(error)})"
    )


def function_of(name: str, setting: str) -> Callable[..., Any]:
    """Imports the function that a setting names as `module:function`.

    Raises:
        InputError: The setting has another format, or there is no such module or function.
    """
    module, _, function = name.partition(":")
    if not (module and function):
        raise InputError(f"{setting} {name!r} is no function: write it as module:function")
    found = getattr(module_of(module, f"{setting} {name!r}"), function, None)
    if not callable(found):
        raise InputError(f"{setting} {name!r}: the module {module!r} has no function {function!r}")
    return found
