"""D4RL's pen, door, hammer and relocate, played by Gymnasium-Robotics' hand.

Observations, actions, starts and the model's file are D4RL's there already; rewards and ends are not.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium_robotics.envs.adroit_hand.adroit_door import AdroitHandDoorEnv
from gymnasium_robotics.envs.adroit_hand.adroit_hammer import AdroitHandHammerEnv
from gymnasium_robotics.envs.adroit_hand.adroit_pen import AdroitHandPenEnv
from gymnasium_robotics.envs.adroit_hand.adroit_relocate import AdroitHandRelocateEnv

_STOCK = {
    "pen": AdroitHandPenEnv,
    "door": AdroitHandDoorEnv,
    "hammer": AdroitHandHammerEnv,
    "relocate": AdroitHandRelocateEnv,
}
_PEN_HEIGHT = 26  # where an observation has it
_DROPPED = 0.075  # m


class Hand(gymnasium.Wrapper):
    """One of the tasks with D4RL's rewards and ends: observations (45,), (39,), (46,) or (39,)."""

    def __init__(self, task: str) -> None:
        """Takes `pen`, `door`, `hammer` or `relocate`."""
        super().__init__(_STOCK[task]())
        self._task = task

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """A dropped pen ends the episode; nothing else does."""
        observation, reward, _, _, info = self.env.step(action)
        # Gymnasium-Robotics pays a tenth of the palm's distance from what it should grasp, where D4RL charges it.
        reward -= 0.2 * np.linalg.norm(self._palm_to_object(observation))
        dropped = self._task == "pen" and bool(observation[_PEN_HEIGHT] < _DROPPED)
        return observation, float(reward), dropped, False, {**info, "goal_achieved": bool(info["success"])}

    def _palm_to_object(self, observation: np.ndarray) -> np.ndarray:
        if self._task == "door":
            return observation[35:38]
        if self._task == "hammer":
            return observation[33:36] - observation[36:39]
        return observation[30:33] if self._task == "relocate" else np.zeros(3)
