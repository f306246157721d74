"""`python -m benchmarks.searches`: how long PRDC's search for the nearest rows takes, by tree and by brute force.

The rows are from bundled datasets. If more are needed, rows are repeated with noise of a tenth of each column's
deviation. A key is a row's state with its action plus noise, like the action of a policy that is near the data, or far.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.results import numerics, write
from benchmarks.work import full_precision
from shared.data.transitions import extract_transitions, normalise_states, read_hdf5
from shared.frameworks.jax_neighbours import search_among
from shared.names import dataset_path
from shared.runs.machine import load, versions

DATASETS = ("mini/hopper-medium-expert", "mini/halfcheetah-medium-expert")
ROWS = (1_000, 10_000, 100_000, 1_000_000)
# The standard deviation of the noise on a key's action
POLICIES = {"near": 0.05, "far": 0.5}
BETA, KEYS, SEARCHES, REPEATS = 2.0, 256, 8, 3


def made_up(name: str, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Rows to search, (N, S + A) float32, and S."""
    dataset, *_ = normalise_states(extract_transitions(read_hdf5(dataset_path(name))))
    table = np.concatenate([BETA * dataset.observations, dataset.actions], axis=1)
    chosen = table[rng.integers(len(table), size=rows)]
    if rows > len(table):
        chosen = chosen + 0.1 * table.std(axis=0) * rng.normal(size=chosen.shape)
    return chosen.astype(np.float32), dataset.observations.shape[1]


def keys_of(table: np.ndarray, state_dim: int, noise: float, rng: np.random.Generator) -> Array:
    """The search keys, (searches, keys, S + A)."""
    keys = table[rng.integers(len(table), size=(SEARCHES, KEYS))]
    actions = keys[..., state_dim:]
    keys[..., state_dim:] = np.clip(actions + noise * rng.normal(size=actions.shape), -1.0, 1.0)
    return jnp.asarray(keys)


def milliseconds(search: Any, keys: Array) -> float:
    """The time of one search within a compiled program: the shortest of several repeats."""
    program = jax.jit(lambda search, keys: jax.lax.map(search.nearest, keys))
    jax.block_until_ready(program(search, keys))
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(program(search, keys))
        seconds.append(time.perf_counter() - begin)
    return 1000 * min(seconds) / SEARCHES


def measured(name: str, rows: int) -> dict[str, Any]:
    """The times of both searches among this many rows, in milliseconds, and the seconds to build the tree."""
    rng = np.random.default_rng(0)
    table, state_dim = made_up(name, rows, rng)
    begin = time.perf_counter()
    tree = search_among(jnp.asarray(table), "tree")
    found = {"dataset": name, "rows": rows, "columns": table.shape[1], "seconds_to_make": time.perf_counter() - begin}
    brute = search_among(jnp.asarray(table), "brute")
    for policy, noise in POLICIES.items():
        keys = keys_of(table, state_dim, noise, rng)
        found |= {f"tree_{policy}": milliseconds(tree, keys), f"brute_{policy}": milliseconds(brute, keys)}
    return found


def table(summary: dict[str, Any]) -> str:
    """Formats a results file as a Markdown table."""
    lines = [
        "| rows | columns | tree, policy near the data | tree, policy far from it | brute force | to make the tree |",
        "|---|---|---|---|---|---|",
    ]
    for found in summary["searches"]:
        lines.append(
            f"| {found['rows']:,} | {found['columns']} | {found['tree_near']:.2f} ms | {found['tree_far']:.2f} ms "
            f"| {found['brute_far']:.2f} ms | {found['seconds_to_make']:.2f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table and writes `benchmarks/results/searches-<machine>.json`."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    full_precision()
    before = load()
    summary = {
        "versions": versions("torch", "jax", "jaxlib", "scipy"),
        **numerics(),
        "load_before": before,
        "keys": KEYS,
        "searches": [measured(name, rows) for name in DATASETS for rows in ROWS],
    }
    print(table(summary))
    write("searches", "searches", summary)


if __name__ == "__main__":
    main()
