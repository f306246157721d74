"""`corl-twins parity my_torch.py my_jax.py`: runs the checks of our own pairs on a pair of your own."""

import argparse
import importlib.util
import inspect
import json
import math
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tqdm import tqdm

from shared.commands.common import Parser
from shared.errors import InputError
from shared.interrupts import ended_at_once

with ended_at_once():
    from parity_tests import pairs
    from parity_tests.engine.interpreter import interpreted
    from parity_tests.engine.precision import both_in
    from parity_tests.ladder.rungs import DEAR, RUNGS, Errors, tolerance
    from parity_tests.ladder.scene import Engine, Scene
    from parity_tests.ladder.settings import unequal_settings
    from parity_tests.own import LIKE, own_pair
    from parity_tests.pair import Pair
    from port_checker.check import told_change
    from port_checker.explaining.changes import Change
    from port_checker.explaining.repairs import repairs
    from port_checker.finding.loading import described
    from shared.files import write_atomically

# The checks in the order in which they build on each other, each with the meaning of its failure
CHECKS = {
    "settings": "the files' settings differ in name, order, type, default or bounds",
    "weights": "a parameter has another name or shape, or an optimizer another state",
    "forward": "from the same weights, a network computes something else",
    "loss": "all networks agree, so the loss itself is computed differently",
    "gradient": "all losses agree in value, so a stop_gradient or detach is missing, or stops too much",
    "draws": "the random numbers of an update are of other kinds, shapes or distributions, or a key is used twice",
    "update": "all gradients agree, so an optimizer, a target network, or the order of the steps differs",
    "log": "all states agree after an update, so the metric itself differs",
    "act": "the networks agree, so the policy acts differently",
    "rewards": "the rewards of a dataset are changed differently before training",
    "start": "fresh networks start from other numbers or distributions",
    "shipped path": "train_interval computes something else than single updates one after another",
    "trajectory": "single updates agree, and fifty on end do not: something that an update leaves behind differs",
    "compiled": "compiled by XLA, train_interval computes something else than its operations one by one",
}
# The processor time for trying changes to the JAX file
SECONDS = 60.0
# The checks for which such a change is looked for
MENDED = ("forward", "loss", "gradient", "update", "log", "act")
# The largest number of wrong numbers to list
MOST = 5


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Attributes:
        check: The check's name.
        tolerance: The largest error allowed, relative to a tensor's largest entry.
        errors: The errors by settings, then by what is compared.
        stopped: The exception that ended it, in one line.
    """

    check: str
    tolerance: float
    errors: dict[str, Errors] = field(default_factory=dict)
    stopped: str = ""

    @property
    def wrong(self) -> list[tuple[float, str, str]]:
        """The errors above the tolerance, largest first, with the settings under which they occur."""
        every = [(value, what, variant) for variant, found in self.errors.items() for what, value in found.items()]
        return sorted((one for one in every if not one[0] <= self.tolerance), key=lambda one: -one[0])

    @property
    def passed(self) -> bool:
        """Whether all errors are within the tolerance."""
        return not self.stopped and not self.wrong

    @property
    def error(self) -> float:
        """The largest error; infinite if the check was stopped."""
        found = [value for errors in self.errors.values() for value in errors.values()]
        return math.inf if self.stopped else max(found, default=0.0)

    def line(self) -> str:
        """A row of the table."""
        where = f"  {self.stopped}" if self.stopped else ""
        if self.wrong and not self.stopped:
            _, what, variant = self.wrong[0]
            where = f"  {what} (settings '{variant}')"
        return f"{self.check:<13}{self.error:>9.1e}{self.tolerance:>11.0e}  {'pass' if self.passed else 'FAIL'}{where}"


# ---- the files -----------------------------------------------------------------------------------------------------


def load_file(path: Path, framework: str) -> ModuleType:
    """Runs a file as an import would.

    Raises:
        InputError: The file does not exist, or does not run.
    """
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"there is no Python file {path}: give PyTorch's file, then JAX's")
    file = path.absolute()
    spec = importlib.util.spec_from_file_location(f"own_{framework}_{path.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # The file finds its neighbours here.
    sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except SystemExit:
        raise InputError(f'{path} ends the process: put what runs below `if __name__ == "__main__":`') from None
    except Exception as error:
        raise InputError(f"{path} does not run: {described(error, str(file))}") from None
    return module


def pair_of(torch_file: Path, jax_file: Path) -> Pair:
    """Makes a pair from two files.

    Raises:
        InputError: They cannot be used as a pair.
    """
    torch_twin, jax_twin = load_file(torch_file, "torch"), load_file(jax_file, "jax")
    if hasattr(torch_twin, "create_train_state") and hasattr(jax_twin, "create_trainer"):
        raise InputError(f"{torch_file} is the JAX file and {jax_file} PyTorch's: give PyTorch's first")
    return own_pair(torch_twin, jax_twin, jax_file.stem)


# ---- the checks ----------------------------------------------------------------------------------------------------


def checked(pair: Pair, tell: Callable[[str], None] = lambda what: None) -> Iterator[Checked]:
    """Runs the checks of a pair, in order, until a file stops with an exception; `tell` hears what is compared.

    If a setting is missing, only the first check is run.
    """
    for one in _every(pair, tell):
        yield one
        if one.stopped:
            return


def _every(pair: Pair, tell: Callable[[str], None]) -> Iterator[Checked]:
    for check in CHECKS:
        if check == "settings":
            unequal = unequal_settings(pair)
            yield Checked(check, 0.0, {"default": dict.fromkeys(unequal, 1.0) or {"all": 0.0}})
            if _names_of_settings(pair.torch) != _names_of_settings(pair.jax):
                return  # every other check gives both files the same settings
        elif check == "compiled":
            tell("compiled: XLA compiles train_interval")
            with both_in("float32"):
                yield _climbed(
                    pair, check, "shipped path", ["default"], "bundled", "float32", lambda function: function
                )
        else:
            tell(check)
            with both_in("float64"):
                variants = ["default"] if check in DEAR else list(pair.variants)
                yield _climbed(pair, check, check, variants, "cornered", "float64")


def _names_of_settings(twin: ModuleType) -> set[str]:
    return {field.name for field in fields(twin.TrainConfig)}


def _climbed(
    pair: Pair,
    check: str,
    rung: str,
    variants: Sequence[str],
    dataset: str,
    precision: str,
    engine: Engine = interpreted,
) -> Checked:
    limit, found = tolerance(pair, rung, precision), dict[str, Errors]()
    for variant in variants:
        try:
            scene = Scene.create(pair, pair.jax, variant, dataset, RUNGS[rung].warm, engine)
            found[variant] = RUNGS[rung].climb(scene)
        except InputError:
            raise
        except Exception as error:
            return Checked(check, limit, found, f"{_where(error, pair)} (settings '{variant}')")
    return Checked(check, limit, found)


def _where(error: Exception, pair: Pair) -> str:
    """An exception in one line, with the file and the line that it comes from, or the name that an adapter misses."""
    caller = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if isinstance(error, AttributeError) and caller.parent == Path(str(pairs.__file__)).parent:
        like, lacking = getattr(pair.jax, LIKE), type(error.obj).__name__
        return f"pairs like {like} are compared by {error.name}, which {lacking} lacks: keep this name"
    for twin in (pair.jax, pair.torch):
        file = str(twin.__file__)
        if "(line " in (told := described(error, file)):
            return f"{Path(file).name}: {told}"
    return described(error, "")


def mended(pair: Pair, failed: Checked) -> list[Change]:
    """Finds changes to the JAX file that make a check pass."""
    if failed.check not in MENDED or failed.stopped:
        return []
    wrong, rung = failed.wrong[0][1], RUNGS[failed.check]
    variants = list(dict.fromkeys([*(variant for _, _, variant in failed.wrong), *pair.variants]))
    if (own := wrong.partition(" by ")[0]) in pair.losses:
        only, pair = {own: pair.losses[own]}, replace(pair)
        vars(pair)["losses"] = only  # a cached property, which the copy would make anew

    def passes(twin: ModuleType) -> bool:
        own = _described_by(twin, pair)
        scenes = (replace(Scene.create(pair, twin, variant, "cornered", rung.warm), pair=own) for variant in variants)
        return all(value <= failed.tolerance for scene in scenes for value in rung.climb(scene).values())

    with both_in("float64"):
        return repairs(pair, failed.check, wrong, passes, SECONDS)


def _described_by(twin: ModuleType, pair: Pair) -> Pair:
    """The pair, whose updates get what a changed file's loop hands them if the loop is what has changed."""
    if _loop_of(twin).__code__ == _loop_of(pair.jax).__code__:
        return pair
    own = copy(pair)
    vars(own).pop("_intervals", None)
    vars(own)["jax"] = twin
    return own


