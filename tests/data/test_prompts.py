"""The returns with which DT is prompted on the user's own data: the data's own, in a run and in a saved one."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared.errors import InputError
from shared.frameworks.saved_run import SavedRun, find
from shared.frameworks.twins import load_twin
from shared.runs.own_data import Prompts, prompts, with_corls_prompts

WriteHDF5 = Callable[..., Path]
SMALL = {"embedding_dim": 8, "num_layers": 1, "seq_len": 2, "batch_size": 4, "max_timesteps": 2, "eval_freq": 2}
REWARDS = -np.repeat([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 10).astype(np.float32)


def test_targets_are_the_datas_own_returns(
    write_hdf5: WriteHDF5, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_haste: None
) -> None:
    """The best return, and the one half way from the worst to it; later commands need no data to know them."""
    twin = load_twin("torch", "dt")
    path = write_hdf5(rewards=REWARDS)
    config = twin.TrainConfig(**SMALL, env=str(path), n_episodes=1, runs_path=str(tmp_path), episode_len=10)
    run = twin.train(config)
    assert f"target_returns of {path}: -10, -35, reward_scale 0.0166667" in capsys.readouterr().out
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    asked = {name.partition("_")[0] for row in rows for name in row if name.startswith("eval/")}
    assert asked == {"eval/-10.0", "eval/-35.0"}
    path.unlink()
    settings = SavedRun.open(find(run.folder)).config
    assert (settings.target_returns, settings.reward_scale) == ((-10.0, -35.0), pytest.approx(1 / 60))


def test_corls_count_for_d4rls_names_and_what_is_given_counts_anywhere() -> None:
    twin, returns = load_twin("torch", "dt"), np.array([10.0, 20.0])
    corls = Prompts((12000.0, 6000.0), 0.001)
    assert prompts("halfcheetah-medium-v2", None, None, returns) == corls
    assert prompts("own.hdf5", (7.0,), None, returns) == Prompts((7.0,), 0.05)
    assert prompts("own.hdf5", (7.0,), 0.5, returns) == Prompts((7.0,), 0.5)
    assert prompts("own.hdf5", None, None, np.zeros(3)) == Prompts((0.0,), 1.0)
    saved = with_corls_prompts(twin.TrainConfig(reward_scale=1.0))
    assert (saved.target_returns, saved.reward_scale) == (corls.target_returns, 1.0)


def test_a_list_of_numbers_may_be_null() -> None:
    twin = load_twin("torch", "dt")
    from shared.runs.configs import parse

    assert parse(twin.TrainConfig, "dt", ["--env", "own.hdf5", "--target_returns", "null"]).target_returns is None
    assert parse(twin.TrainConfig, "dt", ["--env", "own.hdf5", "--target_returns", "[3,2]"]).target_returns == (3, 2)
    with pytest.raises(InputError, match="target_returns must be a list of numbers or null, not 'x'"):
        parse(twin.TrainConfig, "dt", ["--env", "own.hdf5", "--target_returns", "x"])
