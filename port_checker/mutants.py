"""`corl-twins mutants my_torch.py my_jax.py`: whether small mistakes in your own files would be noticed."""

import argparse
import os
import random
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tqdm import tqdm

from port_checker.parity import add_files, pair_of
from shared.commands.common import Parser, at_least
from shared.errors import InputError
from shared.interrupts import ended_at_once

with ended_at_once():
    from parity_tests.engine.caches import forget
    from parity_tests.engine.precision import both_in
    from parity_tests.ladder.rungs import RUNGS, tolerance
    from parity_tests.ladder.scene import Scene
    from parity_tests.mutants.climbing import FIRST, ORDER
    from parity_tests.mutants.operators import Mutant, mutants
    from parity_tests.mutants.planting import PATIENCE, EndlessError, limited, planted
    from parity_tests.mutants.twins import SIDES
    from parity_tests.pair import Pair
    from port_checker.check import told_change
    from port_checker.explaining.changes import Change

# Mutants after which compiled programs are dropped from memory
ROUND = 100
# A test command is stopped after so many times the seconds that it takes without a mutant, and some more.
PATIENT, MORE = 10, 30
# Folders of a project that its tests don't need
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "venv", "runs", "__pycache__", ".*_cache", "*.egg-info")

# Says what notices a source in place of the file's own; an empty string if nothing does
Notices = Callable[[str], str]
ENDLESS = "it never ended"


# ---- by the checks of `corl-twins parity` --------------------------------------------------------------------------


def noticed_by_checks(pair: Pair, side: str) -> Notices:
    """Runs the checks on one file's mutants against the other file, the cheap ones first, until one fails.

    Raises:
        InputError: The files don't agree without a mutant.
    """
    if failed := _failed(pair, pair.jax):
        raise InputError(f"the files do not agree yet ({failed}): run `corl-twins parity` on them first")
    made = 0

    def notices(source: str) -> str:
        nonlocal made
        made += 1
        if made % ROUND == 0:
            forget()
        try:
            twin = planted(f"a mutant of {pair.name}", source)
        except Exception:
            return "the import fails"
        changed = _with_torch(pair, twin) if side == "torch" else pair
        try:
            with limited(PATIENCE):
                return _failed(changed, twin if side == "jax" else pair.jax)
        except EndlessError:
            return ENDLESS

    return notices


def _failed(pair: Pair, jax_twin: ModuleType) -> str:
    """The first check that fails, or an empty string."""
    with both_in("float64"):
        for check in ORDER:
            for variant in pair.variants:
                try:
                    found = RUNGS[check].climb(Scene.create(pair, jax_twin, variant, FIRST, RUNGS[check].warm))
                except Exception:
                    return check
                if not all(value <= tolerance(pair, check, "float64") for value in found.values()):
                    return check
    return ""


def _with_torch(pair: Pair, twin: ModuleType) -> Pair:
    """The pair with another PyTorch file. What was found out about the right one stays."""
    changed: Pair = object.__new__(type("Mutated", (type(pair),), {"torch": twin}))
    vars(changed).update(vars(pair))
    return changed


# ---- by tests of one's own -----------------------------------------------------------------------------------------


@contextmanager
def noticed_by_tests(command: str, file: Path) -> Iterator[Notices]:
    """Runs a command in a copy of the current folder, with the mutant in the file's place.

    Raises:
        InputError: The file lies elsewhere, the command cannot be run, or it fails without a mutant.
    """
    root = Path.cwd()
    if not file.resolve().is_relative_to(root):
        raise InputError(f"{file} is not below {root}: call this in your project's folder")
    words = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / root.name
        shutil.copytree(root, copy, ignore=LEFT_OUT)
        place = copy / file.resolve().relative_to(root)

        def passes(seconds: float | None) -> bool:
            path = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
            # Python takes a file of the same second and size for the one that it has compiled.
            variables = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(words, cwd=copy, env=variables, capture_output=True, timeout=seconds, check=False)
            return done.returncode == 0

        begun = time.monotonic()
        try:
            right = passes(None)
        except OSError as error:
            raise InputError(f"cannot run {words[0]} ({error.strerror}): give a command as you would type it") from None
        if not right:
            raise InputError(f"`{command}` fails without a mutant in a copy of {root}: mend it first")
        patience = PATIENT * (time.monotonic() - begun) + MORE

        def notices(source: str) -> str:
            place.write_text(source, encoding="utf-8")
            try:
                return "" if passes(patience) else "your tests"
            except subprocess.TimeoutExpired:
                return ENDLESS

        yield notices


