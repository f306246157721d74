"""`corl-twins new my_algorithm --from td3_bc`: a pair of your own to start from, which all checks pass."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import yaml

from shared.commands.common import Parser
from shared.errors import InputError
from shared.files import write_atomically
from shared.frameworks.twins import FRAMEWORKS, ROOT, algorithms, name_of, page_of, path_of
from shared.interrupts import ended_at_once

with ended_at_once():
    from parity_tests.engine.precision import both_in
    from parity_tests.ladder.rungs import RUNGS
    from parity_tests.ladder.scene import Scene
    from parity_tests.losses import state_of
    from parity_tests.own import LIKE, own_pair
    from parity_tests.pairs import PAIRS

# The contents of new files, by path
Files = dict[Path, str]
# The checks that show whether a pair needs its adapter
TOLD_BY = ("forward", "loss", "update")
# Inserted before the twins' first import of ours, because only a clone has `shared` on the path
ENTER = "from corl_twins.place import enter\n\nenter()  # finds `shared` in the installed package\n"


# ---- the names -----------------------------------------------------------------------------------------------------


def in_camel_case(name: str) -> str:
    """`MyTd3` for `my_td3`."""
    return "".join(word.capitalize() for word in name.split("_"))


def renamed(text: str, source: str, name: str, places: Mapping[str, str]) -> str:
    """A file of a pair under another name.

    Args:
        text: The file.
        source: The pair that it belongs to.
        name: The new algorithm's name.
        places: The new paths of both files, by framework: `corl_jax/my_td3.py`.
    """
    pair, last = PAIRS[source], name.rpartition("/")[2]
    for framework, place in places.items():
        ours = path_of(framework, source).relative_to(ROOT).as_posix()
        text = re.sub(rf"\b{re.escape(ours)}", place, text)
    text = re.sub(rf"(['\"]){re.escape(source)}\1", rf"\1{name}\1", text)
    words = {state_of(pair.jax).__name__, pair.torch.TrainConfig.name, pair.title}
    for word in sorted(words, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", in_camel_case(last), text)
    return text


def needs_adapter(source: str) -> bool:
    """Whether a pair's files leave something open that only its adapter defines."""
    try:
        with both_in("float64"):
            pair = own_pair(PAIRS[source].torch, PAIRS[source].jax, source)
            for rung in TOLD_BY:
                found = RUNGS[rung].climb(Scene.create(pair, pair.jax, "default", "cornered", RUNGS[rung].warm))
                if any(not value <= RUNGS[rung].float64 for value in found.values()):
                    return True
    except Exception:
        # An InputError means that something is open, anything else that a guess was wrong.
        return True
    return False


# ---- shared by both kinds ------------------------------------------------------------------------------------------


HEAD = """\
# {title}: the settings of each dataset where they differ from the defaults of TrainConfig.
# A row counts for both twins; the command line and a --config_path file go before it.
"""


def table(source: str, name: str) -> str:
    """A table of settings for the bundled datasets, copied from a pair's."""
    rows = {dataset: row or {} for dataset, row in _rows(source).items() if dataset.startswith("mini/")}
    title = in_camel_case(name.rpartition("/")[2])
    return f"{HEAD.format(title=title)}{_dumped(rows)}"


def _rows(source: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "configs" / f"{source}.yaml").read_text(encoding="utf-8"))


def _dumped(rows: Mapping[str, Any]) -> str:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(dict(rows), Dumper=Plain, sort_keys=False)


def write_all(files: Files) -> None:
    """Writes all of these files, or none.

    Raises:
        InputError: One of them exists already.
    """
    if there := [path for path in files if path.exists()]:
        raise InputError(f"{there[0]} is there already: choose another name or another folder")
    written: list[Path] = []
    try:
        for path, text in files.items():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise InputError(f"{path.parent} is no folder, because a file is there: name another one") from error
            write_atomically(path, text.encode())
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink()
        raise


# ---- a project of its own ------------------------------------------------------------------------------------------

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{dashed}"
version = "0.1.0"
description = "{title} in PyTorch and in JAX"
requires-python = ">=3.11"
# Where this package was installed from when the project was made. Another machine needs a place that it can reach.
dependencies = ["{requirement}"]

