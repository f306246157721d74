"""`corl-twins report`: the runs that it counts, its tables, and the page in a browser."""

import dataclasses
import html
import json
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml

from shared.commands import statistics
from shared.commands.common import ended
from shared.commands.plot import panels
from shared.commands.report import main, page_of
from shared.commands.reporting import published, tables
from shared.commands.reporting.planned import note_planned
from shared.commands.reporting.runs import gather, outcome_lines
from shared.commands.reporting.watching import server
from shared.commands.sweeping.plan import cells as cells_of
from shared.commands.sweeping.plan import read
from shared.errors import InputError
from shared.runs.configs import dump
from shared.runs.resuming import fingerprint, run_name

MEDIUM, REPLAY = "hopper-medium-v2", "hopper-medium-replay-v2"
CUBES = "ogbench:cube-double-play-singletask"


def write_run(
    folder: Path,
    name: str,
    dataset: str,
    framework: str,
    seed: int,
    score: float | dict[int, float],
    **other: object,
) -> Path:
    """The parts of a run's folder that a report reads; its last three evaluations have this mean, or it has a curve."""
    finished, metric = other.pop("finished", True), other.pop("metric", "d4rl_normalized_score")
    stated = other.pop("stated", {})
    digest = f"{abs(hash((name, dataset, framework, seed, str(other)))) % 16**8:08x}"
    run = folder / f"{name}-{dataset.replace('/', '-')}-s{seed}-{framework}-{digest}"
    run.mkdir(parents=True)
    curve = score if isinstance(score, dict) else {1000: 0.0, 2000: score - 1, 3000: score, 4000: score + 1}
    rows = [
        row for step, value in curve.items() for row in ({"step": step, "loss": 0.1}, {"step": step, metric: value})
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"name": name, "env": dataset, "seed": seed, "max_timesteps": 4000, "discount": 0.99} | other
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    if finished:
        hardware = {"cpu": "a CPU", "device": {"torch": "cpu", "jax": "TFRT_CPU_0"}[framework]}
        speed = {"torch": 100.0, "jax": 250.0}[framework]
        result = {"seconds": {"total": 1800}, "updates_per_second": speed, "hardware": hardware} | stated
        (run / "result.json").write_text(json.dumps(result))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two algorithms, two datasets, two frameworks and three seeds; some runs are missing, cut or damaged."""
    folder = tmp_path / "runs"
    for dataset, base in ((MEDIUM, 50.0), (REPLAY, 90.0)):
        for seed in range(3):
            write_run(folder, "IQL", dataset, "torch", seed, base + seed)
            write_run(folder, "IQL", dataset, "jax", seed, base + 2.0 * seed)
    write_run(folder, "CQL", MEDIUM, "jax", 0, 10.0)
    write_run(folder, "CQL", MEDIUM, "jax", 1, 20.0, finished=False)
    (write_run(folder, "CQL", MEDIUM, "jax", 2, 0.0) / "metrics.jsonl").write_text("{\n")
    return folder


def cells(table: tables.Table) -> dict[str, dict[str, str]]:
    """The cells of a table, by the row's first cell and the column's name."""
    return {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}


def test_the_margin_that_is_shown_is_the_smallest_that_passes() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(50.0, 3.0, size=5), rng.normal(52.0, 4.0, size=4)
    margin = statistics.shown_margin(first, second)
    assert statistics.p_not_equivalent(first, second, margin) == pytest.approx(0.05)
    assert np.isnan(statistics.shown_margin(first, [1.0]))


def test_each_dataset_weighs_the_same_however_many_seeds_it_has(tmp_path: Path) -> None:
    """Eight seeds from 90 to 97 on one, a single 10 on the other: half of the middle half is 10, half is 90 to 93."""
    for seed in range(8):
        write_run(tmp_path, "IQL", MEDIUM, "jax", seed, 90.0 + seed)
    write_run(tmp_path, "IQL", REPLAY, "jax", 0, 10.0)
    tasks = tables.by_task(gather([tmp_path]).groups)
    (mean,) = tables.interquartile_means(tasks).values()
    assert mean.estimate == pytest.approx((10.0 + 91.5) / 2)
    (row,) = tables.aggregates(tasks, tables.interquartile_means(tasks)).rows
    assert row == ["IQL, JAX", "50.8 (1 seed)", "2", "1, 8"]
    profile = statistics.performance_profile(list(tasks["IQL", "jax"].values()), np.array([50.0, 95.5]))
    assert profile.tolist() == [0.5, 0.125]


def test_scores_averages_and_gaps(runs: Path) -> None:
    """Means and deviations, CORL's next to them, an average if none is missing, and runs that do not count."""
    gathered = gather([runs])
    found = cells(tables.scores(gathered))
    assert found[MEDIUM]["IQL, PyTorch"] == "51.0 ± 1.0 (3)"
    assert found[MEDIUM]["IQL, JAX"] == "52.0 ± 2.0 (3)"
    assert found[MEDIUM]["CQL, JAX"] == "10.0 (1 seed)"
    assert found[REPLAY]["CQL, JAX"] == ""
    assert found[REPLAY]["IQL, CORL's"] == "97.4 ± 6.4 (4)"
    assert found["average of locomotion"]["IQL, PyTorch"] == "71.0"
    assert found["average of locomotion"]["CQL, JAX"] == ""
    gaps = [row[1] for row in tables.gaps(gathered).rows]
    assert len(gaps) == 2
    assert gaps[0] == "not finished: at 4,000 of 4000"
    assert "is damaged" in gaps[1]


