"""`python -m parity_tests.mutants cql`: tries small changes to both twins; those that no test notices need a reason.

A mutant of a JAX twin climbs the ladder; a mutant of a PyTorch twin is tested against the second derivation of its
updates. The exit status is 1 if some mutants survive without a reason in `equivalent.yaml`.
"""

import argparse
import os
import random
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from tqdm import tqdm

from parity_tests.mutants import memory
from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.reasons import reason
from parity_tests.mutants.trying import climb
from parity_tests.mutants.twins import SIDES, SURVIVED, mutants_of
from parity_tests.pairs import PAIRS

# Mutants of one twin in a sample: preparing a twin takes longer than trying a mutant.
TOGETHER = 5
# Mutants per process: it is then replaced by another, because compiled programs fill the memory
ROUND = 100
Twin = tuple[str, str]


def main(arguments: Sequence[str]) -> int:
    """Tries the mutants, prints complaints, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m parity_tests.mutants", description=__doc__)
    parser.add_argument("algorithm", nargs="*", help="pairs (default: all)")
    parser.add_argument("--side", choices=[*SIDES, "both"], default="both", help="whose mutants (default: both)")
    parser.add_argument("--sample", type=int, metavar="N", help=f"N mutants, {TOGETHER} of each of a few twins")
    parser.add_argument("--seed", type=int, help="of the sample (default: another each time)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.algorithm if name not in PAIRS]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(PAIRS)}")
    sides = SIDES if options.side == "both" else [options.side]
    twins = [(name, side) for name in options.algorithm or PAIRS for side in sides]
    if options.sample:
        seed = secrets.randbelow(10**6) if options.seed is None else options.seed
        print(f"a sample: --sample {options.sample} --seed {seed}", flush=True)
        chosen = sample(twins, options.sample, random.Random(seed))
    else:
        chosen = {(name, side): mutants_of(name, side) for name, side in twins}
    wrong = [line for twin, steps in tried(chosen).items() for line in complaints(*twin, steps)]
    number = sum(map(len, chosen.values()))
    print("\n".join([*wrong, f"{number} mutants of {len(chosen)} twins, {len(wrong)} to look at"]))
    return int(bool(wrong))


def sample(twins: Sequence[Twin], number: int, draw: random.Random) -> dict[Twin, list[Mutant]]:
    """A few twins, and a few mutants of each."""
    few = draw.sample(twins, min(len(twins), -(-number // TOGETHER)))
    return {twin: draw.sample(every := mutants_of(*twin), min(len(every), number // len(few))) for twin in few}


def tried(chosen: Mapping[Twin, Sequence[Mutant]]) -> dict[Twin, dict[str, str]]:
    """The step that notices each mutant, by the mutant's name; uses as many processes as there are cores."""
    jobs = [job for twin, mutants in chosen.items() for job in untried(*twin, mutants)]
    with (
        ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), max_tasks_per_child=1) as processes,
        tqdm(total=sum(len(names) for _, _, names in jobs), disable=None) as progress,
    ):
        running = {processes.submit(climb, *job): job for job in jobs}
        for done in as_completed(running):
            done.result()
            progress.update(len(running[done][2]))
    found: dict[Twin, dict[str, str]] = {}
    for twin, mutants in chosen.items():
        steps = memory.known(*twin)
        found[twin] = {mutant.name: steps[memory.key(*twin, mutant)] for mutant in mutants}
    return found


def untried(name: str, side: str, mutants: Sequence[Mutant]) -> Iterator[tuple[str, str, list[str]]]:
    """Yields jobs for one process each, with the mutants of a twin that have not been tried yet."""
    steps = memory.known(name, side)
    new = [mutant.name for mutant in mutants if memory.key(name, side, mutant) not in steps]
    for start in range(0, len(new), ROUND):
        yield name, side, new[start : start + ROUND]


def complaints(name: str, side: str, steps: Mapping[str, str]) -> Iterator[str]:
    """Complains about mutants that survive without a reason, or that have a reason but do not survive."""
    for mutant, step in steps.items():
        if step == SURVIVED and not reason(name, side, mutant):
            yield f"{side}/{name} survived, and nobody says why: {mutant}"
        if step != SURVIVED and reason(name, side, mutant):
            yield f"{side}/{name} has a reason to survive, and {step} notices it: {mutant}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
