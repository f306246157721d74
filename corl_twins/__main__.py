"""The command `corl-twins`, in an installed package or in a clone."""

import sys

from corl_twins.place import enter


def main() -> int:
    """Runs the command line; returns its exit status."""
    enter()
    from shared.interrupts import ended_at_once

    with ended_at_once():
        from shared.__main__ import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
