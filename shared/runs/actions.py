"""The bounds of a run's actions, from its settings, its environment or its data, and the units they are learnt in."""

from typing import Any

import numpy as np

from shared.data import scalers
from shared.envs.boxes import NEUTRAL, ActionBox, ActionUnits
from shared.envs.spaces import Actions
from shared.errors import InputError
from shared.runs.origin import Origin
from shared.runs.progress import say, warn
from shared.runs.settings import OfflineConfig, RecordConfig, RunConfig

# Rounding error that is tolerated beyond a bound, as a share of the box's width
_ROUNDING = 1e-3


def action_units(
    config: RecordConfig,
    there: Actions,
    learnt: np.ndarray | None = None,
    recorded: np.ndarray | None = None,
    origin: Origin | None = None,
) -> ActionUnits:
    """The units in which a run learns its actions.

    A checkpoint's units come first, because the networks that the run starts from were trained in them. Next comes an
    action scaler. Without either, the units follow from the box.

    Args:
        config: The settings of the run, which may set bounds and a scaler.
        there: The environment's actions.
        learnt: The actions (N, A) of the training data; None without a dataset.
        recorded: All actions of the dataset (M, A); None without a dataset.
        origin: The checkpoint that the run starts from; None for a run that starts from scratch.

    Raises:
        InputError: A bound is missing, does not fit, or is set but has no effect.
    """
    if there.finite:
        _refuse_settings_of_vectors(config)
        return NEUTRAL
    if learnt is not None and _scales_actions(config):
        own = ActionUnits(*scalers.action_statistics(learnt), box=_asked(config, there.box, there.size))
    else:
        box = action_box(config, there.box, there.size, recorded)
        own = ActionUnits(*box.middle_and_half(), box=box)
    return own if origin is None else origin.units(own, there.size)


def action_box(
    config: RecordConfig | None, there: ActionBox | None, size: int, recorded: np.ndarray | None = None
) -> ActionBox:
    """A finite box for actions: the settings' bounds, else the environment's, else the data's.

    Args:
        config: The settings of the run, which may set bounds; None if there are none.
        there: The environment's box; None without an environment.
        size: A.
        recorded: All actions of the dataset (M, A); None without a dataset.

    Raises:
        InputError: A bound is missing or does not fit.
    """
    box = _asked(config, there, size)
    if box.is_finite:
        if recorded is not None:
            _tell_of_others(box, recorded)
        return box
    components = ", ".join(map(str, np.flatnonzero(~(np.isfinite(box.low) & np.isfinite(box.high)))))
    if recorded is None:
        raise InputError(f"actions have no bounds (component {components}): set action_low and action_high")
    box = _bounded_by(box, recorded)
    ends = ", ".join(f"{low:.4g} to {high:.4g}" for low, high in zip(box.low, box.high, strict=True))
    say(
        f"actions have no bounds (component {components}): the data's bounds are taken, {ends}; action_low and "
        "action_high set others"
    )
    return box


def _asked(config: RecordConfig | None, there: ActionBox | None, size: int) -> ActionBox:
    """The environment's box, with the settings' bounds in place of its own; infinite if neither has a bound."""
    free = np.full(size, np.inf, np.float32)
    box = ActionBox(-free, free) if there is None else there
    if not isinstance(config, RunConfig):
        return box
    low, high = (_components(name, getattr(config, name), size) for name in ("action_low", "action_high"))
    if low is None and high is None:
        return box
    asked = ActionBox(box.low if low is None else low, box.high if high is None else high)
    for name, bound in (("action_low", asked.low), ("action_high", asked.high)):
        if len(beyond := np.flatnonzero(~np.isclose(bound, np.clip(bound, box.low, box.high), rtol=1e-6, atol=1e-6))):
            first = beyond[0]
            raise InputError(
                f"{name} is {bound[first]:g} in component {first}, where the environment takes {box.low[first]:g} to "
                f"{box.high[first]:g}: set it within"
            )
    if (asked.low >= asked.high).any():
        raise InputError("action_low must lie below action_high in every component")
    return box.narrowed(asked)


def _components(name: str, values: tuple[float, ...], size: int) -> np.ndarray | None:
    """A setting's bound for each component, (A,); None if it is not set."""
    if not values:
        return None
    if len(values) not in (1, size):
        raise InputError(f"{name} has {len(values)} numbers: give one for all components, or {size}")
    return np.resize(np.asarray(values, np.float32), size)


def _bounded_by(box: ActionBox, recorded: np.ndarray) -> ActionBox:
    """Fills a box's missing bounds with the data's smallest and largest actions, one apart if these are equal."""
    low = np.where(np.isfinite(box.low), box.low, recorded.min(axis=0)).astype(np.float32)
    high = np.where(np.isfinite(box.high), box.high, recorded.max(axis=0)).astype(np.float32)
    below = (low >= high) & ~np.isfinite(box.low)
    above = (low >= high) & ~np.isfinite(box.high)
    return ActionBox(np.where(below, high - 1, low), np.where(above, low + 1, high))


def _tell_of_others(box: ActionBox, recorded: np.ndarray) -> None:
    """Warns, once, that some actions of the data are outside the box."""
    beyond = np.maximum(box.low - recorded, recorded - box.high)
    rows = int((beyond > _ROUNDING * (box.high - box.low)).any(axis=1).sum())
    if rows:
        warn(
            f"{rows} of {len(recorded)} actions of the dataset lie outside the environment's bounds, by up to "
            f"{beyond.max():.3g}: they are learnt from as they are, and no action of the policy will be"
        )


def _refuse_settings_of_vectors(config: RecordConfig) -> None:
    for name in ("action_low", "action_high"):
        if isinstance(config, RunConfig) and getattr(config, name):
            raise InputError(f"finite actions have no bounds: leave {name} out")
    if _scales_actions(config):
        raise InputError("finite actions have no scale: set action_scaler to none")


def _scales_actions(config: RecordConfig) -> bool:
    """Whether actions are scaled by the range of the data."""
    return isinstance(config, OfflineConfig) and config.action_scaler != "none"


def with_actions_in(units: ActionUnits, rows: Any) -> Any:
    """Converts vector actions in these rows to these units; finite actions stay as they are."""
    if units.are_neutral:
        return rows
    columns = [name for name in ("actions", "next_actions") if hasattr(rows, name)]
    return rows._replace(**{name: units.learnt(getattr(rows, name)) for name in columns})
