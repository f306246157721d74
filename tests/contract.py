"""`python -m tests.contract`: mypy holds every twin to the protocol of its kind (`shared/frameworks/contract.py`)."""

import re
import sys
import tempfile
from pathlib import Path

from mypy import api

from shared.frameworks.contract import kind_of
from shared.frameworks.twins import FRAMEWORKS, ROOT, algorithms


def assignments() -> dict[str, str]:
    """By each twin's module, the line that assigns it to a variable of its protocol's type."""
    found = {}
    for framework in FRAMEWORKS:
        for number, path in enumerate(algorithms(framework).values()):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            kind = kind_of(framework, path).__name__
            found[module] = f"import {module}; {framework}_{number}: contract.{kind} = {module}"
    return found


def faults(lines: dict[str, str]) -> list[str]:
    """What mypy finds in these lines, after the module's name. What it finds elsewhere, its own run has found."""
    # mypy takes a program or the packages that the settings name, not both.
    settings = re.sub(r"(?m)^packages = .*$", "", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    program = "\n".join(["from shared.frameworks import contract", *lines.values()])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pyproject.toml"
        file.write_text(settings, encoding="utf-8")
        found, errors, _ = api.run(["--config-file", str(file), "-c", program])
    assert not errors, errors
    modules = ["", "", *lines]
    return [
        f"{modules[int(number)]}: {message}" for number, message in re.findall(r"(?m)^<string>:(\d+): (.*)$", found)
    ]


def main() -> None:
    """Prints what does not fulfil its contract, and exits with 1 if anything does not."""
    found = faults(assignments())
    print("\n".join(found) or "every twin fulfils its contract")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
