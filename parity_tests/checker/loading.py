"""Somebody's file, run, and what it says when it stops."""

import sys
import traceback
from pathlib import Path
from types import ModuleType

from shared.errors import InputError


class NotWrittenError(Exception):
    """A function of the file, whose name this is, raises NotImplementedError."""


def load_module(path: Path) -> ModuleType:
    """Runs the file, as an import would.

    Raises:
        InputError: There is no such file, or it does not run to its end.
    """
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"{path} is not a Python file: give the .py file with your port")
    module = ModuleType(f"port_{path.stem}")
    module.__file__ = str(path)
    # Where dataclasses look up the names in their annotations
    sys.modules[module.__name__] = module
    # Where the file finds its neighbours, now and when its functions are called
    sys.path.append(str(path.parent.resolve()))
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except SyntaxError as error:
        raise InputError(f"{path}, line {error.lineno}: {error.msg}: correct the syntax") from None
    except SystemExit:
        raise InputError(f'{path} ends the process: put what runs below `if __name__ == "__main__":`') from None
    except Exception as error:
        raise InputError(f"{path} does not run: {described(error, str(path))}") from None
    return module


def described(error: Exception, file: str) -> str:
    """An exception in one line, with the last line of the file that was on the way to it."""
    walked = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in walked if frame.f_code.co_filename == file]
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text}".removesuffix(": ") + (f" (line {lines[-1]})" if lines else "")


def unwritten(error: Exception, file: str) -> str | None:
    """The function of the file that raises this NotImplementedError itself; None for any other exception."""
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    # JAX, too, raises it, for what it cannot do.
    here = isinstance(error, NotImplementedError) and last.f_code.co_filename == file
    return last.f_code.co_qualname if here else None
