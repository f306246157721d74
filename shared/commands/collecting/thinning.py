"""Removes episodes of some policies from a dataset that was collected here."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shared.commands.collecting.recording import described
from shared.data.transitions import episode_ends
from shared.errors import InputError

_COUNT, _ORDER = "_episodes", "_training_steps"


def thin(
    raw: Mapping[str, np.ndarray], attributes: Mapping[str, Any], kept: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Keeps some episodes of each part in `kept`, evenly spread from the first one on, and all episodes of other parts.

    Args:
        raw: Arrays (N, ...) by their keys: the parts one after the other, those with less training first.
        attributes: The attributes that the collector has written.
        kept: The number of episodes to keep, 1 or more, by the part's name.

    Returns:
        The arrays, and the attributes with each part's new episodes, rows and returns.

    Raises:
        InputError: The dataset has no such part, or it has fewer episodes.
    """
    parts = _parts(attributes)
    if unknown := [name for name in kept if name not in parts]:
        named = f"its parts are {', '.join(parts)}" if parts else "it names none: it was not collected here"
        raise InputError(f"the dataset has no part {', '.join(unknown)}; {named}")
    ends = episode_ends(dict(raw), None) + 1
    if sum(parts.values()) != len(ends):
        raise InputError(f"the dataset has {len(ends)} episodes, its parts {sum(parts.values())}: collect it again")
    episodes = np.split(np.arange(ends[-1]), ends[:-1])
    chosen, facts = [], dict(attributes)
    for name, count in parts.items():
        here, episodes = episodes[:count], episodes[count:]
        number = kept.get(name, count)
        if number > count:
            raise InputError(f"the dataset has {count} episodes of {name}, not {number}; keep fewer")
        some = [here[place * count // number] for place in range(number)]
        facts |= {f"{name}_{fact}": value for fact, value in described([raw["rewards"][rows] for rows in some]).items()}
        chosen += some
    rows = np.concatenate(chosen)
    return {key: values[rows] for key, values in raw.items()}, facts


def _parts(attributes: Mapping[str, Any]) -> dict[str, int]:
    """The number of episodes in each part that the attributes name, with less training first."""
    names = [key.removesuffix(_COUNT) for key in attributes if key.endswith(_COUNT)]
    known = [name for name in names if all(_counts(attributes.get(name + end)) for end in (_COUNT, _ORDER))]
    return {name: attributes[name + _COUNT] for name in sorted(known, key=lambda name: attributes[name + _ORDER])}


def _counts(value: Any) -> bool:
    return isinstance(value, int) and value >= 0
