"""`python -m parity_tests.mutants cql`: every mutant of a JAX twin climbs the ladder; none may survive unproven."""

import argparse
import shlex
import sys
import time
import warnings

from tqdm import tqdm

from parity_tests.mutants.climbing import noticed
from parity_tests.mutants.results import SURVIVED, mutants_of, path_of, read, tally, write
from parity_tests.mutants.results import proof as proof_of
from parity_tests.pairs import PAIRS
from parity_tests.scene import forget_programs

# Mutants after which compiled programs are dropped, lest they fill the memory
ROUND = 40


def main() -> None:
    """Climbs, prints and keeps the results; exits with 1 if a mutant survives that nobody has proven equivalent."""
    parser = argparse.ArgumentParser(prog="python -m parity_tests.mutants", description=__doc__)
    parser.add_argument("algorithm", nargs="*", help="pairs (default: all)")
    parser.add_argument("--changed", action="store_true", help="climb only with what is new, or has survived unproven")
    parser.add_argument("--everywhere", action="store_true", help="climb all settings also with what is proven")
    options = parser.parse_args()
    if unknown := [name for name in options.algorithm if name not in PAIRS]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(PAIRS)}")
    # Mutants bring forth what a right twin does not: infinities, casts, steps in the wrong order.
    warnings.simplefilter("ignore")
    survivors = [
        mutant for name in options.algorithm or PAIRS for mutant in climb(name, options.changed, options.everywhere)
    ]
    sys.exit(int(bool(survivors)))


def climb(name: str, changed: bool, everywhere: bool) -> list[str]:
    """Has all mutants of a twin climb and keeps what became of them; returns the survivors."""
    known, begin = read(name) if changed else {}, time.perf_counter()
    command = shlex.join(["python", "-m", "parity_tests.mutants", *sys.argv[1:]])
    found: dict[str, str] = {}
    for i, mutant in enumerate(tqdm(mutants_of(name), desc=name, disable=None)):
        proven = bool(proof_of(name, "jax", mutant.name))
        # A survivor climbs again: the ladder may see more now.
        if mutant.name in known and (known[mutant.name] or proven):
            found[mutant.name] = known[mutant.name]
        else:
            found[mutant.name] = noticed(name, mutant, shortly=proven and not everywhere)
        if not found[mutant.name] and not proof_of(name, "jax", mutant.name):
            tqdm.write(f"  survived: {mutant.name}")
        if i % ROUND == ROUND - 1:
            forget_programs()
            # `--changed` goes on from here, should this process end.
            write(name, "jax", found, time.perf_counter() - begin, command)
    write(name, "jax", found, time.perf_counter() - begin, command)
    survivors = [mutant for mutant, step in found.items() if step == SURVIVED and not proof_of(name, "jax", mutant)]
    wrong = [mutant for mutant, step in found.items() if step != SURVIVED and proof_of(name, "jax", mutant)]
    print(f"{name}: {len(found)} mutants: {shown(tally(name, 'jax', found))} ({path_of(name, 'jax').name})")
    for mutant in wrong:
        print(f"  proven equivalent, and yet noticed by {found[mutant]}: {mutant}")
    return survivors + wrong


def shown(counts: dict[str, int]) -> str:
    """Counts in words, the largest first."""
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    main()
