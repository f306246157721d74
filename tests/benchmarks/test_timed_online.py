"""The loops of `benchmarks.online` run for every kind of pair that continues in an environment."""

from pathlib import Path
from unittest import mock

import pytest

from benchmarks import online
from parity_tests.pairs import PAIRS

pytestmark = pytest.mark.thorough


# One replay buffer, two with shares of a batch, two without, a balanced one, and one for chunks
@pytest.mark.parametrize(
    "name", ["finetune/iql", "finetune/cal_ql", "finetune/rlpd", "finetune/balanced_replay", "finetune/acfql"]
)
def test_both_twins_step_and_learn(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small networks; afterwards, each environment has made the steps of one block."""
    monkeypatch.setattr(online, "ROWS", 400)
    monkeypatch.setattr(online, "STEPS", 3)
    pair = PAIRS[name]
    small = {**pair.variants["default"], **pair.settings.get("timed", {}), "buffer_size": 1000}
    with mock.patch.dict(pair.settings, {"timed": small}):
        sides = online.sides_of(pair, tmp_path / "rows.hdf5")
        for side in sides.values():
            side.block()
            assert side.experience.size == 3
            side.experience.close()
