"""Datasets in a Python program's memory, as an alternative to a dataset's name."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from corl_twins.place import enter

if TYPE_CHECKING:
    from shared.data.cache import Source


@runtime_checkable
class HasDataset(Protocol):
    """Anything with D4RL's `get_dataset()`, such as one of D4RL's own environments."""

    def get_dataset(self) -> Mapping[str, Any]:
        """Arrays under D4RL's keys, one row for each step."""
        ...


@dataclass(frozen=True, eq=False)
class Dataset:
    """Steps in memory, as `make_dataset` has checked them.

    Attributes:
        arrays: The arrays under D4RL's keys, N rows each.
        env: The environment that they were recorded in; empty if you did not say.
    """

    arrays: Mapping[str, np.ndarray]
    env: str = ""

    def __len__(self) -> int:
        """The number of steps, N."""
        return len(self.arrays["observations"])

    def get_dataset(self) -> dict[str, np.ndarray]:
        """The arrays, as D4RL's environments return theirs."""
        return dict(self.arrays)


def make_dataset(arrays: Mapping[str, ArrayLike], env: str = "") -> Dataset:
    """Makes a dataset of arrays, to be passed to `train` wherever it takes a dataset's name.

    Args:
        arrays: One row for each of N steps, in the order in which they happened, under these keys; others are left out.
            `observations` are (N, S), or bytes (N, C, H, W) of images. `actions` are (N, A), or whole numbers (N,).
            `rewards` are (N,). `terminals` (N,) are true where an episode ended in a terminal state. `timeouts` (N,)
            are true where a time limit cut it; leave them out only if the environment has a time limit.
        env: The name of the Gymnasium environment in which the data was recorded. It scores the policies that are
            learned from the data.

    Raises:
        InputError: An array is missing, or has the wrong shape, type or values.
    """
    enter()
    from shared.data.transitions import checked_arrays
    from shared.errors import InputError

    if not isinstance(arrays, Mapping):
        raise InputError(f"a dataset is a mapping of names to arrays, not {type(arrays).__name__}: pass a dict")
    return Dataset(checked_arrays(arrays, "the dataset"), env)


@contextlib.contextmanager
def named(data: str | HasDataset) -> Iterator[str]:
    """Yields the name under which every reader finds this dataset in this context.

    Arrays get their digest as a name. Equal arrays therefore have equal names, and a run can be resumed with them.

    Raises:
        InputError: The object has no `get_dataset()`, or its arrays cannot be used.
    """
    if isinstance(data, str):
        yield data
        return
    from shared.data import sources
    from shared.names import ARRAYS, D4RL_FACTS

    source, env_id = sources.from_object(data), environment_of(data)
    if env_id in D4RL_FACTS:
        name = env_id
    else:
        name = ARRAYS + source.sha256[:8]
        source = source._replace(attributes={"env_id": env_id} if env_id else {})
    with sources.given(name, source):
        yield name


def environment_of(data: Any) -> str:
    """The environment that a dataset in memory belongs to; empty if it does not say."""
    if isinstance(data, Dataset):
        return data.env
    return getattr(getattr(data, "spec", None), "id", None) or ""


def scoring_environment(env: str | HasDataset) -> tuple[str, "Source | None"]:
    """The environment with this name, or the one that scores a dataset; also the dataset if it was read.

    Raises:
        InputError: There is neither such an environment nor such a dataset, or the dataset names no environment.
    """
    from shared.data import sources
    from shared.envs.registry import is_registered, nearest_env
    from shared.envs.scores import env_of
    from shared.errors import InputError
    from shared.names import D4RL_FACTS, bundled, check_imported, is_known
    from shared.runs.opening import own_env

    name = env if isinstance(env, str) else environment_of(env)
    if name in D4RL_FACTS:
        return env_of(name), None
    if not isinstance(env, str) and not name:
        raise InputError("the dataset names no environment: pass env to make_dataset, or the environment's own name")
    if not isinstance(env, str) or is_registered(name):
        return name, None
    if not is_known(name):
        check_imported(name)
        raise InputError(
            f"there is neither an environment nor a dataset {name!r}; {nearest_env(name, [*D4RL_FACTS, *bundled()])}, "
            f"or write module:{name}, of the module that registers it"
        )
    source = sources.read(name)
    return own_env(name, source.attributes), source
