"""Runs somebody's file, and describes the exception that stops it."""

import ast
import sys
import traceback
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import torch

from shared.errors import InputError

# The longest text of an exception's message, which may quote an array
LONGEST = 300


class NotWrittenError(Exception):
    """A function of the file raises NotImplementedError; the exception's message is its name."""


class Ground:
    """Records the modules that a check depends on before a file is run: a file that changes them fakes its verdict."""

    _PACKAGES = ("corl_jax", "corl_torch", "flax", "jax", "numpy", "optax", "parity_tests", "scipy", "shared", "torch")
    # Among other packages' many modules, only those whose functions the check calls most; torch replaces some of its
    # own.
    _CALLED = ("builtins", "jax", "jax.lax", "jax.numpy", "jax.random", "numpy", "numpy.random", "optax")

    def __init__(self) -> None:
        loaded = [name for name in sys.modules if name.partition(".")[0] in (*self._PACKAGES, "builtins")]
        self._modules = {name: sys.modules[name] for name in loaded}
        self._functions = {name: self._called(name) for name in loaded if self._is_called(name)}

    def _is_called(self, name: str) -> bool:
        ours = name.partition(".")[0] in ("corl_jax", "corl_torch", "parity_tests", "shared")
        return ours or name in self._CALLED

    def _called(self, name: str) -> dict[str, Any]:
        return {key: value for key, value in vars(self._modules[name]).items() if callable(value)}

    def check(self, path: Path) -> None:
        """Checks that everything is unchanged.

        Raises:
            InputError: The file has removed a module, replaced a function or left double precision.
        """
        gone = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        changed = [
            f"{name}.{key}"
            for name, functions in self._functions.items()
            for key, value in functions.items()
            # Nothing in the check depends on print.
            if vars(self._modules[name]).get(key) is not value and key != "print"
        ]
        if gone or changed:
            what = f"removes the module {gone[0]}" if gone else f"replaces {changed[0]}"
            raise InputError(f"{path} {what}, on which the check stands: leave it as it is")
        if not jax.enable_x64.value or torch.get_default_dtype() is not torch.float64:
            raise InputError(f"{path} changes the precision, which is double in a check: leave it as it is")


def load_module(path: Path) -> ModuleType:
    """Runs the file, as an import would.

    Raises:
        InputError: The file does not exist, is not a port, or does not run to its end.
    """
    file = path.absolute()
    tree = _parsed(path)
    _check_kind(path, tree)
    module = ModuleType(f"port_{path.stem}")
    module.__file__ = str(file)
    # Dataclasses look up the names in their annotations here.
    sys.modules[module.__name__] = module
    # The file finds its neighbours here, now and when its functions are called.
    sys.path.append(str(file.parent))
    try:
        exec(compile(tree, str(file), "exec"), vars(module))
    except SystemExit:
        raise InputError(f'{path} ends the process: put what runs below `if __name__ == "__main__":`') from None
    except Exception as error:
        raise InputError(f"{path} does not run: {described(error, str(file))}") from None
    return module


def _parsed(path: Path) -> ast.Module:
    give = "give the .py file with your port"
    if not path.exists():
        raise InputError(f"there is no file {path}: {give}")
    if path.is_dir():
        raise InputError(f"{path} is a folder: {give}")
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"{path} is not a Python file: {give}")
    try:
        source = decode_source(path.read_bytes())
    except (UnicodeError, SyntaxError):
        source = "\0"
    if "\0" in source:
        raise InputError(f"{path} holds no text, or none in UTF-8: {give}")
    try:
        return ast.parse(source, str(path))
    except SyntaxError as error:
        raise InputError(f"{path}, line {error.lineno}: {error.msg}: correct the syntax") from None


def _check_kind(path: Path, tree: ast.Module) -> None:
    """Checks that the file may be a port before it is run, because a PyTorch file's imports may not be installed."""
    start = "`corl-twins check --template ALGORITHM` prints a file to start from"
    if all(isinstance(node, ast.Expr) for node in tree.body):
        raise InputError(f"{path} defines nothing: {start}")
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name for node in imports for name in _imported(node)}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    makes = {"create_train_state", "create_trainer"}
    if "torch" in names and not names & {"jax", "flax", "optax"} and not defined & makes:
        raise InputError(
            f"{path} is a PyTorch file, it imports torch and not jax: a port in PyTorch defines create_trainer(config, "
            f"state_dim, action_dim, max_action); for one in JAX, {start}"
        )


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The packages that a statement imports from."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [name.partition(".")[0] for name in names]


def described(error: BaseException, file: str) -> str:
    """Describes an exception in one line, with the last line of the file in its traceback."""
    walked = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in walked if frame.f_code.co_filename == file]
    text = next(iter(str(error).strip().splitlines()), "")
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return f"{type(error).__name__}: {text}".removesuffix(": ") + (f" (line {lines[-1]})" if lines else "")


def unwritten(error: BaseException, file: str) -> str | None:
    """The file's function that itself raises this NotImplementedError; None for any other exception."""
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    # JAX raises it too, for unsupported operations.
    here = isinstance(error, NotImplementedError) and last.f_code.co_filename == file
    return last.f_code.co_qualname if here else None
