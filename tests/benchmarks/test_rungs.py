"""Every rung of the benchmark's ladders makes the same updates as the code that ships, just faster or slower."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch

from benchmarks import jax_rungs, torch_rungs
from benchmarks.results import DISTURBED, WHAT_SHIPS, Block, Results
from benchmarks.rungs import COMPILED, EAGER, RUNGS, SHIPPED, rungs_of
from benchmarks.subjects import ACTION_DIM, STATE_DIM, UPDATES, Subject
from parity_tests.engine.compilation import hardly_optimised
from parity_tests.engine.precision import both_in
from parity_tests.errors import errors
from parity_tests.pairs import PAIRS
from shared.frameworks import torch_side
from shared.frameworks.exchange import blank_state, named, part_names, torch_part
from shared.frameworks.twins import load_twin
from tests.benchmarks.uncompiled import compile_nothing

SETTINGS = {"batch_size": 8, "device": "cpu"}
# Fresh moments magnify rounding, so double precision is used; the limit is 100 times the measured error.
TOLERANCE = 1e-9

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """Both frameworks in double precision, with quickly compiled JAX, since only the updates matter."""
    with both_in("float64"), hardly_optimised():
        yield


def small(name: str, updates: int = 7) -> Subject:
    """A few rows and small batches; by default seven updates, which no period of delayed updates divides.

    For algorithms with two phases these are offline updates, as in the timings.
    """
    variant = {key: value for key, value in PAIRS[name].variants["default"].items() if key != "offline_iterations"}
    return Subject(name, updates, SETTINGS | variant, rows=200)


def jax_parts(state: Any) -> dict[str, np.ndarray]:
    """Every number of a state, by name."""
    parts = {part: named(getattr(state, part)) for part in part_names(state)}
    return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}


def torch_parts(trainer: Any, like: Any) -> dict[str, np.ndarray]:
    """The same of a trainer, whose parts have the names of the JAX state's parts."""
    return {f"{part}.{name}": v for part in part_names(like) for name, v in torch_part(trainer, part).items()}


def check(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = TOLERANCE) -> None:
    """Fails if any number is further off."""
    apart = errors(found, expected)
    assert max(apart.values()) <= tolerance, {name: value for name, value in apart.items() if value > tolerance}


# One pair of each kind that a rung must get right: delayed updates, draws that depend on the update's number, and
# windows drawn within the loop. Others receive an update's number, or have two buffers. MOPO's batches mix the
# dataset's rows with a model's.
EACH_KIND = ("td3_bc", "cql", "dt", "finetune/spot", "finetune/rebrac", "model_based/mopo")


@pytest.mark.parametrize("name", EACH_KIND)
def test_a_call_for_each_update_is_the_scan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the host or the device draws and gathers the batch."""
    compile_nothing(monkeypatch)
    expected = jax_parts(jax_rungs.scan(small(name))())
    for rung in (jax_rungs.host_batches, jax_rungs.device_batches):
        check(jax_parts(rung(small(name))()), expected)


def test_each_seed_of_many_is_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    states = jax_rungs.seeds(2, small("td3_bc"))()
    for seed in range(2):
        monkeypatch.setattr(jax_rungs, "WEIGHTS_SEED", 1000 * seed)
        monkeypatch.setattr(jax_rungs, "DRAWS_SEED", 1 + 1000 * seed)
        alone = jax_rungs.scan(small("td3_bc"))()
        check(jax_parts(jax.tree.map(lambda leaf, seed=seed: leaf[seed], states)), jax_parts(alone))


def check_torch(rung: Any, name: str, tolerance: float) -> None:
    """Fails if a rung's updates differ from those of PyTorch eager."""
    torch._dynamo.reset()
    subject, parts = small(name), []
    like = blank_state(subject.pair.jax, subject.pair.jax.TrainConfig(**subject.settings), STATE_DIM, ACTION_DIM)
    for make in (torch_rungs.eager, rung):
        torch_side.seed_everything(0)
        parts.append(torch_parts(make(small(name))(), like))
    check(parts[1], parts[0], tolerance)


def test_a_sync_changes_no_bit() -> None:
    check_torch(torch_rungs.synced, "td3_bc", 0.0)


