"""The names of a state's parts, and the spellings that older versions and other projects use for them.

Because of this table, checkpoints from before a renaming still load, and a file that you pass to `corl-twins check` may
use any of the spellings. PyTorch's checkpoints keep CORL's keys, which each twin's `parts` lists.
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
    """Other spellings of a part, such as `critic`, `critic_target` or `critic_optimizer`."""
    network, _, kind = part.rpartition("_")
    if kind == "optimizer":
        return [f"{other}_optimizer" for other in spellings(network)]
    found = list(_SPELLINGS.get(part, ()))
    if kind == "target":
        found.append(f"target_{network}")
        found += [name for other in spellings(network) for name in (f"{other}_target", f"target_{other}")]
    return found


def spelling_of(part: str, names: Container[str], parts: Collection[str]) -> str:
    """The name under which a collection of names lists a part; defaults to the part's own name.

    If a spelling is itself the name of another part, it means that part: BEAR's `log_alpha` is not its temperature.

    Args:
        part: For example `critic`.
        names: The names to search.
        parts: All parts of the state.
    """
    known = [part, *(other for other in spellings(part) if other not in parts)]
    return next((name for name in known if name in names), part)


def by_part(named: Mapping[str, T], parts: Collection[str]) -> dict[str, T]:
    """Renames a state's parts from any spelling to this project's names; everything else keeps its name."""
    ours = {spelling_of(part, named, parts): part for part in parts}
    return {ours.get(name, name): value for name, value in named.items()}
