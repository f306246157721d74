"""`python -m benchmarks.online [finetune/iql ...]`: environment steps per second of the online phase.

Both twins step HalfCheetah, whose states and actions have the sizes of all benchmarks here, under CORL's defaults, with
an update after each step. Blocks take turns, and the best of each side counts. The table also shows the simulator's
share.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast
from unittest import mock

import h5py
import jax
import torch
from tqdm import tqdm

from benchmarks.blocks import Processes
from benchmarks.results import ROOT, called, write_rows
from benchmarks.subjects import ACTION_DIM, STATE_DIM, made_up_rows
from parity_tests.pair import Pair
from parity_tests.pairs import PAIRS
from shared.data.online import OnlineExperience
from shared.envs.stepping import Stepper
from shared.frameworks import jax_data, jax_online, torch_data, torch_ring
from shared.runs.machine import hardware, load, versions
from shared.runs.task import load_task, training_environment

ENV_ID = "d4rl/halfcheetah-v2"
ROWS, BLOCKS, STEPS = 20_000, 5, 100
TORCH, JAX = "PyTorch eager", "JAX"


class Side(NamedTuple):
    """One framework's twin, ready to continue.

    Attributes:
        block: Makes `STEPS` steps in the environment, with an update each.
        experience: The environment.
    """

    block: Callable[[], None]
    experience: OnlineExperience


def torch_side_of(pair: Pair, config: Any, task: Any) -> Side:
    """The loop in the PyTorch twin's `train`, by itself."""
    twin, apart = pair.torch, pair.two_buffers
    experience, device = training_environment(config, task), torch.device("cpu")
    trainer = twin.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    trainer.total_it = config.switch
    dataset = torch_data.to_device(pair.as_rows(task.dataset), device)
    kept = 0 if apart else len(dataset.rewards)
    ring = torch_ring.Ring(dataset, torch_ring.room(config, kept), keeps_dataset=not apart)
    if hasattr(trainer, "begin"):
        trainer.begin(len(dataset.rewards))

    def block() -> None:
        for _ in range(STEPS):
            exploration = twin.draw_exploration(config, ACTION_DIM, device)
            if not len(experience.queue):
                observation = torch.as_tensor(experience.observation[None]).to(dataset.observations)
                experience.choose(trainer.explore(observation, exploration).reshape(-1, ACTION_DIM).numpy())
            experience.play()
            ring.push(pair.as_rows(experience.last()))
            if hasattr(trainer, "enter"):
                size = len(dataset.rewards)
                trainer.enter(size + (experience.size - 1) % len(ring.rows.rewards), size)
            trainer.update(*torch_draws(pair, twin, config, trainer, dataset, ring))

    return Side(block, experience)


def torch_draws(
    pair: Pair, twin: ModuleType, config: Any, trainer: Any, dataset: Any, ring: torch_ring.Ring
) -> tuple[Any, Any]:
    """An online update's batch and noise, from one replay buffer or from two."""
    device = torch.device("cpu")
    if not pair.two_buffers:
        indices, noise = twin.draw_noise(config, ring.size, ACTION_DIM, device, *pair.torch_phase(trainer))
        if hasattr(twin, "take_chunks"):
            return twin.take_chunks(ring.rows, indices, config, ring.size, ring.pointer), noise
        return torch_data.take(ring.rows, indices), noise
    indices, noise = twin.draw_noise(config, len(dataset.rewards), ACTION_DIM, device, ring.size)
    if hasattr(trainer, "balanced"):
        return trainer.balanced(dataset, ring.rows, indices, noise), noise
    if not hasattr(twin, "shares"):
        return torch_ring.take_either(dataset, ring.rows, indices), noise
    return torch_ring.take_both(dataset, ring.rows, indices, twin.shares(config)[0]), noise


class _Endless:
    """Stands in for a run that nobody stops."""

    stopping, step, unfinished = False, 0, None

    def advance(self, updates: int) -> None:
        """Counts nothing."""


