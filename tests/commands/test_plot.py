"""`corl-twins plot`: which runs it finds, what it draws and what it prints."""

import io
import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from shared.commands.common import ended
from shared.commands.plot import draw, find_runs, main, panels, read_run

CURVE = {1000: 10.0, 2000: 20.0, 3000: 30.0, 4000: 40.0}


def write_run(
    folder: Path, title: str, framework: str, seed: int, curve: dict[int, float], metric: str = "d4rl_normalized_score"
) -> Path:
    """A run's folder as far as the plot reads it."""
    run = folder / f"{title}-s{seed}-{framework}-{seed:08x}"
    run.mkdir(parents=True)
    rows = []
    for step, value in curve.items():
        rows += [{"step": step, "critic_loss": 0.1}, {"step": step, "return_mean": 32.0 * value}]
        if metric != "return_mean":
            rows[-1][metric] = value
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four seeds on each side of one algorithm, one run of another."""
    folder = tmp_path / "runs"
    for seed in range(4):
        write_run(folder, "IQL-hopper", "torch", seed, {step: value + seed for step, value in CURVE.items()})
        write_run(folder, "IQL-hopper", "jax", seed, {step: value - seed for step, value in CURVE.items()})
    write_run(folder, "CQL-Hopper-v4", "jax", 0, CURVE, "return_mean")
    return folder


def test_a_folder_stands_for_the_runs_in_it(runs: Path) -> None:
    every = find_runs([runs])
    assert len(every) == 9
    assert find_runs([every[0], runs]) == every
    assert find_runs([every[3]]) == [every[3]]


def test_runs_are_grouped_and_scored_by_their_last_evaluations(runs: Path) -> None:
    grouped = panels([read_run(folder) for folder in find_runs([runs])])
    assert {title: {side: len(found) for side, found in sides.items()} for title, sides in grouped.items()} == {
        "CQL-Hopper-v4": {"jax": 1},
        "IQL-hopper": {"jax": 4, "torch": 4},
    }
    assert sorted(run.score() for run in grouped["IQL-hopper"]["torch"]) == [30.0, 31.0, 32.0, 33.0]
    assert grouped["CQL-Hopper-v4"]["jax"][0].metric == "return_mean"
    assert grouped["CQL-Hopper-v4"]["jax"][0].score() == 32.0 * 30.0


def test_the_command_draws_and_tells(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "curves.png"
    assert ended(main, [str(runs), "--output", str(output), "--stats", "--margin", "20"]) == 0
    printed = capsys.readouterr().out
    assert "| IQL-hopper | PyTorch | 4 | 31.5 [" in printed
    assert "| CQL-Hopper-v4 | JAX | 1 | 960.0 | 960.0 |" in printed
    assert "IQL-hopper: JAX over PyTorch in 0.03 [" in printed  # one tie among sixteen pairs
    assert "equal within 20: shown (p < 0.001" in printed
    assert "CQL-Hopper-v4:" not in printed
    height, width, _ = matplotlib.image.imread(output).shape
    assert width > height > 300


def test_a_band_is_drawn_where_there_are_seeds(tmp_path: Path) -> None:
    """And nowhere else."""
    sizes = []
    for seeds in (1, 3):
        found = [write_run(tmp_path / str(seeds), "IQL-x", "jax", s, {1: 10.0 * s, 2: 5.0}) for s in range(seeds)]
        image = matplotlib.image.imread(io.BytesIO(draw(panels([read_run(run) for run in found]))))
        pale_blue = (image[..., 2] - image[..., 0] > 0.1) & (image[..., 0] > 0.6)
        sizes.append(int(pale_blue.sum()))
    assert sizes[0] < 1000 < sizes[1]


def test_the_online_phase_has_a_line_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores around the switch and both regrets; a run of one phase has neither, one without a goal no regret."""
    for seed, regret in enumerate((0.25, 0.5)):
        run = write_run(tmp_path / "runs", "IQL-maze", "jax", seed, {})
        rows = [
            {"step": 1000, "offline_iter": 999, "return_mean": 0.5, "d4rl_normalized_score": 50.0 + seed},
            {"step": 1200, "online_iter": 199, "train/regret": 1.0},
            {"step": 2000, "online_iter": 999, "train/regret": regret},
            {"step": 2000, "online_iter": 999, "return_mean": 0.9, "d4rl_normalized_score": 90.0, "eval/regret": 0.1},
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_run(tmp_path / "runs", "IQL-hopper", "jax", 0, CURVE)
    output = tmp_path / "curves.png"
    assert ended(main, [str(tmp_path / "runs"), "--output", str(output), "--stats"]) == 0
    printed = capsys.readouterr().out
    assert "| IQL-maze | JAX | 2 | 50.5 | 90.0 | 0.38 | 0.10 |" in printed
    assert printed.count("| IQL-hopper") == 1
    run = read_run(find_runs([tmp_path / "runs"])[1])
    assert (run.switch, run.regrets) == (1000, {"train/regret": 0.25, "eval/regret": 0.1})
    assert draw(panels([run])) != draw(panels([run._replace(switch=None)]))


def test_a_run_that_goes_on_is_read_as_far_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path, "IQL-x", "jax", 0, CURVE)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5000, "return_m')
    assert read_run(run).values == CURVE
    begun = write_run(tmp_path, "IQL-x", "jax", 1, {})
    assert read_run(begun) is None
    assert ended(main, [str(begun), "--output", str(tmp_path / "a.png")]) == 2
    assert "wait for its first evaluation" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_bad_input_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "runs", "IQL-x", "jax", 0, CURVE)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    cases = [
        ([str(tmp_path / "empty")], "is no run's folder and holds none"),
        ([str(tmp_path / "nowhere")], "is no run's folder and holds none"),
        ([str(run), "--output", str(tmp_path / "file" / "x.png")], "set --output"),
    ]
    for arguments, message in cases:
        assert ended(main, arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    (run / "metrics.jsonl").write_text('{"return_mean": "high", "step": 1}\n')
    assert ended(main, [str(run)]) == 2
    assert "is damaged: leave out this run" in capsys.readouterr().err
    huge, deep = "1" * 400, "[" * 100_000
    steps, values = ("1e999", huge, "-1"), ("1e999", "NaN", huge, deep)
    for step, value in [*((step, "1") for step in steps), *(("1", value) for value in values)]:
        (run / "metrics.jsonl").write_text(f'{{"step": {step}, "return_mean": {value}}}\n')
        assert ended(main, [str(run)]) == 2
        error = capsys.readouterr().err
        assert "is damaged: leave out this run" in error
        assert error.count("\n") == 1
    (run / "metrics.jsonl").unlink()
    assert ended(main, [str(run)]) == 2
    assert "cannot read" in capsys.readouterr().err
    for margin in ("0", "-1", "nan"):
        assert ended(main, [str(run), "--margin", margin]) == 2
        assert "must be greater than 0" in capsys.readouterr().err


def test_steps_that_not_all_seeds_have_are_left_out(tmp_path: Path) -> None:
    found = [write_run(tmp_path, "IQL-x", "jax", 0, CURVE), write_run(tmp_path, "IQL-x", "jax", 1, {1000: 1.0})]
    assert np.frombuffer(draw(panels([read_run(run) for run in found])), np.uint8).size > 1000


@pytest.mark.parametrize("name", ["a$\\frac$", "$", "a\x1bb\udcff", "n" * 200])
def test_a_hostile_name_does_not_spoil_the_others(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(runs, name, "jax", 0, CURVE)
    output = tmp_path / "curves.png"
    assert ended(main, [str(runs), "--output", str(output), "--stats"]) == 0
    capsys.readouterr().out.encode()
    assert output.exists()
