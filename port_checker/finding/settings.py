"""Settings as a file reads them: under any of their names, with a record of each access."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from shared.runs.vocabulary import other_names


def understood(kind: type, algorithm: str, own: Any, read: set[str]) -> Callable[[Any], Any]:
    """Returns a function that makes settings answer to other projects' names too.

    Args:
        kind: The reference's dataclass of settings.
        algorithm: The algorithm that the settings belong to.
        own: The file's class of settings, if any; its defaults apply if the reference has no such setting.
        read: Collects the names of the settings that are read.
    """
    others = other_names([field.name for field in fields(kind)], algorithm)

    class Settings(kind):
        # A comparison of all fields would count as reading each of them.
        __eq__, __hash__ = object.__eq__, object.__hash__

        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

        def __getattr__(self, name: str) -> Any:
            if name in others:
                return getattr(self, others[name])
            if not name.startswith("__") and hasattr(own, name):
                return getattr(own, name)
            raise AttributeError(f"{algorithm} has no setting {name!r}")

    @cache
    def settings(config: Any) -> Any:
        found = object.__new__(Settings)
        object.__getattribute__(found, "__dict__").update(vars(config))
        return found

    return settings
