"""Reads pickles of NumPy's arrays in lists and dictionaries, and nothing else.

A pickle may name any function of any package and have it called. Here only those are found that build arrays.
"""

import io
import pickle
from typing import Any

_ALLOWED = {
    "builtins": {"bool", "bytearray", "bytes", "complex", "dict", "float", "int", "list", "set", "str", "tuple"},
    "_codecs": {"encode"},  # how older protocols write bytes
    "collections": {"OrderedDict"},
    "numpy": {"ndarray", "dtype"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
}
_ALLOWED["__builtin__"] = _ALLOWED["builtins"]  # as protocols that Python 2 knew call it
# NumPy before its version 2 called these modules differently.
_ALLOWED |= {name.replace("_core", "core"): found for name, found in _ALLOWED.items() if "_core" in name}


class RefusedError(ValueError):
    """A pickle names something else than what builds arrays."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Allows only the classes that build arrays, lists and dictionaries.

        Raises:
            RefusedError: It is something else.
        """
        if name not in _ALLOWED.get(module, ()):
            raise RefusedError(f"it names {module}.{name}, and only NumPy's arrays in lists and dictionaries are read")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def load(stream: io.BufferedIOBase) -> Any:
    """The object of a pickle.

    Raises:
        RefusedError: It is made of more than arrays, lists, dictionaries and Python's plain values.
        Exception: Whatever a damaged pickle makes Python raise.
    """
    return _Unpickler(stream).load()