def jax_side_of(pair: Pair, config: Any, task: Any) -> Side:
    """The functions that the JAX twin's `train` calls."""
    twin, apart = pair.jax, pair.two_buffers
    experience, key = training_environment(config, task), jax.random.key(0)
    # Calls before the switch would be part of a warm-up, which makes no update.
    held = {"state": twin.create_train_state(key, config, STATE_DIM, ACTION_DIM, 1.0), "step": config.switch}
    dataset = jax_data.to_device(pair.as_rows(task.dataset))
    if hasattr(held["state"], "begin"):
        held["state"] = held["state"].begin(len(dataset))

    def statics(start: int, updates: int) -> tuple:
        return tuple(pair.call_statics(config, start, updates).values())

    shared = [dataset] if apart else []
    calls = twin.next_action, twin.train_online
    online = jax_online.Online(cast(Any, _Endless()), config, experience, key, *calls, pair.as_rows, statics, shared)
    online.begin(dataset, keeps_dataset=not apart)

    def block() -> None:
        held["state"], _ = online.play(held["state"], held["step"], held["step"] + STEPS)
        held["step"] += STEPS

    return Side(block, experience)


@contextmanager
def simulated() -> Iterator[list[float]]:
    """Collects the seconds of each environment step in this context."""
    step, seconds = Stepper.step, []

    def timed(self: Stepper, *args: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        taken = step(self, *args, **named)
        seconds.append(time.perf_counter() - begin)
        return taken

    with mock.patch.object(Stepper, "step", timed):
        yield seconds


def measure(name: str) -> dict[str, dict[str, float]]:
    """Each side's fastest block: environment steps per second, and the simulator's share of its time."""
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides = sides_of(PAIRS[name], Path(folder) / "rows.hdf5")
        for block in range(BLOCKS + 1):
            for side, ready in sides.items():
                with simulated() as seconds:
                    begin = time.perf_counter()
                    ready.block()
                    elapsed = time.perf_counter() - begin
                found = {"steps_per_second": STEPS / elapsed, "simulator": sum(seconds) / elapsed}
                # The first block compiles.
                if block and (side not in best or found["steps_per_second"] > best[side]["steps_per_second"]):
                    best[side] = found
    return best


def sides_of(pair: Pair, path: Path) -> dict[str, Side]:
    """Both twins of a pair, ready to continue from made-up rows."""
    with h5py.File(path, "w") as file:
        for key, values in made_up_rows(ROWS).items():
            file[key] = values
        file.attrs["env_id"] = ENV_ID
    settings = {
        "env": str(path),
        "device": "cpu",
        "offline_iterations": 1000,
        "n_episodes": 1,
        **pair.settings.get("timed", {}),
    }
    sides = {}
    for side, twin, make in ((TORCH, pair.torch, torch_side_of), (JAX, pair.jax, jax_side_of)):
        config = twin.TrainConfig(**settings, online_iterations=(BLOCKS + 1) * STEPS)
        sides[side] = make(pair, config, load_task(config))
    return sides


def table(summary: dict[str, Any]) -> str:
    """Formats a results file as Markdown."""
    lines = [
        f"| algorithm | {TORCH}, steps/s | {JAX}, steps/s | ratio | the simulator's share ({TORCH}, {JAX}) |",
        "|---|---|---|---|---|",
    ]
    for name, sides in summary["algorithms"].items():
        torch_side, jax_side = sides[TORCH], sides[JAX]
        lines.append(
            f"| {PAIRS[name].title} | {torch_side['steps_per_second']:.0f} | {jax_side['steps_per_second']:.0f} "
            f"| {jax_side['steps_per_second'] / torch_side['steps_per_second']:.2f} "
            f"| {torch_side['simulator']:.0%}, {jax_side['simulator']:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Prints each pair's row, and writes it into `benchmarks/results/online-<machine>.json`."""
    family = [name for name, pair in PAIRS.items() if pair.explores]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("algorithm", nargs="*", help="pairs (default: all that go online)")
    names = parser.parse_args().algorithm
    if unknown := [name for name in names if name not in family]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(family)}")
    facts = {**called("online"), "load_before": load(), "versions": versions("jax", "torch", "numpy", "mujoco")}
    with closing(Processes()) as processes:
        for name in tqdm(names or family, disable=None):
            row = processes.run(measure, name) | {"measured": facts}
            summary = {"hardware": hardware(), "algorithms": {name: row}}
            print(table(summary))
            print(write_rows("online", summary).relative_to(ROOT))


if __name__ == "__main__":
    main()
