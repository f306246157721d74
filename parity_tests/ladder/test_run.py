"""Each side's own `train`, including evaluation, gives the same run with the same weights, indices and noise."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity_tests.engine.interpreter import interpreted_jit
from parity_tests.engine.precision import both_in
from parity_tests.errors import errors
from parity_tests.pairs import PAIRS
from shared.data.rewards import HundredfoldRewards
from shared.frameworks.exchange import blank_state, to_jax
from shared.runs.run import Run
from shared.runs.settings import RunConfig

SETTINGS = {
    "batch_size": 16,
    "eval_freq": 10,
    "device": "cpu",
    "seed": 1,
}
# One pair that only learns from data, and one that also acts
QUICK = ("td3_bc", "finetune/awac")
# Timings, which depend on the machine
TIMES = {"updates_per_second", "seconds"}


def rows(run: Run) -> list[dict[str, Any]]:
    """The lines of a run's metrics file, without timings."""
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def completed(drawn: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The draws of a run, all with one structure: fields that an update does not draw, and does not read, are 0."""
    columns = [[value for value in column if value is not None] for column in zip(*(n for _, n in drawn), strict=True)]
    blank = [torch.zeros_like(column[-1]) if column and torch.is_tensor(column[-1]) else None for column in columns]
    noise = [type(n)(*(b if v is None else v for v, b in zip(n, blank, strict=True))) for _, n in drawn]
    return list(zip((indices for indices, _ in drawn), noise, strict=True))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.thorough) for name in PAIRS]
)
def test_runs_are_equal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics of all intervals and the returns, lengths and scores of all episodes differ by at most 1e-7.

    The tolerance is wider than a rung's because MuJoCo's contacts magnify the last bits of an action.
    """
    pair = PAIRS[name]
    episodes = {"n_episodes": 2} if issubclass(pair.torch.TrainConfig, RunConfig) else {}
    settings = SETTINGS | episodes | pair.lasting(25) | {"runs_path": str(tmp_path)} | pair.variants["default"]
    settings |= pair.settings.get("run", {})
    refused = hasattr(pair.torch, HundredfoldRewards.__name__)  # for AntMaze alone
    if hasattr(pair.torch.TrainConfig, "normalize_reward") and not refused:
        settings["normalize_reward"] = True
    drawn, explored, initial = [], [], {}
    draw, create = pair.torch.draw_noise, pair.torch.create_trainer

    def recording_draw(*args: Any, **kwargs: Any) -> Any:
        drawn.append(draw(*args, **kwargs))
        return drawn[-1]

    def recording_create(*args: Any) -> Any:
        trainer = create(*args)
        initial["state"] = to_jax(trainer, blank_state(pair.jax, *args))
        return trainer

    def hand_over(name: str) -> None:
        """The JAX twin gets what the PyTorch twin draws with this function, in the same order."""
        handed, original = [], getattr(pair.torch, name)

        def recording(*args: Any) -> Any:
            handed.append(original(*args))
            return handed[-1]

        monkeypatch.setattr(pair.torch, name, recording)
        monkeypatch.setattr(pair.jax, name, lambda *args: handed.pop(0))

    def hand_over_explorations() -> None:
        """The JAX twin gets the PyTorch twin's draws for each step in the environment, starting after the switch."""
        original, first = pair.torch.draw_exploration, pair.torch.TrainConfig(**settings).switch

        def recording(*args: Any) -> Any:
            explored.append(original(*args))
            return explored[-1]

        def replayed(key: Any, step: Any, *args: Any) -> Any:
            columns = jax.tree.map(lambda *draws: jnp.stack([draw.numpy() for draw in draws]), *map(tuple, explored))
            return pair.jax.Exploration(*jax.tree.map(lambda column: column[step - first], columns))

        monkeypatch.setattr(pair.torch, "draw_exploration", recording)
        monkeypatch.setattr(pair.jax, "draw_exploration", replayed)

    with both_in("float64"):
        for other in [*pair.other_draws, *pair.drawn_once]:
            hand_over(other)
        if pair.explores:
            hand_over_explorations()
        pair.replays(monkeypatch)
        monkeypatch.setattr(pair.torch, "draw_noise", recording_draw)
        monkeypatch.setattr(pair.torch, "create_trainer", recording_create)
        config = pair.torch.TrainConfig(**settings)
        reference = rows(pair.torch.train(config))
        leaves = [jax.tree.leaves((indices, tuple(noise))) for indices, noise in completed(drawn)]
        stacked = [jnp.stack([np.asarray(draw) for draw in column]) for column in zip(*leaves, strict=True)]

        def replayed_draw(key: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
            indices, *draws = (column[step] for column in stacked)
            noise = jax.tree.unflatten(jax.tree.structure(tuple(completed(drawn)[0][1])), draws)
            return indices, pair.jax.Noise(*noise)

        monkeypatch.setattr(pair.jax, "draw_noise", replayed_draw)
        monkeypatch.setattr(pair.jax, "create_train_state", lambda *args: initial["state"])
        # The ladder checks XLA's compiled programs.
        for program in ["train_interval", *(["train_online", "next_action"] if pair.explores else [])]:
            monkeypatch.setattr(pair.jax, program, interpreted_jit(getattr(pair.jax, program)))
        ours = rows(pair.jax.train(pair.jax.TrainConfig(**settings)))
    switch = {config.switch} if pair.explores else set()
    assert {row["step"] for row in ours if pair.metric in row} == {10, 20, 25} | switch
    online = {row["step"] > config.switch for row in ours if "online_iter" in row}
    assert online == ({True} if pair.explores else set())
    for row, expected in zip(ours, reference, strict=True):
        assert all(value <= 1e-7 for value in errors(row, expected).values()), errors(row, expected)


def test_torch_defaults_are_back() -> None:
    """No test in another precision affects this one."""
    assert torch.get_default_dtype() == torch.float32
    assert jnp.zeros(()).dtype == jnp.float32
