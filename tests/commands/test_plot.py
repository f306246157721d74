"""`corl-twins plot`: the runs that it finds, its picture and its output."""

import io
import json
from pathlib import Path

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from shared.commands.common import ended
from shared.commands.plot import draw, main
from shared.commands.reporting.evaluations import find_runs, read_run
from shared.commands.reporting.runs import Gathered, gather
from tests.commands.test_run_reports import write_run

CURVE = {1000: 10.0, 2000: 20.0, 3000: 30.0, 4000: 40.0}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four seeds of one algorithm in each framework, and one run of another algorithm."""
    folder = tmp_path / "runs"
    for seed in range(4):
        write_run(folder, "IQL", "hopper", "torch", seed, {step: value + seed for step, value in CURVE.items()})
        write_run(folder, "IQL", "hopper", "jax", seed, {step: value - seed for step, value in CURVE.items()})
    write_run(folder, "CQL", "Hopper-v4", "jax", 0, CURVE, metric="return_mean")
    return folder


def test_a_folder_stands_for_the_runs_in_it(runs: Path) -> None:
    every = find_runs([runs])
    assert len(every) == 9
    assert find_runs([every[0], runs]) == every
    assert find_runs([every[3]]) == [every[3]]


def test_what_does_not_count_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run of a seed, one cut, one ended sooner, one diverged and one damaged; none of them is averaged."""
    runs = tmp_path / "runs"
    for seed in (0, 1):
        write_run(runs, "IQL", "hopper", "jax", seed, dict.fromkeys(CURVE, 50.0 + seed))
    again = write_run(tmp_path / "again", "IQL", "hopper", "jax", 0, dict.fromkeys(CURVE, 0.0))
    (again / "result.json").unlink()
    cut = write_run(runs, "IQL", "hopper", "jax", 2, {1000: 0.0, 2000: 0.0})
    (cut / "result.json").unlink()
    write_run(runs, "IQL", "hopper", "jax", 3, {1000: 0.0, 2000: 0.0})
    lost = write_run(runs, "IQL", "hopper", "jax", 4, {1000: 0.0})
    with (lost / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2000, "critic_loss": None, "diverged": "critic_loss is nan"}) + "\n")
    (write_run(runs, "IQL", "hopper", "jax", 5, {}) / "metrics.jsonl").write_text("{\n")
    output = tmp_path / "curves.png"
    assert ended(main, [str(runs), str(again), "--output", str(output), "--stats"]) == 0
    printed, said = capsys.readouterr()
    assert "| IQL on hopper | JAX | 2 | 50.5 [50.0, 51.0]" in printed
    for what in (
        "its seed counts once: runs/IQL-hopper-s0",
        "not finished: at 2,000 of 4000",
        "ends at 2,000, others of its kind at 4,000",
        "diverged: critic_loss is nan at 2,000",
        "is damaged: leave out this run",
    ):
        assert said.count(what) == 1, said
    gathered = gather([runs])
    assert draw(gathered) != draw(gather([path for path in runs.iterdir() if path.name[:14] < "IQL-hopper-s2-"]))


