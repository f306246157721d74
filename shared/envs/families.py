"""Facts about environments and datasets: one table, which is searched for whole names only.

A name that only contains the name of a known robot is not in it: an InvertedPendulum is no pen, and a Plant no ant.
What has no row has no rule, no scores and no time limit here. What needs one of these says so, and how to give it.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from shared.envs import robotics, silhouettes, terminations
from shared.envs.modules import function_of
from shared.envs.terminations import Terminated
from shared.errors import InputError, reason
from shared.names import D4RL_FACTS, OGBENCH_ENVS, OGBENCH_SETS, OGBENCH_TASKS, ROBOTS

NO_TERMINATION = "none"
"""As the setting `termination` says that no state ends an episode."""


class Known(NamedTuple):
    """The facts about an environment or a dataset.

    Attributes:
        family: Such as `hopper`.
        terminated: Whether an episode ends, told from the state after a step; None where a state does not tell it.
        rewards: Whose rewards CORL normalises. It scales those of `locomotion` by the range of returns, and shifts or
            multiplies those of an `antmaze`. None: it leaves them as they are.
        has_goals: Whether an episode succeeds or fails.
        outcome: What scores an episode: its return, or whether it succeeded.
        bounds: D4RL's returns that count as 0 and 100; None: it states none.
        max_episode_steps: The time limit; None: there is none, or nobody says it.
    """

    family: str
    terminated: Terminated | None = None
    rewards: Literal["locomotion", "antmaze"] | None = None
    has_goals: bool = False
    outcome: Literal["return", "success"] = "return"
    bounds: tuple[float, float] | None = None
    max_episode_steps: int | None = None


# In D4RL's datasets, by the first word of their names. An antmaze ends at a goal that its states do not show, and a
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
# Gymnasium's, by their names without a version
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
# Gymnasium-Robotics' own, which end at no state; its pen ends where it is turned right, which states do not show.
_OF_ADROIT = {
    f"AdroitHand{task}{kind}-v{version}": Known(f"adroithand{task.lower()}", terminations.never)
    for task in ("Door", "Hammer", "Relocate")
    for kind in ("", "Sparse")
    for version in (1, 2)
}
_OF_OGBENCH = Known("ogbench", has_goals=True, outcome="success")


def _rows() -> Iterator[tuple[str, Known]]:
    """Names, and what is known of each; of Gymnasium's environments, its registry has the time limits."""
    for name, info in D4RL_FACTS.items():
        bounds = info["ref_min_score"], info["ref_max_score"]
        facts = _OF_D4RL[name.partition("-")[0]]
        facts = facts._replace(bounds=bounds, max_episode_steps=info["max_episode_steps"])
        yield name, facts
        yield f"gym/{name}", facts
        if (env_id := env_like(name)) is not None:
            yield env_id, facts
        if env_id is not None and (shown := silhouettes.shown(env_id)) in silhouettes.ENVS:
            yield shown, facts._replace(terminated=None)  # which reads states
    for robot, facts in _OF_MUJOCO.items():
        yield from ((f"{robot}-{version}", facts) for version in _MUJOCO_VERSIONS)
    yield from _OF_CLASSIC_CONTROL.items()
    yield from _OF_ADROIT.items()
    for env in OGBENCH_SETS:
        yield from ((f"{OGBENCH_ENVS}{env}-singletask{task}-v0", _OF_OGBENCH) for task in OGBENCH_TASKS)


def env_like(dataset_id: str) -> str | None:
    """The environment here whose states and rewards match one of D4RL's datasets."""
    robot = dataset_id.partition("-")[0]
    return f"d4rl/{robot}-v2" if robot in ROBOTS else robotics.ENV_OF.get(dataset_id)


TABLE = MappingProxyType(dict(_rows()))
"""By the name of an environment or of a dataset of D4RL's, what is known of it."""


def known(name: str) -> Known | None:
    """The facts about an environment (`module:Id` works too) or about one of D4RL's datasets; None if it is unknown."""
    return TABLE.get(name, TABLE.get(name.rpartition(":")[2]))


def termination(env_id: str, given: str = "") -> Terminated:
    """The function that decides from an environment's states whether the episode ends there.

    Args:
        env_id: The environment.
        given: The setting `termination`: `none` where no state ends an episode, or `module:function`; empty: what the
            table says.

    Raises:
        InputError: The table says nothing, or there is no such function.
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
    """Whether a function fits the states (N, S) of a dataset.

    Raises:
        InputError: It raises an error, or does not map two states (2, S) to booleans (2,).
    """
    try:
        found = np.asarray(terminated(states[:2]))
    except Exception as error:  # whatever somebody's function raises
        raise InputError(f"termination cannot read states of size {states.shape[1]} ({reason(error)})") from error
    if found.dtype != np.bool_ or found.shape != (len(states[:2]),):
        raise InputError(
            f"termination maps states {states[:2].shape} to {found.dtype} {found.shape}: let it return a boolean for "
            "each state"
        )
