"""Every exercise fails as it is, for the intended reason, and passes with its solution."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from port_checker import check

ROOT = Path(__file__).resolve().parents[2]
EXERCISES = ROOT / "exercises"
FOLDERS = sorted(path.name for path in EXERCISES.iterdir() if path.name[0].isdigit())
AWAC = "17_awac"

# The messages of each exercise's failing tests
REASONS = {
    "01_weight_transfer": ["the hidden layer's outputs differ", "shapes differ from those of Net"],
    "02_broadcast": ["the loss differs", "rewards handed to other rows change nothing"],
    "03_stop_gradient": ["the gradient differs"],
    "04_polyak": [
        *("a target's kernel differs", "the network changed in place", "target and network share an array"),
    ],
    "05_adam": ["exp_avg_sq differs", "the kernel's step differs"],
    "06_keys": ["the two noises have a correlation of 1.00", "two updates draw the same"],
    "07_delayed_update": ["NotImplementedError"],
    "08_scan": ["a loss is fetched from the device at every update"],
    "09_defaults": ["LayerNorm and GELU differ", "the gradient at -20.0 differs", "the bound of fresh weights"],
    "10_tracing": ["TracerBoolConversionError"],
    "11_nan": ["12 of 12 entries of the gradient are NaN"],
    "12_dtype": ["the rate after 0 updates is 0.0000", "the rates are float32", "the weights differ"],
    "13_vmap": ["stack gives 60 leaves", "operations where one takes"],
    "14_carry": ["carry input and carry output must have equal types"],
    "15_out_of_range": ["the last target is", "does not begin with that step's state"],
    "16_convolution": [
        *("maps of a kernel of ones differ", "height and width are exchanged", "flattened in another order"),
    ],
    "18_ring": ["6 rows, pushed 3 at a time, are not where", "rows of a batch were never stored"],
    "19_devices": ["eight seeds draw 1 different lists", "the program talks between devices, by all-"],
    "20_from_jax": [
        *("the bound of the head's fresh weights differs", "of size 0.01, the block differs"),
        *("of size 2.0, the block differs", "the gradient at -1.0 differs", "the gradient at 1.0 differs"),
        *("after an update, the policy differs", "after an update, the target differs"),
    ],
}


# Both sessions share a process, so the second one reuses the first one's imports and programs. Programs with tiny
# arrays are compiled with few optimisations, because in double precision their rounding does not matter.
SESSIONS = """
import sys
import pytest

for name, options in (("untouched", []), ("solved", ["--solution"])):
    pytest.main(["exercises", "-q", "-p", "no:cacheprovider", f"--junitxml={sys.argv[1]}/{name}.xml", *options])
"""
HASTE = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pytest's reports of the exercises as they are, and with their solutions."""
    folder = tmp_path_factory.mktemp("reports")
    command = [sys.executable, "-c", SESSIONS, str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | HASTE, capture_output=True, text=True, timeout=600, check=False
    )
    (folder / "printed").write_text(done.stdout)
    return folder


def outcomes(report: Path) -> dict[str, list[str | None]]:
    """For each folder, the messages of its failed tests, and None for each passed one."""
    found: dict[str, list[str | None]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failure = case.find("failure")
        message = None if failure is None else f"{failure.get('message')} {failure.text}"
        found.setdefault(case.get("classname").split(".")[1], []).append(message)
    return found


def test_every_exercise_has_its_pieces() -> None:
    assert len(FOLDERS) >= 8
    for folder in FOLDERS:
        assert {"README.md", "exercise.py"} <= {path.name for path in (EXERCISES / folder).iterdir()}
        assert (EXERCISES / "solutions" / f"{folder}.py").is_file()
    assert {path.stem for path in (EXERCISES / "solutions").glob("*.py")} == set(FOLDERS) == REASONS.keys() | {AWAC}
    assert all(f"exercises/{folder})" in (ROOT / "docs" / "port" / "exercises.md").read_text() for folder in FOLDERS)


@pytest.mark.thorough
def test_untouched_exercises_are_red_for_their_reason(reports: Path) -> None:
    found = outcomes(reports / "untouched.xml")
    assert found.keys() == REASONS.keys()
    for folder, reasons in REASONS.items():
        failed = [message for message in found[folder] if message is not None]
        assert failed, folder
        for reason in reasons:
            assert any(reason in message for message in failed), (folder, reason, failed)


@pytest.mark.thorough
def test_a_red_test_says_one_sentence(reports: Path) -> None:
    """Without a traceback: the assertion's message, or the line of the exercise where an exception was raised."""
    printed = (reports / "printed").read_text().splitlines()
    for header, words in (
        ("test_nothing_else_moves", "the network changed in place"),
        ("test_the_target_shares_no_array_with_its_network", "target and network share an array"),
        ("test_no_branch_is_left", "NotImplementedError, in line"),
    ):
        (place,) = (i for i, line in enumerate(printed) if line.strip("_ ") == header and line.startswith("_"))
        assert printed[place + 1].startswith(words)
        assert printed[place + 2].startswith("_")
    assert "--tb=short shows where it happened" in printed
    assert not any(line.startswith(">  ") for line in printed)


@pytest.mark.thorough
def test_solutions_are_green(reports: Path) -> None:
    found = outcomes(reports / "solved.xml")
    assert found.keys() == REASONS.keys()
    assert all(message is None for messages in found.values() for message in messages), found


def test_awac_is_red_until_it_is_written(capsys: pytest.CaptureFixture) -> None:
    assert check.main([str(EXERCISES / AWAC / "exercise.py"), "--algorithm", "awac"]) == 1
    assert capsys.readouterr().out == "weights     not checked yet: write create_train_state\n"


@pytest.mark.thorough
@pytest.mark.usefixtures("in_haste")
def test_awac_s_solution_is_green(capsys: pytest.CaptureFixture) -> None:
    assert check.main([str(EXERCISES / "solutions" / f"{AWAC}.py"), "--algorithm", "awac"]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == "17_awac.py is awac: all checks pass under the settings 'default', 'sharp'"
