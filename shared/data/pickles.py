"""Reads pickles that consist of NumPy arrays in lists and dictionaries, and refuses all others.

A pickle can call any function of any package. Here, only functions that build arrays are allowed.
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
_ALLOWED["__builtin__"] = _ALLOWED["builtins"]  # the name in protocols of Python 2
# Names of these modules before NumPy 2
_ALLOWED |= {name.replace("_core", "core"): found for name, found in _ALLOWED.items() if "_core" in name}


class RefusedError(ValueError):
    """A pickle names something other than what builds arrays."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Allows only the classes that build arrays, lists and dictionaries.

        Raises:
            RefusedError: The pickle names something else.
        """
        if name not in _ALLOWED.get(module, ()):
            raise RefusedError(f"it names {module}.{name}, and only NumPy's arrays in lists and dictionaries are read")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def load(stream: io.BufferedIOBase) -> Any:
    """Reads the object in a pickle.

    Raises:
        RefusedError: It consists of more than arrays, lists, dictionaries and Python's plain values.
        Exception: Whatever a damaged pickle makes Python raise.
    """
    return _Unpickler(stream).load()
