"""The tables in the README and the docs match the results files."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import catalogue, report, results
from parity_tests import listing
from parity_tests.families import Family
from parity_tests.pairs import PAIRS
from shared.commands.reporting import published


def test_every_place_is_one_that_is_filled() -> None:
    """A place with a name that the report cannot read would silently stay as it is."""
    kinds = "|".join(report.TABLES)
    for page in report.PAGES:
        opened = re.findall(rf"<!-- /?(?:{kinds})\b(?!:)", page.read_text())
        assert len(opened) == 2 * len(report.PLACE.findall(page.read_text())), page


@pytest.mark.thorough
def test_a_place_is_filled_again_and_the_rest_stays() -> None:
    page = "# A\n<!-- likeness -->\n| old |\n<!-- /likeness -->\nrest\n"
    filled = report.filled(page)
    assert filled.startswith("# A\n<!-- likeness -->\n\n| pair |")
    assert filled.endswith("\n\n<!-- /likeness -->\nrest\n")
    assert "old" not in filled
    assert report.filled(filled) == filled


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(KeyError):
        report.filled("<!-- pace -->\n<!-- /pace -->")


def test_a_gpu_without_a_graph_says_nothing_of_pytorchs_best() -> None:
    """All machines are shown side by side, for the algorithms that all of them have timed."""

    def machine(gpus: list[str], names: list[str], **rates: float) -> dict:
        timed = {name.replace("_", " "): {"updates_per_second": {"max": rate}} for name, rate in rates.items()}
        rungs = {results.EAGER: {"updates_per_second": {"max": 50.0}}, **timed}
        rungs[results.SHIPPED] = {"updates_per_second": {"max": 300.0}}
        found = {"gflop_per_update": 1.0, "rungs": rungs}
        return {"hardware": {"gpus": gpus, "cpu": "Xeon"}, "algorithms": dict.fromkeys(names, found)}

    host = machine([], ["bc", "iql"], PyTorch_compiled=100.0)
    bare = machine(["H200"], ["iql", "dqn"], PyTorch_compiled=100.0)
    graph = machine(["H200"], ["iql"], **{"PyTorch,_a_CUDA_graph_an_update": 400.0})
    assert results.side_by_side([host, bare, graph]).splitlines() == [
        "| algorithm | GFLOP per update | Xeon | over PyTorch's best | H200 | over PyTorch's best "
        "| H200 | over PyTorch's best |",
        "|---|---|---|---|---|---|---|---|",
        "| iql | 1.00 | 50.0, 100.0, 300.0 | **3.00** | 50.0, 100.0, 300.0 | no graph "
        "| 50.0, 400.0, 300.0 | **0.75** |",
    ]


@pytest.mark.parametrize("gpus", [[], ["H200"]])
def test_a_ladder_of_two_rungs_is_drawn(gpus: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It needs neither many seeds at once nor a graph."""
    rung = {"updates_per_second": {"max": 50.0}, "share_of_matmul_peak": 0.5}
    timed = {"gflop_per_update": 1.0, "rungs": {results.EAGER: rung, results.SHIPPED: rung}}
    ladder = {"hardware": {"gpus": gpus, "cpu": "Xeon"}, "algorithms": {"iql": timed}}
    (tmp_path / "updates-machine.json").write_text(json.dumps(ladder))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert list(report.charts()) == ["updates-machine"]


def test_every_algorithm_is_listed_once_in_its_family() -> None:
    """On the front page and on the algorithms page; no family is empty, and each note on a choice is one sentence."""
    for family in Family:
        assert listing.of_family(family), family
    assert sum(len(listing.of_family(family)) for family in Family) == len(PAIRS)
    assert listing.table().count("](algorithms/") == catalogue.table().count(".md) | ") == len(PAIRS)
    for pair in PAIRS.values():
        assert re.fullmatch(r"[A-Z][^.]*\.( [A-Z][^.]*\.)?", pair.use), pair.name


def test_scores_stand_apart_in_standard_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """60, 62 and 64 have a standard error of 1.155, and so have 4 seeds with a population deviation of 2."""
    monkeypatch.setitem(published.CORL.scores["IQL"], "mini/one", [58.0, 2.0])
    files = {"one": ([60.0, 62.0, 64.0], [60.0, 62.0, 64.0]), "two": ([60.0, 62.0, 64.0], [65.0, 67.0, 69.0])}
    for name, (torch, jax) in files.items():
        sides = {
            "torch": {"mean_of_last_3": torch, "updates": 10, "seconds_total": [60.0]},
            "jax": {"mean_of_last_3": jax, "updates": 10, "seconds_total": [30.0]},
        }
        found = {"algorithm": "iql", "dataset": {"name": f"mini/{name}"}, "data_policies": {}, "frameworks": sides}
        (tmp_path / f"seeds-{name}.json").write_text(json.dumps(found))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    head, _, one, two = report.scores(None).splitlines()
    cells = [dict(zip(head.split(" | ")[4:], row.split(" | ")[4:], strict=True)) for row in (one, two)]
    # 4.303 standard errors on either side, by Student's t with 2 degrees of freedom
    assert cells[0]["PyTorch [95%]"] == "62.0 [57.0, 67.0]"
    assert cells[0]["JAX less PyTorch, in standard errors"] == "+0.0, 0.0"
    assert cells[0]["CORL's"] == "58.0 ± 2.0 (4)"
    assert cells[0]["PyTorch less CORL's, in standard errors"] == "+4.0, 2.4: nobody knows why yet"
    assert cells[1]["JAX less PyTorch, in standard errors"] == "+5.0, 3.1: nobody knows why yet"
    assert cells[1]["CORL's"] == cells[1]["PyTorch less CORL's, in standard errors"] == ""
