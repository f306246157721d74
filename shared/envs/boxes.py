"""The box of an environment's actions, and the units in which a policy learns them.

Every policy in this project acts between -1 and 1. `ActionUnits` scales that to the environment's box, so that noise,
bounds, temperatures and losses mean the same in all environments. If the box is -1 to 1, nothing is computed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# Bounds this large mean "any number" in Gymnasium's spaces
UNBOUNDED = 1e6


@dataclass(frozen=True, eq=False)
class ActionBox:
    """Lower and upper bounds of the components of an action.

    Attributes:
        low: (A,), in the environment's own precision; minus infinity without a bound.
        high: (A,), in the environment's own precision; infinity without a bound.
    """

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, low: ArrayLike, high: ArrayLike) -> "ActionBox":
        """The box with these bounds; those that mean "any number" become infinite."""
        least, greatest = np.array(low), np.array(high)
        least[least <= -UNBOUNDED], greatest[greatest >= UNBOUNDED] = -np.inf, np.inf
        return cls(least, greatest)

    @property
    def is_unit(self) -> bool:
        """Whether all components have the bounds -1 and 1, as in D4RL's environments."""
        return bool((self.low == -1.0).all() and (self.high == 1.0).all())

    @property
    def is_finite(self) -> bool:
        """Whether each component has two bounds."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def clipped(self, actions: np.ndarray) -> np.ndarray:
        """Clips actions (..., A) to the box; returns the same array if all are inside."""
        inside = (self.low <= actions) & (actions <= self.high)
        return actions if inside.all() else np.clip(actions, self.low, self.high)

    def narrowed(self, other: "ActionBox") -> "ActionBox":
        """The intersection of both boxes; an empty component becomes the nearest point of this box."""
        return ActionBox(np.clip(other.low, self.low, self.high), np.clip(other.high, self.low, self.high))

    def middle_and_half(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle (A,) and half the width (A,) of a finite box, float32: 0 and 1 for a box from -1 to 1.

        A component that allows only one value counts as one of width 2, so that its unit is not 0.
        """
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        half = np.where(low < high, (high - low) / 2, 1.0)
        return ((low + high) / 2).astype(np.float32), half.astype(np.float32)


@dataclass(frozen=True, eq=False)
class ActionUnits:
    """Converts a policy's actions to the environment's, and a dataset's actions to a policy's.

    Attributes:
        mean: Added to a policy's action after scaling, () or (A,) float32.
        std: Multiplies a policy's action, () or (A,) float32.
        bound: Bound of every component of a policy's action: 1, except in runs begun before actions were learnt in
            units of their box.
        box: Bounds to which the environment's actions are clipped; None leaves them unclipped.
    """

    mean: np.ndarray
    std: np.ndarray
    bound: float = 1.0
    box: ActionBox | None = None

    @property
    def are_neutral(self) -> bool:
        """Whether a policy's actions already are the environment's."""
        return bool((self.mean == 0).all() and (self.std == 1).all())

    def given(self, actions: np.ndarray) -> np.ndarray:
        """Converts a policy's actions (..., A) to the environment's; actions from -1 to 1 stay unchanged."""
        actions = actions if self.are_neutral else actions * self.std + self.mean
        return actions if self.box is None or self.box.is_unit else self.box.clipped(actions)

    def learnt(self, actions: np.ndarray) -> np.ndarray:
        """Converts an environment's actions (..., A) to a policy's."""
        return actions if self.are_neutral else (actions - self.mean) / self.std


NEUTRAL = ActionUnits(np.zeros((), np.float32), np.ones((), np.float32))
"""The units of a policy whose actions already are the environment's."""
