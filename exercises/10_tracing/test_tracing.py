"""Six updates, three on either side of the branch: PyTorch's policies, by one program for each setting."""

from collections.abc import Iterator
from functools import wraps
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
import torch

RNG = np.random.default_rng(0)
POLICY, CRITIC = RNG.normal(size=(4, 2)), RNG.normal(size=6)
BATCH = RNG.normal(size=(7, 4)), RNG.uniform(-1, 1, size=(7, 2))


def policies(exercise: ModuleType, normalize: bool) -> Iterator[Any]:
    policy = POLICY
    for step in range(6):
        policy = exercise.update(policy, CRITIC, *BATCH, step, bc_steps=3, normalize=normalize)
        yield policy


@pytest.mark.parametrize("normalize", [True, False])
def test_the_policies_are_pytorch_s(exercise: ModuleType, fragment: ModuleType, normalize: bool) -> None:
    """After every step, that of the change included."""
    theirs, *given = (torch.as_tensor(x) for x in (POLICY, CRITIC, *BATCH))
    for step, ours in enumerate(policies(exercise, normalize)):
        theirs = fragment.update(theirs, *given, step, 3, normalize)
        wrong = f"the policy after step {step} differs"
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10, err_msg=wrong)


def test_one_program_serves_every_step(exercise: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`actor_loss` runs in Python while `update` is traced, and not again."""
    traces, traced = [], exercise.actor_loss

    @wraps(traced)
    def counted(*given: Any, **named: Any) -> Any:
        traces.append(given)
        return traced(*given, **named)

    monkeypatch.setattr(exercise, "actor_loss", counted)
    list(policies(exercise, normalize=True))
    assert len(traces) == 1, f"six updates trace actor_loss {len(traces)} times: one program must serve every step"


def test_the_setting_is_static(exercise: ModuleType) -> None:
    """What it leaves out is not in the program."""

    def update(policy: Any) -> Any:
        return exercise.update(policy, CRITIC, *BATCH, 5, bc_steps=3, normalize=False)

    program = str(jax.make_jaxpr(update)(POLICY))
    assert "abs" not in program, "without normalize, the program still computes the value's size"
