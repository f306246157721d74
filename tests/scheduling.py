"""How pytest-xdist shares tests among its processes."""

from xdist.scheduler import LoadScopeScheduling

LADDER = "parity_tests/ladder/test_ladder.py"


class ByFile(LoadScopeScheduling):
    """Runs a file's tests in one process, since they share what they compile; for the ladder, the tests of a pair."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        pair = test.partition("[")[2].removesuffix("]").partition("-")[0]
        return f"{file} {pair}" if file == LADDER else file
