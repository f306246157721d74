"""Environments that refuse any action outside their box, and data for them; importing this file registers them."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import h5py
import numpy as np
from gymnasium.spaces import Box

BOXES: dict[str, tuple[list[float], list[float]]] = {
    "Unit": ([-1.0, -1.0], [1.0, 1.0]),
    "Twice": ([-2.0, -2.0], [2.0, 2.0]),
    "Uneven": ([0.0, -0.3], [0.7, 3.1]),
    "Free": ([-np.inf, -np.inf], [np.inf, np.inf]),
}


class Tune(gymnasium.Env):
    """Two knobs that pay more the closer they are to a quarter below the upper ends; observations (3,) are noise."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, low: list[float], high: list[float], precision: Any = np.float32) -> None:
        self.action_space = Box(np.array(low, precision), np.array(high, precision), dtype=precision)
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        low, high = np.clip(low, -4, 4), np.clip(high, -4, 4)
        self._middle, self._half = (high + low) / 2, (high - low) / 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Returns the first noise."""
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pays, or raises an error if the action is outside the box, even by one bit."""
        if not ((self.action_space.low <= action) & (action <= self.action_space.high)).all():
            raise ValueError(f"action {action} lies outside of the box")
        reward = -float(np.abs((action - self._middle) / self._half - 0.5).mean())
        return self.np_random.normal(size=3).astype(np.float32), reward, False, False, {}


for _name, (_low, _high) in BOXES.items():
    gymnasium.register(
        f"boxed/{_name}-v0", f"{__name__}:Tune", max_episode_steps=8, kwargs={"low": _low, "high": _high}
    )


def write(folder: Path, name: str) -> Path:
    """Forty episodes of one of these environments, the same in all of them except for the units of the actions."""
    rng = np.random.default_rng(0)
    low, high = (np.clip(bound, -4, 4) for bound in BOXES[name])
    units = rng.uniform(-0.95, 0.95, (320, 2)).astype(np.float32)
    columns = {
        "observations": rng.normal(size=(320, 3)).astype(np.float32),
        "actions": (units * np.float32((high - low) / 2) + np.float32((high + low) / 2)).astype(np.float32),
        "rewards": -np.abs(units - 0.5).mean(axis=1),
        "terminals": np.zeros(320, bool),
        "timeouts": np.arange(320) % 8 == 7,
    }
    path = folder / f"{name.lower()}.hdf5"
    with h5py.File(path, "w") as file:
        for key, values in columns.items():
            file[key] = values
        file.attrs["env_id"] = f"boxed/{name}-v0"
    return path