def test_only_what_a_sweep_planned_is_missing(tmp_path: Path) -> None:
    """Two algorithms with their own seeds and datasets; an unreadable run is not missing."""
    plan = {
        "algorithms": {"iql": {"grid": {"inverse_temperature": ["1", "3"]}}, "td3_bc": None},
        "datasets": [MEDIUM],
        "seeds": "2",
        "frameworks": ["torch"],
        "folder": str(tmp_path),
    }
    wanted = cells_of(read(plan, ""))
    note_planned(tmp_path, wanted[:3])
    note_planned(tmp_path, wanted)
    for cell in wanted[1:]:
        run = tmp_path / f"{run_name(cell.config)}-torch-{fingerprint(cell.config)}"
        run.mkdir()
        (run / "config.yaml").write_text(dump(cell.config))
        (run / "metrics.jsonl").write_text('{"step": 1, "return_mean": 1.0}\n')
        (run / "result.json").write_text(
            '{"seconds": {"total": 1}, "updates_per_second": 1, "hardware": {"cpu": "", "device": "cpu"}}'
        )
    (run / "metrics.jsonl").write_text("{\n")
    write_run(tmp_path, "CQL", REPLAY, "torch", 7, 1.0)
    gathered = gather([tmp_path])
    assert gathered.missing() == {("IQL (inverse_temperature=1.0)", MEDIUM, "torch"): [0]}
    assert ["IQL (inverse_temperature=1.0), PyTorch on hopper-medium-v2", "planned, no run of seed 0"] in tables.gaps(
        gathered
    ).rows
    note_planned(tmp_path, [wanted[0]._replace(config=dataclasses.replace(wanted[0].config, env=REPLAY))])
    gathered = gather([tmp_path])
    assert cells(tables.scores(gathered))[REPLAY]["IQL (inverse_temperature=1.0), PyTorch"] == "missing"
    assert cells(tables.scores(gathered))[REPLAY]["IQL (inverse_temperature=3.0), PyTorch"] == ""
    (tmp_path / "planned.json").write_text("{")
    with pytest.raises(InputError, match=r"planned\.json is damaged: remove it"):
        gather([tmp_path])


