"""How pytest-xdist shares tests among its processes."""

from xdist.scheduler import LoadScopeScheduling

LADDER = "parity_tests/ladder/test_ladder.py"


class ByFile(LoadScopeScheduling):
    """A file's tests run in one process, since they share what they compile; of the ladder, the tests of a pair do."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        pair = test.partition("[")[2].removesuffix("]").partition("-")[0]
        return f"{file} {pair}" if file == LADDER else file
