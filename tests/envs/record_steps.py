"""`python tests/envs/record_steps.py hopper-medium-v2` records steps that `tests/envs/test_physics.py` replays.

It is meant for D4RL's own environments, on a Python of their time (3.8 to 3.10). Therefore it needs nothing of this
project, and NumPy, `gym` and `d4rl` alone. docs/guides/environments.md says how to set such a Python up.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def random_policy(env: Any, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Uniform actions."""
    low, high = env.action_space.low, env.action_space.high
    rng = np.random.default_rng(seed)
    return lambda observation: rng.uniform(low, high).astype(np.float32)


def network_policy(weights: Mapping[str, np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The mean action of a policy as stored in D4RL's files: ReLU layers, then a tanh.

    Args:
        weights: `fc0/weight` (out, in), `fc0/bias` (out,), ... and `last_fc/weight`, `last_fc/bias`; hidden layers are
            optional.
    """
    hidden = [f"fc{index}" for index in range(len(weights)) if f"fc{index}/weight" in weights]

    def act(observation: np.ndarray) -> np.ndarray:
        for layer in hidden:
            observation = np.maximum(weights[f"{layer}/weight"] @ observation + weights[f"{layer}/bias"], 0)
        return np.tanh(weights["last_fc/weight"] @ observation + weights["last_fc/bias"]).astype(np.float32)

    return act


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Reads weights from an .npz file, or the policy in one of D4RL's medium or expert datasets."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            return dict(file)
    import h5py

    with h5py.File(path, "r") as file:
        layers = {name: layer for name, layer in file["metadata/policy"].items() if isinstance(layer, h5py.Group)}
        return {f"{name}/{part}": layer[part][:] for name, layer in layers.items() for part in ("weight", "bias")}


def record(
    env: Any, policy: Callable[[np.ndarray], np.ndarray], steps: int, seed: int, push: float = 0.0
) -> dict[str, np.ndarray]:
    """Runs a policy and records each step with all that is needed to repeat it.

    The state is set again before each step. Otherwise the step would also depend on what the simulator keeps from the
    previous one, which nobody can set. That is the solver's first guess, and the bodies' positions, from which Ant's
    reward is computed.

    Args:
        env: An environment of the old `gym` or of Gymnasium: a robot in MuJoCo, perhaps in a maze, with its time limit.
        policy: From an observation (S,) to an action (A,).
        steps: Rows to record.
        seed: The first episode's seed; each further episode has the next one.
        push: Forward speed given to a robot at the start of an episode, in m/s.

    Returns:
        Before a step `qpos` (N, Q), `qvel` (N, V) and `act` (N, A); after it `obs` (N, S), `rew` and `done` (N,). Time
            limits are not in `done`. In a maze also `goal` (N, 2) and `walls`, the centres (K, 2) of its blocks.
    """
    rows: list[dict[str, Any]] = []
    while len(rows) < steps:
        observation, over = _reset(env, seed), False
        qpos, qvel = _state(env)
        qvel[0] += push
        env.unwrapped.set_state(qpos, qvel)
        seed += 1
        while not over and len(rows) < steps:
            action = policy(observation)
            qpos, qvel = _state(env)
            env.unwrapped.set_state(qpos, qvel)
            observation, reward, done, over = _step(env, action)
            row = {"qpos": qpos, "qvel": qvel, "act": action, "obs": observation, "rew": reward, "done": done}
            rows.append({**row, **_goal(env)})
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return {**columns, "walls": _walls(env)} if "goal" in columns else columns


def _state(env: Any) -> tuple[np.ndarray, np.ndarray]:
    """Joint positions and velocities, from mujoco_py's simulator or from MuJoCo's own data."""
    robot = env.unwrapped
    data = robot.sim.data if hasattr(robot, "sim") else robot.data
    return data.qpos.ravel().copy(), data.qvel.ravel().copy()


def _goal(env: Any) -> dict[str, np.ndarray]:
    """The position of a maze's goal, which D4RL's antmaze and maze2d store under different names."""
    goals = [getattr(env.unwrapped, name) for name in ("_goal", "_target") if hasattr(env.unwrapped, name)]
    return {"goal": np.array(goals[0])} if goals else {}


def _walls(env: Any) -> np.ndarray:
    """Centres of a maze's blocks in joint positions' coordinates, which in maze2d are not those of the robot's body."""
    robot, box = env.unwrapped, 6
    robot.sim.forward()  # bodies' positions lag behind after a step
    offset = robot.sim.data.body_xpos[1, :2] - robot.sim.data.qpos[:2]
    return robot.sim.model.geom_pos[robot.sim.model.geom_type == box, :2] - offset


def _reset(env: Any, seed: int) -> np.ndarray:
    if hasattr(env, "seed"):
        env.seed(seed)
        return env.reset()
    return env.reset(seed=seed)[0]


def _step(env: Any, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
    """Observation, reward, whether the robot fell, and whether the episode is over."""
    observation, reward, *ends, info = env.step(action)
    fell = bool(ends[0]) and not info.get("TimeLimit.truncated", False)
    return observation, float(reward), fell, any(ends)


def save(path: Path, name: str, columns: Mapping[str, np.ndarray]) -> None:
    """Adds `<name>_qpos` and so on to an .npz file, which is created if necessary."""
    arrays: dict[str, np.ndarray] = {}
    if path.exists():
        with np.load(path) as file:
            arrays = dict(file)
    arrays.update({f"{name}_{key}": values for key, values in columns.items()})
    np.savez_compressed(path, **arrays)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("env", help="such as hopper-medium-v2, antmaze-umaze-v2 or maze2d-umaze-v1")
    parser.add_argument(
        "--policy",
        default="random",
        help="random, or a file of weights: .npz, or a medium or expert dataset of D4RL's (default: random)",
    )
    parser.add_argument("--steps", type=int, default=600, help="rows to record (default: 600)")
    parser.add_argument("--push", type=float, default=0.0, help="forward speed at an episode's beginning (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode (default: 0)")
    parser.add_argument("--name", help="what the arrays' names begin with (default: the first word of env)")
    parser.add_argument("--output", type=Path, required=True, help=".npz file that the steps are added to")
    options = parser.parse_args()
    family = options.env.partition("-")[0]
    importlib.import_module({"antmaze": "d4rl.locomotion", "maze2d": "d4rl.pointmaze"}.get(family, "d4rl.gym_mujoco"))
    env = importlib.import_module("gym").make(options.env)
    random = options.policy == "random"
    policy = random_policy(env, options.seed) if random else network_policy(read_weights(Path(options.policy)))
    columns = record(env, policy, options.steps, options.seed, options.push)
    save(options.output, options.name or family, columns)
    speeds = np.percentile(columns["qvel"][:, 0], [0, 50, 100])
    print(f"{options.env}: {len(columns['rew'])} steps, forward speed {speeds.round(2)} m/s (min, median, max)")


if __name__ == "__main__":
    main()