def test_a_seed_counts_once(tmp_path: Path) -> None:
    """The finished run that wrote last counts; the seed's other runs are listed with it."""
    for place in ("a", "b", "c"):
        write_run(tmp_path / place, "IQL", MEDIUM, "jax", 0, 50.0, finished=place != "c")
    write_run(tmp_path / "a", "IQL", MEDIUM, "jax", 1, 60.0)
    (first,) = (tmp_path / "a").glob("*-s0-*/metrics.jsonl")
    os.utime(first, (1, 1))
    gathered = gather([tmp_path / place for place in ("a", "b", "c")])
    assert cells(tables.scores(gathered))[MEDIUM]["IQL, JAX"] == "55.0 ± 7.1 (2)"
    left_out = {run.folder.parent.name: why for run, why in gathered.left_out}
    assert left_out.keys() == {"a", "c"}
    assert all(why.startswith("its seed counts once: b/IQL-hopper-medium-v2-s0-jax-") for why in left_out.values())


def test_errors_keep_their_digits_and_no_margin_of_scores(tmp_path: Path) -> None:
    """They are small, and two that differ tenfold are not equal within ten points."""
    for framework, error in (("torch", 0.0123), ("jax", 0.1)):
        for seed in range(2):
            write_run(tmp_path, "IQL", "own.hdf5", framework, seed, error + seed / 1000, metric="action_error")
    gathered = gather([tmp_path])
    (row,) = cells(tables.scores(gathered)).values()
    assert row["IQL, PyTorch"] == "0.0128 ± 0.0007 (2)"
    (row,) = cells(tables.twins(gathered.groups, 10.0)).values()
    assert (row["JAX - PyTorch"], row["equal within 10"]) == ("+0.0877", "")
    assert outcome_lines(gathered)[1].endswith("action error 0.0128 +- 0.0007, 2 seeds")


def test_runs_that_diverged_are_counted_and_not_averaged(tmp_path: Path) -> None:
    for seed in range(3):
        run = write_run(tmp_path, "IQL", MEDIUM, "jax", seed, 50.0 + seed, finished=seed != 2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4000, "critic_loss": null, "diverged": "critic_loss is inf"}\n')
    run = write_run(tmp_path, "CQL", MEDIUM, "jax", 0, 0.0)
    (run / "metrics.jsonl").write_text('{"step": 1, "d4rl_normalized_score": null, "diverged": "the return is nan"}\n')
    run = write_run(tmp_path, "CQL", REPLAY, "jax", 0, 0.0)
    (run / "metrics.jsonl").write_text('{"step": 1, "actor_loss": null, "diverged": "actor_loss is nan"}\n')
    gathered = gather([tmp_path])
    found = cells(tables.scores(gathered))
    assert found[MEDIUM]["IQL, JAX"] == "50.5 ± 0.7 (2, 1 diverged)"
    assert found[MEDIUM]["CQL, JAX"] == "diverged (1)"
    assert found[REPLAY]["CQL, JAX"] == "diverged (1)"
    assert "diverged: critic_loss is inf at 4,000" in [row[1] for row in tables.gaps(gathered).rows]
    assert "diverged" in page_of(gathered, "runs", 10.0)


def test_twins_beside_each_other(runs: Path) -> None:
    """Their difference, both verdicts, and the ratio of their speeds."""
    row = tables.twins(gather([runs]).groups, margin=10.0).rows[1]
    assert row[:3] == [MEDIUM, "IQL", "+1.0"]
    assert row[3].startswith("shown")
    assert float(row[4]) == pytest.approx(statistics.shown_margin([50.0, 52.0, 54.0], [50.0, 51.0, 52.0]), abs=0.05)
    assert row[5] == "2.50"