def test_a_panel_of_nothing_has_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs of an algorithm diverged before their first evaluation, so no axis shows a range."""
    for seed, name in enumerate(("IQL", "CQL")):
        write_run(tmp_path, name, "hopper", "jax", seed, {1000: 0.0, 2000: 5.0})
    lost = next(tmp_path.glob("CQL-*"))
    (lost / "metrics.jsonl").write_text(json.dumps({"step": 100, "diverged": "critic_loss is nan"}) + "\n")
    ticks = []
    monkeypatch.setattr(
        "shared.commands.plot.png", lambda figure: ticks.extend(len(axis.get_yticks()) for axis in figure.axes)
    )
    draw(gather([tmp_path]))
    assert ticks[0] == 0 < ticks[1]


def test_the_command_draws_and_tells(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "curves.png"
    assert ended(main, [str(runs), "--output", str(output), "--stats", "--margin", "20"]) == 0
    printed = capsys.readouterr().out
    assert "| IQL on hopper | PyTorch | 4 | 31.5 [" in printed
    assert "| CQL on Hopper-v4 | JAX | 1 | 30.0 (1 seed) | 30.0 (1 seed) |" in printed
    assert "IQL on hopper: JAX over PyTorch in 0.03 [" in printed  # one tie among sixteen pairs
    assert "equal within 20: shown (p < 0.001" in printed
    assert "CQL on Hopper-v4:" not in printed
    height, width, _ = matplotlib.image.imread(output).shape
    assert width > height > 300


def test_a_band_is_drawn_where_there_are_seeds(tmp_path: Path) -> None:
    """A single seed has none."""
    sizes = []
    for seeds in (1, 3):
        for seed in range(seeds):
            write_run(tmp_path / str(seeds), "IQL", "x", "jax", seed, {1: 10.0 * seed, 2: 5.0})
        image = matplotlib.image.imread(io.BytesIO(draw(gather([tmp_path / str(seeds)]))))
        least, most = image[..., :3].min(axis=-1), image[..., :3].max(axis=-1)
        pale = (most > least + 0.05) & (least > 0.6)
        sizes.append(int(pale.sum()))
    assert sizes[0] < 1000 < sizes[1]


def test_a_panel_says_what_its_axis_and_its_band_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs count updates on a dataset and steps in an environment; a single seed has no band."""
    for seed in (0, 1):
        write_run(tmp_path, "IQL", "hopper-medium-v2", "jax", seed, CURVE)
    write_run(tmp_path, "SAC", "Hopper-v5", "jax", 0, CURVE)
    told = []

    def read(figure: Figure) -> bytes:
        for axis in figure.axes:
            told.append((axis.get_xlabel(), [text.get_text() for text in axis.get_legend().get_texts()]))
        return b""

    monkeypatch.setattr("shared.commands.plot.png", read)
    assert ended(main, [str(tmp_path)]) == 0
    assert (tmp_path / "curves.png").exists()
    band = "95% interval of the mean over seeds"
    assert told == [("updates", ["JAX, 2 seeds", band]), ("environment steps", ["JAX, 1 seed"])]


def test_the_online_phase_has_a_line_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores around the switch and both regrets; runs with one phase have neither, and without a goal no regret."""
    for seed, regret in enumerate((0.25, 0.5)):
        run = write_run(tmp_path / "runs", "IQL", "maze", "jax", seed, {})
        rows = [
            {"step": 1000, "offline_iter": 999, "return_mean": 0.5, "d4rl_normalized_score": 50.0 + seed},
            {"step": 1200, "online_iter": 199, "train/regret": 1.0},
            {"step": 2000, "online_iter": 999, "train/regret": regret},
            {"step": 2000, "online_iter": 999, "return_mean": 0.9, "d4rl_normalized_score": 90.0, "eval/regret": 0.1},
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_run(tmp_path / "runs", "IQL", "hopper", "jax", 0, CURVE)
    output = tmp_path / "curves.png"
    assert ended(main, [str(tmp_path / "runs"), "--output", str(output), "--stats"]) == 0
    printed = capsys.readouterr().out
    assert "| IQL on maze | JAX | 2 | 50.5 | 90.0 | 0.38 | 0.10 |" in printed
    assert printed.count("| IQL on hopper") == 1
    gathered = gather(find_runs([tmp_path / "runs"])[1:2])
    (run,) = gathered.runs
    assert (run.evaluated.switch, run.evaluated.regrets) == (1000, {"train/regret": 0.25, "eval/regret": 0.1})
    unswitched = Gathered([run._replace(evaluated=run.evaluated._replace(switch=None))], {})
    assert draw(gathered) != draw(unswitched)


def test_a_run_that_goes_on_is_read_as_far_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path, "IQL", "x", "jax", 0, CURVE)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5000, "return_m')
    assert read_run(run).values == CURVE
    begun = write_run(tmp_path, "IQL", "x", "jax", 1, {})
    assert read_run(begun) is None
    assert ended(main, [str(begun), "--output", str(tmp_path / "a.png")]) == 2
    assert "wait for its first evaluation" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_bad_input_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "runs", "IQL", "x", "jax", 0, CURVE)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    cases = [
        ([str(tmp_path / "empty")], "is no run's folder and holds none"),
        ([str(tmp_path / "nowhere")], "there is nothing at "),
        ([str(run / "checkpoints")], f"is a part of a run: name the run's folder, {run}"),
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
    (run / "config.yaml").unlink()
    assert ended(main, [str(run)]) == 2
    assert "config.yaml" in capsys.readouterr().err
    for margin in ("0", "-1", "nan"):
        assert ended(main, [str(run), "--margin", margin]) == 2
        assert "must be greater than 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a$\\frac$", "a\x1bb\udcff", "n" * 200])
def test_a_hostile_name_does_not_spoil_the_others(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(runs, name, "x", "jax", 0, CURVE)
    output = tmp_path / "curves.png"
    assert ended(main, [str(runs), "--output", str(output), "--stats"]) == 0
    capsys.readouterr().out.encode()
    assert output.exists()