# ---- the command ---------------------------------------------------------------------------------------------------


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; `--help` explains it.

    Raises:
        InputError: It cannot be used.
    """
    parser = Parser(
        prog="corl-twins mutants",
        description="Plants small mistakes, one at a time, in a PyTorch file and a JAX file of your own, and lists the "
        "ones that nothing notices. Without --tests, they must be noticed by the checks of `corl-twins parity`. Your "
        "files stay as they are; BOTH ARE EXECUTED. It exits with 0 when all mistakes are noticed, with 1 when some "
        "are not, with 2 when a file cannot be used.",
    )
    add_files(parser)
    parser.add_argument("--side", choices=[*SIDES, "both"], default="both", help="whose mistakes (default: both)")
    parser.add_argument("--sample", type=at_least(1), metavar="N", help="try N mistakes of each file, drawn at random")
    parser.add_argument("--seed", type=int, help="seed of the sample (default: another each time)")
    parser.add_argument("--verbose", action="store_true", help="also list the mistakes that are noticed, and by what")
    parser.add_argument(
        "--tests", metavar="COMMAND", help='your own tests, such as "pytest tests"; they run in a copy of this folder'
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status: 1 if some mistakes are not noticed.

    Raises:
        InputError: The command line or a file cannot be used.
    """
    options = parse_arguments(arguments)
    files = {"jax": options.jax, "torch": options.torch}
    chosen = {side: files[side] for side in (SIDES if options.side == "both" else [options.side])}
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    if options.sample:
        print(f"a sample: --sample {options.sample} --seed {seed}")
    tried = survived = 0
    with warnings.catch_warnings():
        # Mistakes lead to infinities, casts and steps in the wrong order.
        warnings.simplefilter("ignore")
        pair = pair_of(options.torch, options.jax) if options.tests is None else None
        for side, file in chosen.items():
            source = _read(file)
            found = _mutants_of(source, side, options.sample, random.Random(seed))
            tried += len(found)
            if pair is not None:
                survived += _tell(file.name, source, found, noticed_by_checks(pair, side), options.verbose)
            else:
                with noticed_by_tests(options.tests, file) as notices:
                    survived += _tell(file.name, source, found, notices, options.verbose)
    if survived:
        print("Each of these shows a gap in what is checked, or computes the same as before.")
    print(f"{tried} mistake{'' if tried == 1 else 's'}, {tried - survived} noticed, {survived} not")
    return 1 if survived else 0


def _read(file: Path) -> str:
    try:
        source = file.read_text(encoding="utf-8")
        compile(source, file, "exec")
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"cannot read {file} ({error}): give PyTorch's file, then JAX's") from None
    return source


def _mutants_of(source: str, side: str, sample: int | None, draw: random.Random) -> list[Mutant]:
    every = mutants(source, SIDES[side])
    return every if sample is None else draw.sample(every, min(sample, len(every)))


def _tell(file: str, source: str, tried: Sequence[Mutant], notices: Notices, verbose: bool) -> int:
    """Prints the mistakes that are not noticed, or all, as changes of lines; returns how many are not noticed."""
    survived = 0
    with tqdm(tried, desc=file, unit="mistake", leave=False, disable=None) as bar:
        for mutant in bar:
            noticed_by = notices(mutant.applied(source))
            survived += not noticed_by
            if verbose or not noticed_by:
                tqdm.write(told_change(_as_change(file, source, mutant)), file=sys.stdout)
            if verbose:
                tqdm.write(f"    noticed by: {noticed_by or 'nothing'}", file=sys.stdout)
    return survived


def _as_change(file: str, source: str, mutant: Mutant) -> Change:
    """The whole lines that a mutant changes, before and after."""
    begin = source.rfind("\n", 0, mutant.start) + 1
    end = source.find("\n", mutant.start + len(mutant.old))
    old = source[begin : end if end >= 0 else len(source)]
    new = old[: mutant.start - begin] + mutant.new + old[mutant.start - begin + len(mutant.old) :]
    return Change(f"in `{mutant.function}`", f"{file}:{mutant.line}", old, new)