def test_compiled_code_makes_the_same_updates() -> None:
    """With behaviour cloning, which compiles fastest."""
    check_torch(torch_rungs.compiled, "any_percent_bc", TOLERANCE)


def of_its_own(name: str) -> bool:
    """Whether no other pair makes the same updates; most pairs that go online share them with their offline pair."""
    return name.removeprefix("finetune/") not in PAIRS.keys() - {name}


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in torch_rungs.NOT_COMPILED and of_its_own(name)])
def test_what_is_compiled_is_the_update(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.compile` captures losses, backward passes and steps of Adam for every kind of update.

    The captured operations run one by one here, because generating code for all of them would take minutes. In single
    precision compiled Adam rounds 1 - beta^t, which changes a step by 7e-6.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    precision = PAIRS[name].compiled_in
    with both_in(precision):
        check_torch(torch_rungs.compiled, name, {"float32": 1e-4, "float64": TOLERANCE}[precision])


def test_nothing_is_left_uncompiled_where_several_rungs_share_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """IQL has three optimisers, and compiled code is timed both as it is and in graphs of two lengths."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    for _ in range(3):
        torch_rungs.compiled(small("iql"))()


# Audit events that no update should cause: files, folders, modules and processes
_OUTSIDE = ("open", "import", "os.", "pathlib.", "glob.", "shutil.", "subprocess.", "socket.", "marshal.")
_heard: list[str] | None = None


def _listen(event: str, given: tuple[Any, ...]) -> None:
    if _heard is not None and event.startswith(_OUTSIDE):
        _heard.append(f"{event} {given[:1]}")


# An audit hook stays for the rest of the process, so there is only one.
sys.addaudithook(_listen)


def heard(work: Callable[[], Any]) -> list[str]:
    """The requests that a piece of work makes of the file system or the import system."""
    global _heard
    _heard = []
    try:
        work()
        return _heard
    finally:
        _heard = None


def test_a_look_at_the_disk_is_heard() -> None:
    """The mistake that the next test guards against: looking for a twin's file at every update."""
    twin = load_twin("torch", "td3_bc")
    assert heard(lambda: load_twin.__wrapped__("torch", "td3_bc"))
    assert not heard(lambda: load_twin("torch", "td3_bc"))
    assert load_twin("torch", "td3_bc") is twin


# The model's rows and PRDC's neighbours do not come from a packed dataset, so no host gathers batches for them.
@pytest.mark.parametrize("name", [*EACH_KIND, "any_percent_bc", "prdc", "awr", "discrete/bcq", "model_based/dynamics"])
def test_no_timed_block_looks_at_the_disk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only updates are timed, because any file access or import in a block would be charged to its framework."""
    compile_nothing(monkeypatch)
    subject = small(name, updates=3)
    makers = [torch_rungs.synced, torch_rungs.eager, jax_rungs.device_batches, jax_rungs.scan]
    if name in EACH_KIND:
        makers.append(jax_rungs.host_batches)
    for make in makers:
        block = make(subject)
        block()
        assert not heard(block), make.__name__


def test_every_rung_does_about_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = {name: rung.updates(Subject("td3_bc", 500)) for name, rung in RUNGS.items()}
    assert updates == dict.fromkeys(RUNGS, 500) | {"JAX scan, 16 seeds": 496}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert set(RUNGS) - set(rungs_of(Subject("lb_sac", 5))) == {"JAX scan, 16 seeds"}
    assert set(RUNGS) - set(rungs_of(Subject("edac", 50))) == {COMPILED}


def test_cuda_graphs_are_rungs_of_machines_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    without = rungs_of(Subject("td3_bc", 500))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert set(rungs_of(Subject("td3_bc", 500))) - set(without) == {name for name in RUNGS if "CUDA" in name}


def test_disturbed_blocks_are_left_out() -> None:
    """Unless there are no others."""
    results = Results("pytest", WHAT_SHIPS)
    for seconds, others in ((1.0, 0.0), (2.0, DISTURBED), (4.0, 0.5)):
        results.add("td3_bc", SHIPPED, Block(seconds, others))
    results.add("td3_bc", EAGER, Block(2.0, 0.5))
    assert results.rates("td3_bc", SHIPPED).tolist() == [UPDATES["td3_bc"]]
    assert results.rates("td3_bc", EAGER).tolist() == [UPDATES["td3_bc"] / 2]