def _loop_of(twin: ModuleType) -> Any:
    return inspect.unwrap(twin.train_interval)


def explained(pair: Pair, failed: Checked) -> list[str]:
    """Explains what a failed check means, what differs, and which change would mend it."""
    if failed.stopped:
        return [f"{failed.check}: not checked, and neither is what follows, because a file stops with an exception."]
    lines = [f"{failed.check}: {CHECKS[failed.check]}."]
    lines += [f"  {value:8.1e}  {what} (settings '{variant}')" for value, what, variant in failed.wrong[:MOST]]
    if len(failed.wrong) > MOST:
        lines.append(f"  and {len(failed.wrong) - MOST} more")
    wrong = {_group(what) for _, what, _ in failed.wrong}
    if right := sorted({_group(what) for found in failed.errors.values() for what in found} - wrong):
        lines.append(textwrap.fill(f"  These are right: {', '.join(right)}.", 118, subsequent_indent="  "))
    changes = mended(pair, failed)
    if not changes and failed.check in MENDED and not failed.stopped:
        lines.append(f"  No single change that was tried within {SECONDS:.0f} s makes this check pass.")
    if changes:
        several = "any of these changes" if len(changes) > 1 else "this change"
        jax_file, torch_file = changes[0].place.partition(":")[0], Path(str(pair.torch.__file__)).name
        lines.append(f"  With {several} in {jax_file}, the check passes:")
        lines += map(told_change, changes)
        lines.append(f"  If {jax_file} is right, {torch_file} computes what the + lines say instead of the - lines.")
    return lines


