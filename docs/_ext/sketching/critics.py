"""Critics over one dimension of actions, fitted and made conservative in NumPy."""

import numpy as np

from sketching.pen import ACTIONS


def density(actions: np.ndarray, width: float = 0.06) -> np.ndarray:
    """The share of the data at each of `ACTIONS`; it adds up to 1."""
    found = np.exp(-0.5 * ((ACTIONS[:, None] - actions) / width) ** 2).sum(axis=1)
    return found / found.sum()


def bends() -> np.ndarray:
    """The cost of a critic's curvature, as a matrix; without data, a critic continues in a straight line."""
    second = np.diff(np.eye(len(ACTIONS)), 2, axis=0) / (ACTIONS[1] - ACTIONS[0]) ** 2
    return 1e-4 * second.T @ second / len(ACTIONS)


def fitted(weight: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The critic with the smallest squared error on the data, weighted at each of `ACTIONS`."""
    return np.linalg.solve(np.diag(weight) + bends(), weight * targets)


def conservative(
    weight: np.ndarray,
    targets: np.ndarray,
    alpha: float,
    floor: float = -np.inf,
    policy: np.ndarray | None = None,
) -> np.ndarray:
    """The critic whose loss also includes `alpha` times its soft maximum over all actions minus its mean over the data.

    A third of the soft maximum's actions are random, and the others are the policy's, with values of at least `floor`.
    Without a policy all are random.
    """
    random = np.full(len(ACTIONS), 1.0 / len(ACTIONS))
    chances = (random, np.zeros_like(random)) if policy is None else (random / 3.0, policy / 1.5)
    bent, q = bends(), fitted(weight, targets)
    for _ in range(200):
        # The larger of value and floor, smoothed, and its derivative by the value
        worth = np.logaddexp(50.0 * q, 50.0 * floor) / 50.0
        moved = np.exp(50.0 * (q - worth))
        whole, floored = chances[0] * np.exp(q), chances[1] * np.exp(worth)
        total = whole.sum() + floored.sum()
        pushed = (whole + floored * moved) / total
        curved = (whole + floored * moved * (moved + 50.0 * (1.0 - moved))) / total
        slope = 2.0 * weight * (q - targets) + 2.0 * bent @ q + alpha * (pushed - weight)
        curvature = 2.0 * np.diag(weight) + 2.0 * bent + alpha * (np.diag(curved) - np.outer(pushed, pushed))
        q = q - 0.2 * np.linalg.solve(curvature, slope)
    return q


def held_back(q: np.ndarray, cost: np.ndarray, alpha: float) -> int:
    """The index of the best action, by a value that is scaled by its own size there, minus a cost."""
    best = -1
    for _ in range(100):
        best = int(np.argmax(alpha / abs(q[best]) * q - cost))
    return best


def ensemble(data: np.ndarray, targets: np.ndarray, size: int, width: float = 0.35) -> np.ndarray:
    """Critics (size, actions) that start as random functions and are fitted to the same data."""
    rng = np.random.default_rng(3)
    waves = rng.normal(size=(size, 1, 60)) / width
    phases, weights = rng.uniform(0, 2 * np.pi, (size, 1, 60)), rng.normal(size=(size, 1, 60)) / np.sqrt(30)

    def began(actions: np.ndarray) -> np.ndarray:
        return (weights * np.cos(waves * actions[:, None] + phases)).sum(axis=-1)

    def alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * ((one[:, None] - other) / width) ** 2)

    missing = (targets - began(data)).T
    learnt = np.linalg.solve(alike(data, data) + 1e-2 * np.eye(len(data)), missing)
    return began(ACTIONS) + (alike(ACTIONS, data) @ learnt).T
