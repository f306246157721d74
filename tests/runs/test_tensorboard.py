"""TensorBoard's file of events, read back by TensorBoard's own reader."""

import dataclasses
import io
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from shared.errors import InputError
from shared.runs.run import Run
from shared.runs.task import load_task
from tests.runs.stopped_runs import only_run, train
from tests.runs.stopped_runs import rows as rows_of
from tests.runs.test_resume import evaluation_fails
from tests.runs.test_runs import Config, config, rows, run_to_the_end

__all__ = ["config"]


@pytest.fixture
def wanted(config: Config) -> Config:
    """The settings of a run that TensorBoard should show."""
    return dataclasses.replace(config, tensorboard=True)


def events(folder: Path) -> EventAccumulator:
    """The events that TensorBoard finds in a folder."""
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0}).Reload()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The (step, value) pairs of each name."""
    found = events(folder)
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_is_not_imported_unless_asked_for(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # importing it now fails
    run = run_to_the_end(config, load_task(config))
    assert not list(run.folder.glob("events*"))


def test_without_the_package_a_line_says_what_to_install(wanted: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'corl-twins\[tensorboard\]', or leave out --tensorboard"):
        Run(wanted, load_task(wanted), "cql", "torch")
    assert not Path(wanted.runs_path).exists()


def test_tensorboard_holds_the_same_rows(wanted: Config) -> None:
    """Each number of each row, in single precision, under its name and its step."""
    run = run_to_the_end(wanted, load_task(wanted))
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in rows(run):
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                expected.setdefault(name, []).append((row["step"], np.float32(value)))
    assert {"loss", "d4rl_normalized_score", "updates_per_second"} <= set(expected)
    assert scalars(run.folder) == expected


def test_tensorboard_has_the_settings_and_the_curve(wanted: Config) -> None:
    """The settings in TensorBoard's own table, the curve as in the run's folder."""
    run = run_to_the_end(wanted, load_task(wanted))
    found = events(run.folder)
    (session,) = found.PluginTagToContent("hparams").values()
    settings = HParamsPluginData.FromString(session).session_start_info
    assert settings.group_name == run.folder.name
    assert settings.hparams["eval_freq"].number_value == 10
    assert settings.hparams["normalize"].bool_value is True
    assert settings.hparams["checkpoints_path"].string_value == "None"
    assert set(settings.hparams) == {field.name for field in dataclasses.fields(wanted)}
    (picture,) = found.Images("learning_curve")
    drawn = matplotlib.image.imread(run.folder / "learning_curve.png")
    np.testing.assert_array_equal(matplotlib.image.imread(io.BytesIO(picture.encoded_image_string)), drawn)
    assert (picture.step, picture.height, picture.width) == (40, *drawn.shape[:2])


@pytest.mark.usefixtures("in_haste")
def test_a_run_that_goes_on_voids_what_comes_again(tmp_path: Path) -> None:
    """Only the rewritten ones are shown of the rows after the last checkpoint."""
    with evaluation_fails(2), pytest.raises(ZeroDivisionError):
        train("torch", "td3_bc", tmp_path, tensorboard=True)
    folder = only_run(tmp_path)
    # As in a run that was killed later: rows that the run will write again
    writer = EventFileWriter(str(folder), filename_suffix=".later")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    writer.add_event(Event(step=12, summary=Summary(value=[Summary.Value(tag="critic_loss", simple_value=1e6)])))
    writer.close()
    assert (12, 1e6) in scalars(folder)["critic_loss"]
    train("torch", "td3_bc", tmp_path, tensorboard=True, resume=str(folder))
    expected = [(row["step"], np.float32(row["critic_loss"])) for row in rows_of(folder) if "critic_loss" in row]
    assert scalars(folder)["critic_loss"] == expected
    assert len(expected) == 3


def test_a_file_of_events_that_fails_is_told_once(
    wanted: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(writer: EventFileWriter, event: object) -> None:
        raise OSError(28, "No space left on device")

    with Run(wanted, load_task(wanted), "cql", "torch", device="cpu") as run:
        monkeypatch.setattr(EventFileWriter, "add_event", fail)
        for step in (1, 2):
            run.log(step, {"loss": 0.5})
    expected = "TensorBoard has failed (No space left on device); the run goes on without"
    assert capsys.readouterr().err.splitlines() == [expected]
    assert (run.folder / "result.json").exists()


def test_no_folder_is_left_where_its_file_cannot_be_written(wanted: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(writer: EventFileWriter, folder: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EventFileWriter, "__init__", fail)
    with pytest.raises(InputError, match=r"TensorBoard's file cannot be written .*No space left on device"):
        Run(wanted, load_task(wanted), "cql", "torch").__enter__()
    assert list(Path(wanted.runs_path).iterdir()) == []