def _group(what: str) -> str:
    """The loss or the part that a number belongs to."""
    return what.partition(" by ")[0].partition(".")[0]


# ---- the command ---------------------------------------------------------------------------------------------------


def add_files(parser: argparse.ArgumentParser) -> None:
    """Adds the two files of a pair to a command line."""
    parser.add_argument("torch", type=Path, metavar="TORCH_FILE", help="the PyTorch file")
    parser.add_argument("jax", type=Path, metavar="JAX_FILE", help="the JAX file")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `--help` describes it.

    Raises:
        InputError: The command line is invalid.
    """
    parser = Parser(
        prog="corl-twins parity",
        description="Compares a PyTorch file and a JAX file of your own, as our own pairs are compared: settings, "
        "weights, outputs, losses, gradients, draws, updates, metrics, and the compiled loop. BOTH FILES ARE EXECUTED. "
        "It exits with 0 when all checks pass, with 1 when one fails, with 2 when a file cannot be used. "
        "docs/port/own_pair.md says what the files must hold; `corl-twins new` writes a pair to start from.",
    )
    add_files(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit status, which is 1 if a check fails.

    Raises:
        InputError: The command line or a file cannot be used.
    """
    options = parse_arguments(arguments)
    found: list[Checked] = []
    with warnings.catch_warnings(), tqdm(bar_format="{desc}", leave=False, disable=None) as bar:
        # PyTorch mistakes copies of a trainer for optimisers that somebody has tampered with.
        warnings.filterwarnings("ignore", message="Seems like `optimizer.step")
        pair = pair_of(options.torch, options.jax)
        tqdm.write(f"{'check':<13}{'error':>9}{'tolerance':>11}", file=sys.stdout)
        for one in checked(pair, bar.set_description_str):
            tqdm.write(one.line(), file=sys.stdout)
            found.append(one)
        failed = next((one for one in found if not one.passed), None)
        bar.set_description_str("looking for a change that mends it" if failed else "")
        lines = explained(pair, failed) if failed else []
    print("\n".join(lines) if failed else f"{options.torch.name} and {options.jax.name} agree: all checks pass")
    if options.json:
        write_atomically(options.json, _as_json(options, found, lines).encode())
    return 1 if failed else 0


def _as_json(options: argparse.Namespace, found: Sequence[Checked], explanation: Sequence[str]) -> str:
    """Formats the results as JSON; an infinite error is null."""

    def entry(one: Checked) -> dict[str, Any]:
        worst = one.stopped or (f"{one.wrong[0][1]} (settings '{one.wrong[0][2]}')" if one.wrong else None)
        error = one.error if math.isfinite(one.error) else None
        return {"check": one.check, "error": error, "tolerance": one.tolerance, "passed": one.passed, "worst": worst}

    content = {
        "torch": str(options.torch),
        "jax": str(options.jax),
        "passed": all(one.passed for one in found),
        "checks": [entry(one) for one in found],
        "explanation": list(explanation),
    }
    return json.dumps(content, indent=2) + "\n"
