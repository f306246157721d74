"""CUDA graphs of updates, recorded and replayed by a stand-in on the CPU: nothing that a recording fixes may matter.

Only CUDA's own part, the dozen lines of `CudaGraphs`, is not tested here. Six algorithms have been timed with it.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks import cuda_graphs, torch_rungs
from benchmarks.subjects import ACTION_DIM, STATE_DIM, Subject
from benchmarks.torch_rungs import loop
from parity_tests.engine.precision import both_in
from parity_tests.pairs import PAIRS
from shared.frameworks import torch_side
from shared.frameworks.exchange import blank_state
from tests.benchmarks.test_rungs import check, of_its_own, small, torch_parts

# Closed forms and Adam's arithmetic in another order differ by 2e-14.
TOLERANCE = 1e-12


def memory(tree: Any) -> set[int]:
    """The addresses of a tree's tensors."""
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}


class Tape(TorchDispatchMode):
    """Records every operation of PyTorch in order, with its inputs and outputs, as a CUDA graph records kernels."""

    def __init__(self) -> None:
        super().__init__()
        self._calls, self._before, self._made = [], [], set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Runs the operation and records it; one that hands a number to Python would stop a recording."""
        kwargs = kwargs or {}
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host waits for the device"
        self._keep_what_is_overwritten(func, args)
        made = func(*args, **kwargs)
        # An alias keeps its shape: for a vector times a matrix, PyTorch drops an axis in place.
        self._calls.append((func, args, kwargs, tree_map_only(torch.Tensor, torch.Tensor.detach, made)))
        self._made |= memory(made) - memory(args)
        return made

    def _keep_what_is_overwritten(self, func: Any, args: tuple) -> None:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._before += [(t, t.detach().clone()) for t in tree_leaves(value) if not memory(t) & self._made]

    def undo(self) -> None:
        """Restores the state, latest change first, because recording on a GPU runs nothing."""
        for tensor, value in reversed(self._before):
            tensor.detach().copy_(value)

    @torch.no_grad()
    def repeat(self) -> None:
        """Repeats the same operations on the same memory."""
        for func, args, kwargs, made in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Tapes(cuda_graphs.CudaGraphs):
    """Records on the CPU."""

    aside = nullcontext

    def record(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Records as on a GPU."""
        with (tape := Tape()):
            metrics = work()
        tape.undo()
        return tape.repeat, metrics


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In double precision; Adam claims to keep its counts on a GPU only, but can do so on a CPU as well."""
    adam = importlib.import_module("torch.optim.adam")
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda *args, **kwargs: ["cpu"])
    with both_in("float64"):
        yield


def recordable(name: str, updates: int) -> Subject:
    """A small subject that never makes the host wait for the device."""
    return cuda_graphs.on_device(small(name, updates))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "length"),
    [*((name, 4) for name, pair in PAIRS.items() if pair.records_on_cpu and of_its_own(name)), ("td3_bc", 1)],
)
def test_repeated_recordings_are_the_updates(name: str, length: int) -> None:
    """Compares them after two blocks, in which every update except the warm-ups is a replay."""
    subject, before = small(name), cuda_graphs.updates_before(length, small(name, 4))
    like = blank_state(subject.pair.jax, subject.pair.jax.TrainConfig(**subject.settings), STATE_DIM, ACTION_DIM)
    torch_side.seed_everything(0)
    expected = torch_parts(torch_rungs.eager(recordable(name, before + 8))(), like)
    torch_side.seed_everything(0)
    block = cuda_graphs.recorded(loop(recordable(name, 4)), length, small(name, 4), Tapes())
    block()
    found = torch_parts(block(), like)
    # Python's counters stand still in a replay; no update on a dataset alone reads them.
    counted = [name for name in expected if name.startswith("total_it")]
    found, expected = ({key: v for key, v in side.items() if key not in counted} for side in (found, expected))
    check(found, expected, max(TOLERANCE, PAIRS[name].tolerances.get("float64", {}).get("recording", 0.0)))
