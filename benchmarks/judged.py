"""`python -m benchmarks.judged`: whether fitted Q evaluation ranks policies as their environment does.

Three policies are trained in JAX, one of which is good. FQE evaluates each on two bundled datasets, with three seeds,
in both frameworks. The table also shows the policy's score, and its return under FQE's discount.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import write
from shared.envs.evaluation import ContextPolicy
from shared.files import write_atomically
from shared.frameworks.saved_run import SavedRun, find
from shared.frameworks.twins import FRAMEWORKS, load_twin
from shared.runs.configs import dataset_row
from shared.runs.machine import load, versions
from shared.runs.seeds import train_seeds

SEEDS, EPISODES = 3, 20
# The JAX twins' policies, by name
POLICIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "IQL, 12,000 updates": ("iql", {}),
    "IQL, 200 updates": ("iql", {"max_timesteps": 200, "eval_freq": 200}),
    "BC of all of medium-replay": (
        "any_percent_bc",
        {"env": "mini/hopper-medium-replay", "frac": 1.0, "max_timesteps": 5000, "eval_freq": 5000},
    ),
}
DATASETS = ("mini/hopper-mostly-expert", "mini/hopper-medium-replay")
# The measures' names in tables, by their names in a result
MEASURES = {
    "final": "initial-state value",
    "final_soft_opc": "soft OPC",
    "final_td_error": "TD error",
    "final_discounted_advantage": "discounted advantage",
    "final_action_difference": "action difference",
}
# The measures for which more is better
RANKING = ("final", "final_soft_opc")


@dataclass
class Discounting(ContextPolicy):
    """A policy that records its episodes' discounted returns.

    Attributes:
        act: Maps observations to actions.
        discount: The discount of the return.
    """

    act: Any
    discount: float

    def __post_init__(self) -> None:
        """Starts with returns of 0."""
        self.earned, self.before = np.zeros(EPISODES), np.zeros(EPISODES)

    def __call__(self, observations: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The actions of one step, after adding the rewards of the previous step."""
        self.add(returns, lengths)
        return self.act(observations)

    def add(self, returns: np.ndarray, lengths: np.ndarray) -> None:
        """Adds the discounted rewards since the last call."""
        self.earned += self.discount ** np.maximum(lengths - 1, 0) * (returns - self.before)
        self.before = returns.copy()


def earned(source: SavedRun, discount: float) -> float:
    """The mean discounted return of a run's policy in its environment."""
    evaluator = source.evaluator(EPISODES, num_envs=EPISODES)
    policy = Discounting(source.policy(), discount)
    found = evaluator(policy)
    policy.add(found.returns, found.lengths)
    evaluator.close()
    return float(policy.earned.mean())


def trained(name: str, folder: Path) -> dict[str, Any]:
    """Trains one of the policies: its checkpoint, its score and its discounted return."""
    algorithm, settings = POLICIES[name]
    twin = load_twin("jax", algorithm)
    row = dataset_row(twin.TrainConfig, algorithm, settings.get("env", twin.TrainConfig.env))
    run = twin.train(twin.TrainConfig(**row | settings | {"runs_path": str(folder), "device": "cpu"}))
    source = SavedRun.open(find(run.folder))
    discount = load_twin("jax", "evaluation/fqe").TrainConfig.discount
    return {"path": str(source.path), "score": run.result["final"], "discounted_return": earned(source, discount)}


def judged(framework: str, policy: str, dataset: str, folder: Path) -> dict[str, list[float]]:
    """FQE's measures of a policy, for each seed, by their names in a result."""
    twin = load_twin(framework, "evaluation/fqe")
    row = dataset_row(twin.TrainConfig, "evaluation/fqe", dataset)
    settings = row | {"policy": policy, "env": dataset, "runs_path": str(folder), "device": "cpu"}
    runs = train_seeds(twin.train, twin.TrainConfig(**settings), SEEDS)
    return {name: [run.result[name] for run in runs] for name in MEASURES}


def table(summary: dict[str, Any]) -> str:
    """Formats a results file as Markdown: each policy's measures, mean and deviation over seeds, and their rankings."""
    policies, measures = summary["policies"], list(MEASURES)
    lines = [
        f"| dataset | policy | D4RL score | discounted return | FQE in | {' | '.join(MEASURES.values())} |",
        f"|{'---|' * (5 + len(measures))}",
    ]
    for row in summary["judged"]:
        found = [row["measures"][name] for name in measures]
        cells = [f"{np.mean(values):.1f} +- {np.std(values, ddof=1):.1f}" for values in found]
        policy = policies[row["policy"]]
        truth = f"{policy['score']:.1f} | {policy['discounted_return']:.1f} | {FRAMEWORKS[row['framework']]}"
        lines.append(f"| {row['dataset']} | {row['policy']} | {truth} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_rankings(summary)])


def _rankings(summary: dict[str, Any]) -> Iterator[str]:
    """The number of seeds in which each measure ranks the policy with the best score above each other policy."""
    best = max(summary["policies"], key=lambda name: summary["policies"][name]["score"])
    found = {(row["dataset"], row["policy"], row["framework"]): row["measures"] for row in summary["judged"]}
    yield f"| dataset | {best}, ranked over | FQE in | {' | '.join(MEASURES[name] for name in RANKING)} |"
    yield f"|{'---|' * (3 + len(RANKING))}"
    for (dataset, other, framework), measures in found.items():
        if other != best:
            first = found[dataset, best, framework]
            seeds = [zip(first[name], measures[name], strict=True) for name in RANKING]
            cells = [f"{sum(ours > theirs for ours, theirs in pairs)} of {SEEDS} seeds" for pairs in seeds]
            yield f"| {dataset} | {other} | {FRAMEWORKS[framework]} | {' | '.join(cells)} |"


def once(path: Path, make: Callable[[], Any]) -> Any:
    """The content of the file, which is made if it does not exist."""
    if not path.exists():
        write_atomically(path, json.dumps(make(), default=float).encode())
    return json.loads(path.read_text())


def main() -> None:
    """Prints the table, and writes `benchmarks/results/judged-<machine>.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kept", type=Path, metavar="FOLDER", help="keeps what is done; another call does the rest")
    options, before = parser.parse_args(), load()
    with tempfile.TemporaryDirectory() as name:
        folder = (options.kept or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        policies = {policy: once(folder / f"{policy}.json", partial(trained, policy, folder)) for policy in POLICIES}
        rows = []
        for dataset, policy, framework in product(DATASETS, policies, FRAMEWORKS):
            row = {"policy": policy, "dataset": dataset, "framework": framework}
            path = folder / f"{' '.join(row.values())}.json".replace("/", "-")
            measures = once(path, partial(judged, framework, policies[policy]["path"], dataset, folder))
            rows.append(row | {"measures": measures})
    for found in policies.values():
        del found["path"]
    packages = versions("jax", "torch", "numpy", "mujoco")
    summary = {"versions": packages, "load_before": before, "policies": policies, "judged": rows}
    print(table(summary))
    write("judged", "judged", summary)


if __name__ == "__main__":
    main()
