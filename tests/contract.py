"""`python -m tests.contract`: mypy checks every twin against its kind's protocol (`shared/frameworks/contract.py`)."""

import re
import sys
import tempfile
from pathlib import Path

from mypy import api

from shared.frameworks.contract import kind_of
from shared.frameworks.twins import FRAMEWORKS, ROOT, algorithms


def assignments() -> dict[str, str]:
    """For each twin's module, the line that assigns it to a variable of its protocol's type."""
    found = {}
    for framework in FRAMEWORKS:
        for number, path in enumerate(algorithms(framework).values()):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            kind = kind_of(framework, path).__name__
            found[module] = f"import {module}; {framework}_{number}: contract.{kind} = {module}"
    return found


def faults(lines: dict[str, str]) -> list[str]:
    """The errors that mypy finds in these lines, after the module's name. Its own run reports errors elsewhere."""
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
    """Prints the twins that do not fulfil their contract, and exits with 1 if there are any."""
    found = faults(assignments())
    print("\n".join(found) or "every twin fulfils its contract")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
