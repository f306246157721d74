"""The command `corl-twins`, wherever the house stands: in an installed package, or in a clone."""

import sys
from pathlib import Path


def main() -> int:
    """Puts the house first on the path of imports, then runs the command line; returns its exit status.

    A wheel holds the house below this package, where `shared` and the other general names of its rooms are in nobody's
    way. In a clone this package stands beside them.
    """
    here = Path(__file__).resolve().parent
    installed = here / "house"
    sys.path.insert(0, str(installed if installed.is_dir() else here.parent))
    from shared.interrupts import ended_at_once

    with ended_at_once():
        from shared.__main__ import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
