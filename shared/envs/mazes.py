"""D4RL's antmaze and maze2d with the robots and walls of Gymnasium-Robotics.

Gymnasium-Robotics' environments observe dictionaries, centre their mazes, mirror one axis, and reward within 0.45 of a
goal. Only their simulator is used here: state, start, goal, reward and end are D4RL's.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium_robotics.envs.maze.ant_maze_v4 import AntMazeEnv
from gymnasium_robotics.envs.maze.point_maze import PointMazeEnv

from shared.envs import physics

_REACHED = 0.5  # from the goal

# `#` wall, `S` start, `G` goal. D4RL's x grows along a row of an antmaze, and down a column of a maze2d.
_ANT_MAZES = {
    "umaze": "##### #S..# ###.# #G..# #####",
    "medium": "######## #S.##..# #..#...# ##...### #..#...# #.#..#.# #...#.G# ########",
    "large": "############ #S...#.....# #.##.#.#.#.# #......#...# #.####.###.# #..#.#.....# ##.#.#.#.### "
    "#..#...#.G.# ############",
}
_POINT_MAZES = {
    "umaze": "##### #G..# ###.# #...# #####",
    "medium": "######## #..##..# #..#...# ##...### #..#...# #.#..#.# #...#.G# ########",
    "large": "############ #....#.....# #.##.#.#.#.# #......#...# #.####.###.# #..#.#.....# ##.#.#.#.### "
    "#..#...#.G.# ############",
}


class _Maze(gymnasium.Env, ABC):
    """A robot in a maze. An observation consists of joint positions and joint velocities, in D4RL's frame."""

    def __init__(self, maze: AntMazeEnv | PointMazeEnv, robot: MujocoEnv, origin: np.ndarray) -> None:
        """Takes the maze, its robot, and the origin (2,) of D4RL's frame in the robot's frame."""
        Path(maze.tmp_xml_file_path).unlink()  # it has been read, and would otherwise be left behind
        self._robot, self._origin = robot, origin
        self.render_mode, self.metadata = maze.render_mode, maze.metadata
        self._goal = np.zeros(2)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.model.nq + self.model.nv,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.model.nu,), np.float32)

    @property
    def model(self) -> Any:
        """The robot's MuJoCo model."""
        return self._robot.model

    def set_state(self, qpos: np.ndarray, qvel: np.ndarray, goal: np.ndarray) -> None:
        """Sets joint positions and velocities and the goal (2,), all in D4RL's frame."""
        qpos = np.array(qpos, np.float64)
        qpos[:2] += self._origin
        self._goal = np.asarray(goal, np.float64)
        # The visible position of the goal, on which nothing else depends
        self.model.site("target").pos[:2] = self._goal + self._origin
        self._robot.set_state(qpos, np.asarray(qvel, np.float64))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begins an episode; there are no options."""
        super().reset(seed=seed)
        self._robot.reset()
        self.set_state(*self._draw())
        return self._observation(), {}

    def render(self) -> Any:
        """Renders a frame of the simulator."""
        return self._robot.render()

    @abstractmethod
    def _draw(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws joint positions, velocities and the goal of a new episode."""

    def _observation(self) -> np.ndarray:
        observation = np.concatenate([self._robot.data.qpos, self._robot.data.qvel])
        observation[:2] -= self._origin
        return observation

    def close(self) -> None:
        """Closes the simulator."""
        self._robot.close()


class AntMaze(_Maze):
    """D4RL's antmaze: observations (29,), actions (8,); reaching the goal ends the episode with a reward of 1.

    A goal is drawn for each episode, as in version 2. Versions 0 and 1 drew one for each environment instance.
    """

    _CELL = 4.0
    _TORQUE = 30.0  # per unit of action; D4RL's robot is not Gymnasium's Ant-v4

    def __init__(self, maze: str, render_mode: str | None = None) -> None:
        """Creates `umaze`, `medium` or `large`, with Gymnasium's render mode."""
        cells = _cells(_ANT_MAZES[maze])
        stock = AntMazeEnv(maze_map=_walls(np.flipud(cells)), render_mode=render_mode)
        centre = np.array(cells.T.shape) / 2
        start = _find(cells, "S")[::-1]
        super().__init__(stock, stock.ant_env, (start + 0.5 - centre) * self._CELL)
        self._goal_cell = (_find(cells, "G")[::-1] - start) * self._CELL
        self.model.opt.timestep = 0.02
        self.model.actuator_gear[:, 0] = self._TORQUE
        self.model.geom_solimp[:, :3] = 0.8, 0.8, 0.01
        physics.restore_physics(self.model, self._robot.data, density=5.0)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Takes five steps of the simulator."""
        self._robot.do_simulation(np.clip(action, -1, 1), self._robot.frame_skip)
        observation = self._observation()
        reached = bool(np.linalg.norm(observation[:2] - self._goal) <= _REACHED)
        return observation, float(reached), reached, False, {}

    def _draw(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        qpos = self._robot.init_qpos + self.np_random.uniform(-0.1, 0.1, self.model.nq)
        qvel = self._robot.init_qvel + self.np_random.standard_normal(self.model.nv) * 0.1
        within = self.np_random.uniform(0, 0.25, 2) + self.np_random.uniform(0, 0.5, 2) * 0.25
        return qpos, qvel, np.maximum(self._goal_cell + within * self._CELL, 0)


class PointMaze(_Maze):
    """D4RL's maze2d: observations (4,), actions (2,); a reward of 1 for each step near the goal, or exp(-distance).

    Only the time limit ends an episode.
    """

    # D4RL's point has position 0 where its body is at 1.2 along both axes; walls are centred on integers from 1.
    _BODY = 1.2

    def __init__(self, maze: str, dense: bool = False, render_mode: str | None = None) -> None:
        """Creates `umaze`, `medium` or `large`; if `dense`, the reward is exp(-distance). Rendering is Gymnasium's."""
        cells = _cells(_POINT_MAZES[maze])
        stock = PointMazeEnv(maze_map=_walls(np.rot90(cells)), render_mode=render_mode)
        super().__init__(stock, stock.point_env, self._BODY - 0.5 - np.array(cells.shape) / 2)
        # The strength of contacts: MuJoCo 2.1.0 averaged over three axes, today's over the two that the point moves on.
        self.model.body_invweight0[1:, 0] *= 2 / 3
        self._goal_cell = _find(cells, "G")
        self._starts = np.array([*np.argwhere(cells == "."), self._goal_cell])
        self._dense = dense

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Takes a step of the simulator; the velocity is first clipped to [-5, 5]."""
        self._robot.step(action)
        observation = self._observation()
        distance = float(np.linalg.norm(observation[:2] - self._goal))
        reward = np.exp(-distance) if self._dense else distance <= _REACHED
        return observation, float(reward), False, False, {}

    def _draw(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        qpos = self.np_random.choice(self._starts) + self.np_random.uniform(-0.1, 0.1, 2)
        return qpos, self.np_random.standard_normal(2) * 0.1, self._goal_cell


def _cells(rows: str) -> np.ndarray:
    """The characters of a maze, as an array (R, C)."""
    return np.array([list(row) for row in rows.split()])


def _walls(cells: np.ndarray) -> list[list[int]]:
    """The maze in Gymnasium-Robotics' format: 1 for a wall, 0 elsewhere."""
    return (cells == "#").astype(int).tolist()


def _find(cells: np.ndarray, mark: str) -> np.ndarray:
    """Row and column (2,) of the cell with this mark."""
    return np.argwhere(cells == mark)[0].astype(np.float64)
