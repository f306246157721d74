"""The comparison of policies by fitted Q evaluation, which may be made in several calls."""

from pathlib import Path

import numpy as np

from benchmarks.judged import once


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    """The second call reads the results that the first one kept."""
    calls: list[int] = []

    def make() -> dict[str, list[np.float32]]:
        calls.append(1)
        return {"final": [np.float32(1.5)]}

    for _ in range(2):
        assert once(tmp_path / "row.json", make) == {"final": [1.5]}
    assert len(calls) == 1
