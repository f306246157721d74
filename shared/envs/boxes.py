"""The box that an environment's actions lie in, and the units in which a policy learns them.

Every policy of this project acts between -1 and 1. An `ActionUnits` stretches that to the box of the environment, so
that noise, bounds, temperatures and losses mean the same in all of them. Where the box is -1 to 1 nothing is computed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# A bound this large is no bound: it stands in Gymnasium's spaces for "any number"
UNBOUNDED = 1e6


@dataclass(frozen=True, eq=False)
class ActionBox:
    """Lower and upper bounds of the components of an action.

    Attributes:
        low: (A,), in the environment's own precision; minus infinity where there is no bound.
        high: (A,), likewise.
    """

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, low: ArrayLike, high: ArrayLike) -> "ActionBox":
        """The box with these bounds, those without meaning taken as infinite."""
        least, greatest = np.array(low), np.array(high)
        least[least <= -UNBOUNDED], greatest[greatest >= UNBOUNDED] = -np.inf, np.inf
        return cls(least, greatest)

    @property
    def is_unit(self) -> bool:
        """Whether all components lie between -1 and 1, as in D4RL's environments."""
        return bool((self.low == -1.0).all() and (self.high == 1.0).all())

    @property
    def is_finite(self) -> bool:
        """Whether each component has two bounds."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def clipped(self, actions: np.ndarray) -> np.ndarray:
        """Actions (..., A) within the box; the very array where all of them are."""
        inside = (self.low <= actions) & (actions <= self.high)
        return actions if inside.all() else np.clip(actions, self.low, self.high)

    def narrowed(self, other: "ActionBox") -> "ActionBox":
        """The intersection of both boxes; where a component's is empty, the nearest point of this box."""
        return ActionBox(np.clip(other.low, self.low, self.high), np.clip(other.high, self.low, self.high))

    def middle_and_half(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle (A,) and half the width (A,) of a finite box, float32: 0 and 1 for one of -1 to 1.

        A component that can take one value alone counts as one of width 2, so that its units have a size.
        """
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        half = np.where(low < high, (high - low) / 2, 1.0)
        return ((low + high) / 2).astype(np.float32), half.astype(np.float32)


@dataclass(frozen=True, eq=False)
class ActionUnits:
    """How a policy's actions become the environment's, and how a dataset's become those of a policy.

    Attributes:
        mean: Added to a policy's action, () or (A,) float32.
        std: Multiplies it before, () or (A,) float32.
        bound: Of every component of a policy's action. It is 1, but for runs begun before actions were learnt in units
            of their box.
        box: What the environment's actions never leave; None: they are taken as they are.
    """

    mean: np.ndarray
    std: np.ndarray
    bound: float = 1.0
    box: ActionBox | None = None

    @property
    def are_neutral(self) -> bool:
        """Whether a policy's actions are the environment's already."""
        return bool((self.mean == 0).all() and (self.std == 1).all())

    def given(self, actions: np.ndarray) -> np.ndarray:
        """A policy's actions (..., A) as the environment takes them; those of -1 to 1 are left as they are."""
        actions = actions if self.are_neutral else actions * self.std + self.mean
        return actions if self.box is None or self.box.is_unit else self.box.clipped(actions)

    def learnt(self, actions: np.ndarray) -> np.ndarray:
        """An environment's actions (..., A) as a policy learns them."""
        return actions if self.are_neutral else (actions - self.mean) / self.std


NEUTRAL = ActionUnits(np.zeros((), np.float32), np.ones((), np.float32))
"""Those of a policy that acts as the environment takes it, between -1 and 1."""
