"""`python -m benchmarks.online finetune/iql`: environment steps per second of the online phase, in both frameworks.

Both twins step HalfCheetah, whose states and actions have the sizes of all benchmarks here, under CORL's defaults, an
update after each step. Blocks take turns, and the best of each side counts. The simulator's share stands beside it.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import h5py
import jax
import torch

from benchmarks.subjects import ACTION_DIM, STATE_DIM, made_up_rows
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.data.online import OnlineExperience
from shared.envs.stepping import Stepper
from shared.frameworks import jax_data, jax_online, torch_data, torch_online
from shared.runs.task import load_task, training_environment

ENV_ID = "d4rl/halfcheetah-v2"
ROWS, BLOCKS, STEPS = 20_000, 5, 200


class Side(NamedTuple):
    """One framework's twin, ready to go on.

    Attributes:
        block: Plays `STEPS` steps of the environment with an update each.
        experience: The environment.
    """

    block: Callable[[], None]
    experience: OnlineExperience


def torch_side_of(pair: Pair, config: Any, task: Any) -> Side:
    """The loop of the PyTorch twin's `train` without what surrounds it."""
    twin, apart = pair.torch, pair.two_buffers
    experience, device = training_environment(config, task), torch.device("cpu")
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    dataset = torch_data.to_device(pair.as_rows(task.dataset), device)
    kept = 0 if apart else len(dataset.rewards)
    ring = torch_online.Ring(dataset, torch_online.room(config, kept), keeps_dataset=not apart)

    def block() -> None:
        for _ in range(STEPS):
            observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
            action = trainer.explore(observation, twin.draw_exploration(config, ACTION_DIM, device))
            experience.step(action[0].numpy())
            ring.push(pair.as_rows(experience.last()))
            if apart:
                indices, noise = twin.draw_noise(config, len(dataset.rewards), ACTION_DIM, device, ring.size)
                offline, _ = twin.shares(config)
                batch = torch_online.take_both(dataset, ring.rows, indices, offline)
            else:
                # SPOT draws codes for some updates only.
                drawn = [getattr(trainer, name) for name in ("pretrains", "delayed") if hasattr(trainer, name)]
                indices, noise = twin.draw_noise(config, ring.size, ACTION_DIM, device, *drawn)
                batch = torch_data.take(ring.rows, indices)
            trainer.update(batch, noise)

    return Side(block, experience)


def jax_side_of(pair: Pair, config: Any, task: Any) -> Side:
    """What the JAX twin's `train` calls."""
    twin, apart = pair.jax, pair.two_buffers
    experience, key = training_environment(config, task), jax.random.key(0)
    held = {"state": twin.create_train_state(key, config, STATE_DIM, ACTION_DIM, 1.0), "step": 0}
    dataset = jax_data.to_device(pair.as_rows(task.dataset))

    def statics(start: int, updates: int) -> tuple:
        return tuple(pair.call_statics(config, start, updates).values())

    shared = [dataset] if apart else []
    calls = twin.next_action, twin.train_online
    online = jax_online.Online(config, experience, key, *calls, pair.as_rows, statics, shared)
    online.begin(dataset, keeps_dataset=not apart)

    def block() -> None:
        held["state"], _ = online.play(held["state"], held["step"], held["step"] + STEPS)
        held["step"] += STEPS

    return Side(block, experience)


@contextmanager
def simulated() -> Iterator[list[float]]:
    """Collects the seconds of each step of an environment meanwhile."""
    step, seconds = Stepper.step, []

    def timed(self: Stepper, *args: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        taken = step(self, *args, **named)
        seconds.append(time.perf_counter() - begin)
        return taken

    with mock.patch.object(Stepper, "step", timed):
        yield seconds


def measure(name: str) -> dict[str, tuple[float, float]]:
    """Each side's best rate, in environment steps per second, and the simulator's share of that block's time."""
    best: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.hdf5"
        with h5py.File(path, "w") as file:
            for key, values in made_up_rows(ROWS).items():
                file[key] = values
            file.attrs["env_id"] = ENV_ID
        pair = PAIRS[name]
        settings = {"env": str(path), "device": "cpu", "offline_iterations": 1000, "n_episodes": 1} | pair.timed
        sides = {}
        for side, make in (("PyTorch eager", torch_side_of), ("JAX", jax_side_of)):
            twin = pair.torch if make is torch_side_of else pair.jax
            config = twin.TrainConfig(**settings, online_iterations=(BLOCKS + 1) * STEPS)
            sides[side] = make(pair, config, load_task(config))
        for block in range(BLOCKS + 1):
            for side, ready in sides.items():
                with simulated() as seconds:
                    begin = time.perf_counter()
                    ready.block()
                    elapsed = time.perf_counter() - begin
                if block:  # the first compiles
                    best[side] = max(best.get(side, (0.0, 0.0)), (STEPS / elapsed, sum(seconds) / elapsed))
    return best


def main(arguments: list[str]) -> None:
    """Prints a line for each side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("algorithm", choices=[name for name, pair in PAIRS.items() if pair.explores])
    found = measure(parser.parse_args(arguments).algorithm)
    for side, (rate, share) in found.items():
        print(f"{side}: {rate:.1f} environment steps per second, {share:.0%} of the time in the simulator")
    print(f"JAX over PyTorch eager: {found['JAX'][0] / found['PyTorch eager'][0]:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