@pytest.mark.parametrize(
    ("torch", "jax", "ratio"),
    [
        ("cpu", "TFRT_CPU_0", "2.50"),
        ("auto", "cpu:0", "2.50"),
        ("cuda", "cuda:0", "2.50"),
        ("cuda:0", "gpu:1", "other hardware"),
        ("cpu", "cuda:0", "other hardware"),
    ],
)
def test_devices_are_compared_by_what_they_are(torch: str, jax: str, ratio: str, tmp_path: Path) -> None:
    """Whatever names the frameworks give them."""
    gpus = [] if torch == "auto" else ["NVIDIA H200", "NVIDIA A100"]
    for framework, device in (("torch", torch), ("jax", jax)):
        stated = {"hardware": {"cpu": "a CPU", "cores": 2, "gpus": gpus, "device": device}}
        write_run(tmp_path, "IQL", MEDIUM, framework, 0, 50.0, stated=stated)
    (row,) = tables.twins(gather([tmp_path]).groups, margin=10.0).rows
    assert row[-1] == ratio


def test_hours_are_those_of_the_clock(tmp_path: Path) -> None:
    """Three seeds in one process, which count 193, 177 and 161 s, took 193 s; a fourth alone took 107 s."""
    for seed, seconds in enumerate((193.0, 177.0, 161.0)):
        stated = {"seconds": {"total": seconds}, "seeds_at_once": 3}
        write_run(tmp_path, "IQL", MEDIUM, "jax", seed, 50.0, stated=stated)
    write_run(tmp_path, "IQL", MEDIUM, "jax", 3, 50.0, stated={"seconds": {"total": 107.0}})
    groups = gather([tmp_path]).groups
    (results,) = ([(run.evaluated.seed, run.result) for run in runs] for runs in groups.values())
    assert [3600 * hours for hours in tables.wall_hours(results)] == pytest.approx([193.0, 107.0])
    # The second seed of the three is missing.
    assert [3600 * hours for hours in tables.wall_hours([results[0], *results[2:]])] == pytest.approx([193.0, 107.0])
    # A process has one seed more than are left, and another run follows.
    assert [3600 * hours for hours in tables.wall_hours([results[0], results[3]])] == pytest.approx([193.0, 107.0])
    (row,) = tables.costs(groups).rows
    assert row[2:5] == ["0.04", "0.08", "1, 3"]


def test_runs_of_other_settings_are_other_algorithms(tmp_path: Path) -> None:
    """A grid's settings follow the name; settings that every dataset has of its own do not."""
    for discount in (0.9, 0.99):
        write_run(tmp_path, "IQL", MEDIUM, "jax", 0, 50.0, discount=discount)
    write_run(tmp_path, "CQL", MEDIUM, "jax", 0, 50.0, alpha=1.0)
    write_run(tmp_path, "CQL", REPLAY, "jax", 0, 50.0, alpha=2.0)
    gathered = gather([tmp_path])
    groups = gathered.groups
    assert list(panels(gathered)) == [("CQL", REPLAY), ("CQL", MEDIUM), ("IQL", MEDIUM)]
    assert {algorithm for algorithm, _, _ in groups} == {"IQL (discount=0.9)", "IQL (discount=0.99)", "CQL"}
    (row,) = tables.settings({key: found for key, found in groups.items() if key[0] == "CQL"}).rows
    assert row == ["CQL", "alpha", f"{REPLAY}: 2.0; {MEDIUM}: 1.0"]


def test_returns_are_not_averaged_over_datasets(tmp_path: Path) -> None:
    for dataset in (MEDIUM, REPLAY):
        write_run(tmp_path, "SAC", dataset, "jax", 0, 3000.0, metric="return_mean")
    gathered = gather([tmp_path])
    assert not tables.by_task(gathered.groups)
    assert list(cells(tables.scores(gathered))) == [f"{REPLAY} (return)", f"{MEDIUM} (return)"]


def test_published_scores_are_found_by_the_names_of_runs() -> None:
    assert published.CORL.score(published.name_of("TD3_BC"), MEDIUM) == "60.4 ± 3.5 (4)"
    assert published.CORL.score(published.name_of("rebrac"), MEDIUM) == "102.3 ± 0.2 (4)"
    assert published.CORL.score("IQL", "mini/hopper-medium-replay") == ""
    assert published.FQL.score("FQL", f"{CUBES}-task3-v0") == "22 ± 5 (8)"
    assert published.FQL.score("ReBRAC", MEDIUM) == ""
    assert published.OGBENCH.score("HIQL", "ogbench:antmaze-giant-navigate-v0") == "65 ± 5 (8)"


