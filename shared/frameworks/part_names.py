"""The names of a state's parts: the one that each has in every file here, and how others and older versions spell it.

Checkpoints from before a renaming are loaded, and a file that somebody has `corl-twins check` look at may use any
spelling. PyTorch's checkpoints keep the keys of CORL's, which the twins' `parts` list.
"""

from collections.abc import Collection, Container, Mapping
from typing import TypeVar

T = TypeVar("T")

_SPELLINGS = {
    "critic": ("critics", "qf"),
    "critic_target": ("q_target",),
    "critic_1": ("critic1", "qf1", "q1"),
    "critic_2": ("critic2", "qf2", "q2"),
    "value": ("vf",),
    "log_temperature": ("log_temp", "log_alpha"),
}


def spellings(part: str) -> list[str]:
    """What a part, such as `critic`, `critic_target` or `critic_optimizer`, may be called besides."""
    network, _, kind = part.rpartition("_")
    if kind == "optimizer":
        return [f"{other}_optimizer" for other in spellings(network)]
    found = list(_SPELLINGS.get(part, ()))
    if kind == "target":
        found.append(f"target_{network}")
        found += [name for other in spellings(network) for name in (f"{other}_target", f"target_{other}")]
    return found


def spelling_of(part: str, names: Container[str], parts: Collection[str]) -> str:
    """What a part is called among names: its own name, another spelling of it, or its own where there is neither.

    A spelling that is itself one of the parts means that one: BEAR's `log_alpha` is not its temperature.

    Args:
        part: Such as `critic`.
        names: Those that there are.
        parts: All of the state's parts.
    """
    known = [part, *(other for other in spellings(part) if other not in parts)]
    return next((name for name in known if name in names), part)


def by_part(named: Mapping[str, T], parts: Collection[str]) -> dict[str, T]:
    """A state's parts by the names that they have here, from other spellings; what is no part keeps its name."""
    houses = {spelling_of(part, named, parts): part for part in parts}
    return {houses.get(name, name): value for name, value in named.items()}