[project.optional-dependencies]
test = ["pytest>=8.3"]

[tool.setuptools]
py-modules = ["{name}_torch", "{name}_jax"]
"""
TEST = '''\
"""The twins compute the same: `corl-twins parity` compares everything that both files hold."""

import subprocess
import sys
from pathlib import Path


def test_twins_agree() -> None:
    """If this fails, pytest shows the table of checks and an explanation of the first that fails."""
    files = ["{name}_torch.py", "{name}_jax.py"]
    command = [sys.executable, "-m", "corl_twins", "parity", *files]
    assert subprocess.run(command, cwd=Path(__file__).parent).returncode == 0
'''
WORKFLOW = """\
name: parity
on: [push, pull_request]
jobs:
  parity:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install -e '.[test]'
      - run: pytest
"""
README = """\
# {title}

{title} in PyTorch and in JAX, started from {source_title} ({paper}, {url}) with `corl-twins new`.

```
pip install -e '.[test]'  # pyproject.toml says where corl-twins comes from
python {name}_jax.py --help  # the settings
python {name}_jax.py  # trains on a bundled dataset
corl-twins parity {name}_torch.py {name}_jax.py
pytest  # does the same, as CI does
```

| file | what it holds |
|---|---|
| `{name}_torch.py`, `{name}_jax.py` | the algorithm: settings, networks, random draws, losses, update, training |
| `configs/{name}.yaml` | settings for each dataset |
| `test_parity.py` | the test that both files agree |

Change both files together, and run `corl-twins parity` after each change. If they differ, it tells you in which loss,
gradient or update, and looks for the line to change.
"""


def requirement() -> str:
    """The requirement that installs this package from where it came: a file, a folder, a repository or an index."""
    try:
        recorded = distribution("corl-twins").read_text("direct_url.json")
    except PackageNotFoundError:  # a clone that was never installed
        return f"corl-twins @ {ROOT.as_uri()}"
    if recorded is None:  # from an index of packages
        return "corl-twins"
    origin = json.loads(recorded)
    if vcs := origin.get("vcs_info"):
        return f"corl-twins @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
    return f"corl-twins @ {origin['url']}"


def project(folder: Path, source: str, name: str) -> Files:
    """A folder with both twins that depends on the installed package."""
    places = {framework: f"{name}_{framework}.py" for framework in FRAMEWORKS}
    files: Files = {}
    for framework, place in places.items():
        text = renamed(path_of(framework, source).read_text(encoding="utf-8"), source, name, places)
        files[folder / place] = text.replace(
            "from shared.runs.start import cli\n", f"{ENTER}from shared.runs.start import cli\n", 1
        )
    if needs_adapter(source):
        jax_file = folder / places["jax"]
        line = f'# `corl-twins parity` compares this pair as it compares this one of its own.\n{LIKE} = "{source}"\n\n'
        files[jax_file] = files[jax_file].replace("# ---- config", f"{line}# ---- config", 1)
    pair = PAIRS[source]
    facts = {"name": name, "dashed": name.replace("_", "-"), "title": in_camel_case(name)}
    facts |= {"requirement": requirement()}
    facts |= {"source_title": pair.title, "paper": pair.paper, "url": pair.url}
    return files | {
        folder / "configs" / f"{name}.yaml": table(source, name),
        folder / "test_parity.py": TEST.format(**facts),
        folder / "pyproject.toml": PYPROJECT.format(**facts),
        folder / "README.md": README.format(**facts),
        folder / ".github" / "workflows" / "parity.yml": WORKFLOW,
    }


# ---- within a clone ------------------------------------------------------------------------------------------------

DERIVATION = '''\
"""{title}: a second derivation of the PyTorch update, written from the equations."""

import pytest

from corl_torch{package} import {module}
from shared.data.transitions import Batch


def test_{page}(dataset: Batch) -> None:
    """Six updates are equal, to the bit where the arithmetic is the same."""
    assert {module}.create_trainer({module}.TrainConfig(device="cpu"), dataset.observations.shape[1], 3, 1.0)
    pytest.fail("derive {title}'s update from its equations; the other files in this folder show how")
'''
PAGE = """\
# {title}

