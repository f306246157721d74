"""D4RL's pen, door, hammer and relocate, with Gymnasium-Robotics' hand.

Gymnasium-Robotics shares D4RL's observations, actions, start states and model files, but not its rewards and ends.
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
_PEN_HEIGHT = 26  # index of the pen's height in an observation
_DROPPED = 0.075  # height of a dropped pen in m


class Hand(gymnasium.Wrapper):
    """One of the tasks with D4RL's rewards and ends of episodes: observations (45,), (39,), (46,) or (39,)."""

    def __init__(self, task: str, render_mode: str | None = None) -> None:
        """Creates `pen`, `door`, `hammer` or `relocate`, with Gymnasium's render mode."""
        super().__init__(_STOCK[task](render_mode=render_mode))
        self._task = task

    def set_state(self, qpos: np.ndarray, qvel: np.ndarray, goal: np.ndarray) -> None:
        """Sets joint positions and velocities, and what else an episode draws.

        Args:
            qpos: (Q,).
            qvel: (V,).
            goal: The pen's target orientation (4,), or the position of the door (3,) or of the board (3,). For
                relocate, the ball's target and its start position (6,).
        """
        env: Any = self.env
        if self._task == "pen":
            env.model.body_quat[env.target_obj_body_id] = goal
        elif self._task == "door":
            env.model.body_pos[env.door_body_id] = goal
        elif self._task == "hammer":
            env.model.body_pos[env.target_body_id] = goal
        else:
            env.model.site_pos[env.target_obj_site_id] = goal[:3]
            env.model.body_pos[env.obj_body_id, :2] = goal[3:5]
        env.set_state(qpos, qvel)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Takes a step; only a dropped pen ends the episode."""
        observation, reward, _, _, info = self.env.step(action)
        # Gymnasium-Robotics adds a tenth of the palm's distance to its target to the reward; D4RL subtracts it.
        paid = float(reward) - 0.2 * float(np.linalg.norm(self._palm_to_object(observation)))
        dropped = self._task == "pen" and bool(observation[_PEN_HEIGHT] < _DROPPED)
        return observation, paid, dropped, False, {**info, "goal_achieved": bool(info["success"])}

    def _palm_to_object(self, observation: np.ndarray) -> np.ndarray:
        if self._task == "door":
            return observation[35:38]
        if self._task == "hammer":
            return observation[33:36] - observation[36:39]
        return observation[30:33] if self._task == "relocate" else np.zeros(3)
