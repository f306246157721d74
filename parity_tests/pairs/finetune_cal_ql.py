"""Cal-QL on the ladder."""

from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from parity_tests.pairs import cql, finetune_cql
from parity_tests.pairs.finetune_cql import of_a_call
from shared.data.returns import CalibrationBatch, extract_ended, unknown_returns, with_returns
from shared.data.transitions import normalise_states

# Small returns, so that the critics' values are on both sides of them
DISCOUNT = 0.5


def load(raw: dict[str, np.ndarray]) -> Any:
    """Transitions with returns and normalised states."""
    dataset: Any = with_returns(extract_ended(raw), DISCOUNT)
    dataset, *_ = normalise_states(dataset)
    return CalibrationBatch(*dataset)


# By environment: the factor and the shift of rewards, and the changed reward that marks a failed trajectory. With this
# factor the maze's failure reward is an integer, which single precision represents exactly.
FAILURES = {"antmaze-umaze-v2": (10.0, -5.0, -5.0), "maze2d-umaze-v1": (20.0, 0.0, 477.0)}


def prepared(twin: ModuleType) -> dict[str, Any]:
    """Rewards and returns of three trajectories under every rule, one of which fails with either kind of rewards."""
    found: dict[str, Any] = {}
    for env, (factor, shift, failure) in FAILURES.items():
        rewards = np.asarray([1.0, 0.5, failure, 1.0, 2.0, (failure - shift) / factor, 3.0, 1.0, 1.0], np.float32)
        raw = {
            "observations": np.arange(9.0, dtype=np.float32)[:, None],
            "actions": np.zeros((9, 1), np.float32),
            "rewards": rewards,
            "terminals": np.arange(9) % 3 == 2,
            "timeouts": np.zeros(9, bool),
        }
        for sparse, scaled in product((False, True), repeat=2):
            rule = {"is_sparse_reward": sparse, "normalize_reward": scaled}
            config = twin.TrainConfig(reward_scale=factor, reward_bias=shift, discount=0.9, **rule)
            dataset = twin.CalibratedRewards(config).modified(extract_ended(raw), env)
            found |= {f"{column} {env} {rule}": getattr(dataset, column) for column in ("rewards", "returns")}
    return found


def corner(trainer: Any) -> None:
    """The same as for CQL; without importance weights, the second critic gives 0 and ties with returns."""
    finetune_cql.corner(trainer)
    if not trainer.hp.cql_importance_sample:
        for parameter in trainer.critic_2.network[-1].parameters():
            parameter.data.zero_()


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(finetune_cql.PAIR.outputs)

    corner = staticmethod(corner)

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return finetune_cql.PAIR.extra_inputs(rng, size) | {"floor": rng.normal(size=size)}

    draw_statics = staticmethod(finetune_cql.PAIR.draw_statics)

    update_statics = staticmethod(finetune_cql.update_statics)

    uses = cql.Adapter.uses

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {**of_a_call(config, start, num_updates), "ring": None}

    call_statics = staticmethod(of_a_call)

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        return load(raw)

    prepared = staticmethod(prepared)

    as_rows = staticmethod(unknown_returns)


PAIR = Adapter(
    name="finetune/cal_ql",
    title="Cal-QL",
    family=Family.FINETUNING,
    use="A CQL that keeps the scale of its values, so the online phase starts without a dip.",
    paper="Nakamoto et al. 2023",
    url="https://arxiv.org/abs/2303.05479",
    benchmark_updates=16,
    variants={
        **{name: finetune_cql.PAIR.variants[name] for name in ("default", "Lagrange")},
        # The returns are a lower bound of the values, so their gap is wider than CQL's.
        "other": dict(finetune_cql.PAIR.variants["other"])
        | {"offline_share": 0.25, "cql_clip_diff_min": 5.4, "cql_clip_diff_max": 5.7},
    },
)