Say what {title} does in two sentences, and cite its paper. It started as {source_title} ([{paper}]({url})).

## Usage

```
python corl_jax/{name}.py                              # the bundled dataset
python corl_torch/{name}.py
```

## The losses

{losses}
## Config

| setting | what it does |
|---|---|
{settings}

## Logged metrics

## Implementation details that matter

## What differs between the twins

## Results

<!-- seeds {name} -->
<!-- /seeds -->

<!-- updates {name} -->
<!-- /updates -->
"""
PIECE = """\
Write the formula of `{loss}` here.

```{{side-by-side}} {name}
:piece: {loss}
```

"""


def six_files(root: Path, source: str, name: str) -> Files:
    """The files that CONTRIBUTING.md lists; the page and the second derivation have to be filled in."""
    pair, page, module = PAIRS[source], page_of(name), name.rpartition("/")[2]
    places = {framework: f"corl_{framework}/{name}.py" for framework in FRAMEWORKS}
    adapter = ROOT / "parity_tests" / "pairs" / f"{page_of(source)}.py"
    files = {
        root / place: renamed(path_of(framework, source).read_text(encoding="utf-8"), source, name, places)
        for framework, place in places.items()
    }
    facts = {"name": name, "module": module, "page": page, "title": in_camel_case(module)}
    facts |= {"source_title": pair.title, "paper": pair.paper, "url": pair.url}
    package = "." + name.rpartition("/")[0].replace("/", ".") if "/" in name else ""
    losses = "".join(PIECE.format(loss=loss, name=name) for loss in pair.losses)
    own = [field.name for field in fields(pair.torch.Hyperparameters)]
    settings = "\n".join(f"| `{setting}` | |" for setting in own)
    return files | {
        root / "parity_tests" / "pairs" / f"{page}.py": renamed(adapter.read_text("utf-8"), source, name, places),
        root / "parity_tests" / "reference" / f"test_{page}.py": DERIVATION.format(**facts, package=package),
        root / "configs" / f"{name}.yaml": table(source, name),
        root / "docs" / "algorithms" / f"{page}.md": PAGE.format(**facts, losses=losses, settings=settings),
    }


# ---- the command ---------------------------------------------------------------------------------------------------


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` describes it.

    Raises:
        InputError: The command line is invalid.
    """
    parser = Parser(
        prog="corl-twins new",
        description="Writes a pair of your own to start from: one of our pairs under another name, which passes all "
        "checks. With --into it writes a small project. In a clone of this repository, and without --into, it writes "
        "the six files that CONTRIBUTING.md asks for.",
    )
    parser.epilog = f"ALGORITHM is one of {', '.join(algorithms('jax'))}."
    parser.add_argument("name", metavar="NAME", help="what your algorithm is called, such as my_td3")
    parser.add_argument("--from", required=True, dest="source", metavar="ALGORITHM", help="the pair to start from")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="write a project into this folder")
    options = parser.parse_args(arguments)
    options.source = name_of("jax", options.source)
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", options.name):
        raise InputError(f"{options.name!r} cannot be a name: use small letters, digits and underscores, as in my_td3")
    return options


def main(arguments: Sequence[str]) -> int:
    """Runs the command.

    Raises:
        InputError: The command line is invalid, or a file exists already.
    """
    options = parse_arguments(arguments)
    # A family's algorithms are in its folder.
    family = path_of("jax", options.source).relative_to(ROOT / "corl_jax").parent.as_posix()
    name = options.name if options.into or family == "." else f"{family}/{options.name}"
    if name in algorithms("jax"):
        raise InputError(f"there is an algorithm {name} already: choose another name")
    if options.into:
        files = project(options.into, options.source, name)
        then = f"corl-twins parity {' '.join(map(str, [*files][:2]))}"
    elif (ROOT / "CONTRIBUTING.md").is_file() and Path.cwd().is_relative_to(ROOT):
        files, then = six_files(ROOT, options.source, name), f"pytest parity_tests/ladder -m '' -k {name}"
    else:
        raise InputError("this is no clone of the repository: name a folder for a project, --into FOLDER")
    write_all(files)
    for path in files:
        print(path)
    print(f"now: {then}")
    return 0
