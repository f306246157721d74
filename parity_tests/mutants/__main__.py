"""`python -m parity_tests.mutants cql`: every mutant of a JAX twin climbs the ladder; none may survive unproven.

With `--side torch` the mutants are the PyTorch twin's, and meet the second derivation of its updates.
"""

import argparse
import shlex
import sys
import time
import warnings
from functools import partial

from tqdm import tqdm

from parity_tests.mutants import climbing, deriving
from parity_tests.mutants.operators import Mutant
from parity_tests.mutants.results import SIDES, SURVIVED, mutants_of, path_of, read, tally, write
from parity_tests.mutants.results import proof as proof_of
from parity_tests.pairs import PAIRS

# Mutants after which the results are kept: `--changed` goes on from there, should this process end.
ROUND = 40


def main() -> None:
    """Climbs, prints and keeps the results; exits with 1 if a mutant survives that nobody has proven equivalent."""
    parser = argparse.ArgumentParser(prog="python -m parity_tests.mutants", description=__doc__)
    parser.add_argument("algorithm", nargs="*", help="pairs (default: all)")
    parser.add_argument("--side", choices=[*SIDES, "both"], default="jax", help="whose mutants (default: jax)")
    parser.add_argument("--changed", action="store_true", help="climb only with what is new, or has survived unproven")
    parser.add_argument("--everywhere", action="store_true", help="climb all settings also with what is proven")
    options = parser.parse_args()
    if unknown := [name for name in options.algorithm if name not in PAIRS]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(PAIRS)}")
    # Mutants bring forth what a right twin does not: infinities, casts, steps in the wrong order.
    warnings.simplefilter("ignore")
    survivors = [
        mutant
        for name in options.algorithm or PAIRS
        for side in (SIDES if options.side == "both" else [options.side])
        for mutant in climb(name, side, options.changed, options.everywhere)
    ]
    sys.exit(int(bool(survivors)))


def climb(name: str, side: str, changed: bool, everywhere: bool) -> list[str]:
    """Tries all mutants of a twin and keeps what became of them; returns the survivors."""
    climb_side = partial(climbing.climb, everywhere=everywhere) if side == "jax" else deriving.climb
    every, proof, begin = mutants_of(name, side), partial(proof_of, name, side), time.perf_counter()
    # What contradicts a proof, or lacks one, is tried again: the tests may see more now.
    known = {mutant: step for mutant, step in read(name, side).items() if changed and bool(step) != bool(proof(mutant))}
    found = {mutant.name: known[mutant.name] for mutant in every if mutant.name in known}
    new = [mutant for mutant in every if mutant.name not in known]
    command = shlex.join(["python", "-m", "parity_tests.mutants", *sys.argv[1:]])
    with tqdm(total=len(new), desc=f"{side}/{name}", disable=None) as progress:

        def tell(mutant: Mutant, step: str) -> None:
            found[mutant.name] = step
            progress.update()
            if not step and not proof(mutant.name):
                progress.write(f"  survived: {mutant.name}")
            if len(found) % ROUND == 0:
                write(name, side, found, time.perf_counter() - begin, command)

        climb_side(name, new, tell)
    write(name, side, found, time.perf_counter() - begin, command)
    survivors = [mutant for mutant, step in found.items() if step == SURVIVED and not proof(mutant)]
    wrong = [mutant for mutant, step in found.items() if step != SURVIVED and proof(mutant)]
    print(f"{side}/{name}: {len(found)} mutants: {shown(tally(name, side, found))} ({path_of(name, side).name})")
    for mutant in wrong:
        print(f"  proven equivalent, and yet noticed by {found[mutant]}: {mutant}")
    return survivors + wrong


def shown(counts: dict[str, int]) -> str:
    """Counts in words, the largest first."""
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    main()
