"""Facts about environments and datasets, in one table that is searched for whole names only.

A name that contains a known robot's name does not match: an InvertedPendulum is not a pen, and a Plant is not an ant.
Names without a row have no rule, scores or time limit here; code that needs one raises an error with advice.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from shared.envs import robotics, silhouettes, terminations
from shared.envs.terminations import Terminated
from shared.errors import InputError, reason
from shared.modules import function_of
from shared.names import D4RL_FACTS, OGBENCH_ENVS, OGBENCH_SETS, OGBENCH_TASKS, ROBOTS

NO_TERMINATION = "none"
"""The value of the setting `termination` with which no state ends an episode."""


class Known(NamedTuple):
    """The facts about an environment or a dataset.

    Attributes:
        family: The name of the family, such as `hopper`.
        terminated: Maps states after a step to whether the episode ends; None if a state does not show it.
        rewards: The kind of rewards, if CORL normalises them. It scales `locomotion` rewards by the range of returns,
            and shifts or multiplies `antmaze` rewards. None leaves them unchanged.
        has_goals: Whether episodes succeed or fail.
        outcome: What scores an episode: its return, or its success.
        bounds: The returns that D4RL counts as 0 and 100; None if it states none.
        max_episode_steps: The time limit; None if there is none, or if it is unknown.
    """

    family: str
    terminated: Terminated | None = None
    rewards: Literal["locomotion", "antmaze"] | None = None
    has_goals: bool = False
    outcome: Literal["return", "success"] = "return"
    bounds: tuple[float, float] | None = None
    max_episode_steps: int | None = None


# D4RL's datasets, by the first word of their names. An antmaze ends at a goal that its states do not show, and a
# kitchen when all of its tasks are done.
_OF_D4RL = {
    "halfcheetah": Known("halfcheetah", terminations.halfcheetah, "locomotion"),
    "hopper": Known("hopper", terminations.hopper, "locomotion"),
    "walker2d": Known("walker2d", terminations.walker2d, "locomotion"),
    "ant": Known("ant", terminations.ant),
    "antmaze": Known("antmaze", rewards="antmaze", has_goals=True),
    "maze2d": Known("maze2d", terminations.never),
    "pen": Known("pen", terminations.pen, has_goals=True),
    "door": Known("door", terminations.never, has_goals=True),
    "hammer": Known("hammer", terminations.never, has_goals=True),
    "relocate": Known("relocate", terminations.never, has_goals=True),
    "kitchen": Known("kitchen"),
}
# Gymnasium's environments, by their names without a version
_OF_MUJOCO = {
    "HalfCheetah": _OF_D4RL["halfcheetah"],
    "Hopper": _OF_D4RL["hopper"],
    "Walker2d": _OF_D4RL["walker2d"],
    "Ant": _OF_D4RL["ant"],
    "Humanoid": Known("humanoid", terminations.humanoid),
    "HumanoidStandup": Known("humanoidstandup", terminations.never),
    "InvertedPendulum": Known("invertedpendulum", terminations.inverted_pendulum),
    "InvertedDoublePendulum": Known("inverteddoublependulum", terminations.inverted_double_pendulum),
    "Swimmer": Known("swimmer", terminations.never),
    "Reacher": Known("reacher", terminations.never),
    "Pusher": Known("pusher", terminations.never),
}
_MUJOCO_VERSIONS = ("v2", "v3", "v4", "v5")
_OF_CLASSIC_CONTROL = {
    "Pendulum-v1": Known("pendulum", terminations.never),
    "MountainCarContinuous-v0": Known("mountaincar", terminations.mountain_car),
}
# Gymnasium-Robotics' hands, which no state ends. Its pen is left out: success ends it, which states do not show.
_OF_ADROIT = {
    f"AdroitHand{task}{kind}-v{version}": Known(f"adroithand{task.lower()}", terminations.never)
    for task in ("Door", "Hammer", "Relocate")
    for kind in ("", "Sparse")
    for version in (1, 2)
}
_OF_OGBENCH = Known("ogbench", has_goals=True, outcome="success")


def _rows() -> Iterator[tuple[str, Known]]:
    """Yields names and their facts. Gymnasium's registry has the time limits of its own environments."""
    for name, info in D4RL_FACTS.items():
        bounds = info["ref_min_score"], info["ref_max_score"]
        facts = _OF_D4RL[name.partition("-")[0]]
        facts = facts._replace(bounds=bounds, max_episode_steps=info["max_episode_steps"])
        yield name, facts
        yield f"gym/{name}", facts
        if (env_id := env_like(name)) is not None:
            yield env_id, facts
        if env_id is not None and (shown := silhouettes.shown(env_id)) in silhouettes.ENVS:
            yield shown, facts._replace(terminated=None)  # the function needs states
    for robot, facts in _OF_MUJOCO.items():
        yield from ((f"{robot}-{version}", facts) for version in _MUJOCO_VERSIONS)
    yield from _OF_CLASSIC_CONTROL.items()
    yield from _OF_ADROIT.items()
    for env in OGBENCH_SETS:
        yield f"{OGBENCH_ENVS}{env}-v0", _OF_OGBENCH
        yield from ((f"{OGBENCH_ENVS}{env}-singletask{task}-v0", _OF_OGBENCH) for task in OGBENCH_TASKS)


def env_like(dataset_id: str) -> str | None:
    """Our environment whose states and rewards match one of D4RL's datasets, or None."""
    robot = dataset_id.partition("-")[0]
    return f"d4rl/{robot}-v2" if robot in ROBOTS else robotics.ENV_OF.get(dataset_id)


TABLE = MappingProxyType(dict(_rows()))
"""The facts by the name of an environment or of one of D4RL's datasets."""


def known(name: str) -> Known | None:
    """The facts about an environment (`module:Id` works too) or about one of D4RL's datasets; None if it is unknown."""
    return TABLE.get(name, TABLE.get(name.rpartition(":")[2]))


def termination(env_id: str, given: str = "") -> Terminated:
    """The function that maps an environment's states to whether the episode ends there.

    Args:
        env_id: The environment.
        given: The setting `termination`: `none` if no state ends an episode, or `module:function`; empty to use the
            table.

    Raises:
        InputError: The table has no function, or the given one does not exist.
    """
    if given == NO_TERMINATION:
        return terminations.never
    if given:
        return function_of(given, "termination")
    facts = known(env_id)
    if facts is None or facts.terminated is None:
        raise InputError(
            f"nothing tells from a state of {env_id!r} whether its episode ends: set termination to none if only a "
            "time limit ends it, or to module:function, which maps states (..., S) to booleans (...)"
        )
    return facts.terminated


def check_termination(terminated: Terminated, states: np.ndarray) -> None:
    """Checks that a termination function works for the states (N, S) of a dataset.

    Raises:
        InputError: It raises an error, or does not map two states (2, S) to booleans (2,).
    """
    try:
        found = np.asarray(terminated(states[:2]))
    except Exception as error:  # a user's function may raise anything
        raise InputError(f"termination cannot read states of size {states.shape[1]} ({reason(error)})") from error
    if found.dtype != np.bool_ or found.shape != (len(states[:2]),):
        raise InputError(
            f"termination maps states {states[:2].shape} to {found.dtype} {found.shape}: let it return a boolean for "
            "each state"
        )
