"""`python -m benchmarks.environments`: how far our environments are from steps recorded in D4RL's own.

The recordings are in `tests/envs/data`. For each row, the state is set, the action taken and the outcome compared, so
that errors do not accumulate over an episode.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from benchmarks.results import write
from shared.envs.registry import D4RL_ENVS, make_env
from shared.runs.machine import versions

RECORDINGS = Path(__file__).resolve().parents[1] / "tests" / "envs" / "data"
# The kind of steps in each file
FILES = {
    "d4rl_v2_steps": "uniform actions",
    "d4rl_v2_fast_steps": "at the speeds of good policies",
    "d4rl_maze_steps": "away from walls (antmaze), into walls (maze2d)",
    "d4rl_wall_steps": "a leg at a wall",
    "d4rl_hand_steps": "uniform actions",
}
OFF = 1e-5


def env_of(name: str) -> str:
    """The environment that replays a recording's arrays `<name>_...`."""
    exact = f"d4rl/{name}-v2"
    return exact if exact in D4RL_ENVS else f"robotics/{name}"


def names(file: Any) -> list[str]:
    """The environments in a recording."""
    return [key.removesuffix("_qpos") for key in file.files if key.endswith("_qpos")]


def replay(file: Any, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each step (N,): the largest error of an observation entry, the reward's error, and whether ends differ."""
    env: Any = make_env(env_of(name))
    env.reset(seed=0)
    while isinstance(env, TimeLimit | OrderEnforcing):  # These wrappers would end the replay as if it were an episode
        env = env.env
    places = [f"{name}_{key}" for key in ("qpos", "qvel", "goal") if f"{name}_{key}" in file.files]
    states = zip(*(file[place] for place in places), strict=True)
    outcomes = (file[f"{name}_{key}"] for key in ("act", "obs", "rew", "done"))
    rows = []
    for state, action, observation, reward, done in zip(states, *outcomes, strict=True):
        env.set_state(*state)
        found, found_reward, *ends, _ = env.step(action)
        rows.append((np.abs(found - observation).max(), abs(found_reward - reward), ends != [done, False]))
    env.close()
    observations, rewards, ends = (np.array(column, float) for column in zip(*rows, strict=True))
    return observations, rewards, ends


def compared() -> list[dict[str, Any]]:
    """An entry for each recording and its kind of steps."""
    found = []
    for stem, kind in FILES.items():
        with np.load(RECORDINGS / f"{stem}.npz") as file:
            for name in names(file):
                observation, reward, end = replay(file, name)
                found.append(
                    {
                        "recording": stem,
                        "kind": kind,
                        "env": env_of(name),
                        "steps": len(observation),
                        "observation": _spread(observation),
                        "reward": _spread(reward),
                        "share_off": float((observation > OFF).mean()),
                        "ends_that_differ": int(end.sum()),
                    }
                )
    return found


def _spread(errors: np.ndarray) -> dict[str, float]:
    return {"median": float(np.median(errors)), "99%": float(np.quantile(errors, 0.99)), "max": float(errors.max())}


def table(summary: dict[str, Any]) -> str:
    """Formats a results file as Markdown."""
    lines = [
        "| environment | steps | observation off by (median, 99%, at most) | steps off by more than 1e-5 "
        "| reward off by (median, at most) | ends that differ |",
        "|---|---|---|---|---|---|",
    ]
    for row in summary["recordings"]:
        observation, reward = row["observation"], row["reward"]
        lines.append(
            f"| `{row['env']}` | {row['steps']}, {row['kind']} "
            f"| {observation['median']:.0e}, {observation['99%']:.0e}, {observation['max']:.0e} "
            f"| {row['share_off']:.0%} | {reward['median']:.0e}, {reward['max']:.0e} | {row['ends_that_differ']} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Prints the table and writes `benchmarks/results/environments-<machine>.json`."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    measured = {
        "versions": versions("mujoco", "gymnasium", "gymnasium-robotics", "numpy"),
        "recorded_in": "d4rl 1.1, MuJoCo 2.1.0",
        "recordings": compared(),
    }
    print(table(measured))
    write("environments", "environments", measured)


if __name__ == "__main__":
    main()
