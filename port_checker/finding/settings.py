"""Settings as a file reads them: by any of their names, each reading noted."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from shared.runs.vocabulary import other_names


def understood(kind: type, algorithm: str, own: Any, read: set[str]) -> Callable[[Any], Any]:
    """What makes a reference's settings a config that answers to other projects' names, too.

    Args:
        kind: The reference's dataclass of settings.
        algorithm: Whose settings these are.
        own: The file's class of settings, if it has one: its defaults hold where the reference has no such setting.
        read: Where the names of those that are read are noted.
    """
    others = other_names([field.name for field in fields(kind)], algorithm)

    class Settings(kind):
        # By all of its fields each of them would be read.
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