def test_the_online_phase_is_compared_with_published_results(tmp_path: Path) -> None:
    """Scores before and after the switch and both regrets, followed by CORL's if it has the dataset."""
    maze = "antmaze-umaze-v2"
    for seed, gain in ((0, 10.0), (1, 14.0)):
        run = write_run(tmp_path, "rebrac-finetune", maze, "jax", seed, 0.0, online_iterations=2000)
        rows = [{"step": step, "d4rl_normalized_score": value} for step, value in ((1000, 20.0), (2000, 40.0))]
        rows += [{"step": 2001, "online_iter": 0}]
        rows += [{"step": 3000, "d4rl_normalized_score": 0.0, "train/regret": 0.9, "eval/regret": 0.8}]
        rows += [{"step": 4000, "d4rl_normalized_score": 40.0 + gain, "train/regret": 0.5, "eval/regret": 0.25}]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_run(tmp_path, "IQL", MEDIUM, "jax", 0, 50.0)
    table = tables.phases(gather([tmp_path]).groups)
    assert table.head[2:] == [
        *("before", "after", "training regret", "evaluation regret"),
        *("before, published", "after, published", "training regret, published"),
    ]
    assert table.rows == [
        [
            *(maze, "rebrac-finetune, then online, JAX"),
            *("40.0 ± 0.0 (2)", "52.0 ± 2.8 (2)", "0.50 ± 0.00 (2)", "0.25 ± 0.00 (2)"),
            *("98.0 ± 1.6 (4)", "74.8 ± 42.6 (4)", "0.11 ± 0.18 (4)"),
        ]
    ]
    assert "CORL's published figures" in table.note
    run = write_run(tmp_path / "own", "IQL", "mini/hopper-medium-replay", "torch", 0, 0.0, online_iterations=2000)
    rows = [{"step": 1000, "d4rl_normalized_score": 1.0}, {"step": 1001, "online_iter": 0}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = tables.phases(gather([tmp_path / "own"]).groups)
    assert table.head[-1] == "evaluation regret"
    assert table.rows[0][2:] == ["1.0 (1 seed)", "", "", ""]
    assert "CORL's published figures" not in table.note


def test_published_online_tables_are_whole() -> None:
    """CORL's six algorithms on ten datasets; the averages over the AntMazes equal the averages in its README."""
    averages = {"AWAC": (18.12, 16.46, 0.82), "Cal-QL": (53.04, 97.33, 0.07), "ReBRAC": (80.0, 78.88, 0.11)}
    corl, fql = published.PHASES
    assert len(corl.results) == 6
    for title, expected in averages.items():
        found = corl.results[title]
        assert len(found) == 10
        mazes = [scores for dataset, scores in found.items() if dataset.startswith("antmaze")]
        for name, mean in zip(("before", "after", "regret"), expected, strict=True):
            assert np.mean([scores[name][0] for scores in mazes]) == pytest.approx(mean, abs=0.0051)
    assert fql.shown("IFQL", "antmaze-umaze-v2") == ["94 ± 5 (8)", "96 ± 2 (8)"]
    assert fql.shown("RLPD", "ogbench:scene-play-singletask-v0") == ["0 ± 0 (8)", "100 ± 0 (8)"]
    assert published.KIT.score("MOBILE", MEDIUM) == "103.6 ± 1.0 (4)"


def test_ogbenchs_tasks_stand_beside_fqls_paper(tmp_path: Path) -> None:
    """A set without a number is its default task; the tasks of a set are averaged, and no other source has them."""
    for task, score in (("-task2", 30.0), ("-task3", 20.0)):
        write_run(tmp_path, "FQL", f"{CUBES}{task}-v0", "jax", 0, score, metric="success_percent")
    write_run(tmp_path, "IQL", f"{CUBES}-task2-v0", "jax", 0, 1.0, metric="success_percent")
    write_run(tmp_path, "IQL", MEDIUM, "jax", 0, 50.0)
    table = tables.scores(gather([tmp_path]))
    assert table.head[-3:] == ["IQL, CORL's", "IQL, FQL's paper", "FQL, FQL's paper"]
    found = cells(table)
    row = found[f"{CUBES}-task2-v0 (success rate in percent)"]
    assert (row["FQL, JAX"], row["FQL, FQL's paper"], row["IQL, FQL's paper"]) == (
        "30.0 (1 seed)",
        "36 ± 6 (8)",
        "1 ± 1 (8)",
    )
    assert row["IQL, CORL's"] == ""
    assert found["average of OGBench cube-double-play"]["FQL, JAX"] == "25.0"
    assert "CORL's published figures" in table.note
    assert table.note.count("FQL's paper") == 1
    assert published.FQL.score("FQL", f"{CUBES}-v0") == published.FQL.score("FQL", f"{CUBES}-task2-v0")


def test_fqls_paper_has_every_task() -> None:
    """Ten sets of five tasks, and their default tasks; the means over the tasks equal its published aggregates."""
    for title, mean in (("BC", 5), ("IQL", 83), ("ReBRAC", 91), ("IFQL", 79), ("FQL", 96)):
        scores = published.FQL.scores[title]
        assert sum(name.startswith("ogbench:") for name in scores) == 60
        tasks = [scores[f"ogbench:cube-single-play-singletask-task{number}-v0"][0] for number in range(1, 6)]
        assert abs(np.mean(tasks) - mean) <= 0.6


def test_the_command_writes_three_files(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that fetches nothing, Markdown and LaTeX; names from files are not treated as HTML."""
    write_run(runs, "<b>X</b>", MEDIUM, "jax", 0, 1.0)
    main([str(runs)])
    page = (runs / "report.html").read_text()
    assert capsys.readouterr().out.strip() == str(runs / "report.html")
    assert "<b>X</b>" not in page
    assert "<i>runs</i>" not in page_of(gather([runs]), "<i>runs</i>", 10.0)
    assert "default-src 'none'" in html.unescape(page)
    assert "| IQL, PyTorch" in (runs / "report.md").read_text()
    assert r"\toprule" in (runs / "report.tex").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}/nothing"], "there is nothing at "),
        (["{}", "--margin", "0"], "--margin must be greater than 0"),
        (["{}", "--port", "-1"], "--port must lie between"),
        (["{}", "--output", "{}/a file/report.html"], "set --output"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    arguments: list[str], said: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "a file").write_text("")
    assert ended(main, [argument.format(runs) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_served_page_follows_the_runs(runs: Path) -> None:
    """It is rebuilt once a run has written, and nothing else is served."""
    made: list[str] = []

    def make(gathered: object, digest: str) -> str:
        made.append(digest)
        return f"page {len(made)}"

    with server([runs], make, 0) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{listening.server_address[1]}"

        def answer(path: str) -> str:
            with urllib.request.urlopen(address + path, timeout=10) as found:
                return found.read().decode()

        assert [answer("/"), answer("/"), answer("/digest")] == ["page 1", "page 1", made[0]]
        write_run(runs, "CQL", REPLAY, "jax", 0, 1.0)
        assert answer("/digest") != made[0]
        assert answer("/") == "page 2"
        with next(runs.glob("IQL*/metrics.jsonl")).open("a") as metrics:
            metrics.write(json.dumps({"step": 5000, "d4rl_normalized_score": 1.0}) + "\n")
        assert answer("/") == "page 3"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            answer("/../../etc/passwd")
        with pytest.raises(InputError, match="cannot serve on port"):
            server([runs], make, listening.server_address[1])
        listening.shutdown()
    assert "const shown" in page_of(gather([runs]), "runs", 10.0, "0123")
