"""What several seeds say: the online phase's gain, beside what it was before."""

from typing import Any

from benchmarks.seeds import gains


def summary(algorithm: str, **sides: Any) -> dict[str, Any]:
    """A results file of two runs a framework."""
    common = {"seconds_total": [60.0, 120.0]}
    return {"algorithm": algorithm, "frameworks": {name: common | side for name, side in sides.items()}}


def test_a_gain_is_the_score_after_the_online_phase_less_the_one_before() -> None:
    torch = {"before_online": [10.0, 20.0], "after_online": [30.0, 19.0]}
    jax = {"before_online": [10.0, 20.0], "after_online": [10.0, 40.5]}
    assert gains([summary("finetune/iql", torch=torch, jax=jax)]).splitlines()[2:] == [
        "| IQL, offline to online | torch | 10.0 to 30.0, 20.0 to 19.0 | +9.5 | 1 of 2 | 1.5 |",
        "| IQL, offline to online | jax | 10.0 to 10.0, 20.0 to 40.5 | +10.2 | 1 of 2 | 1.5 |",
    ]


def test_runs_without_an_online_phase_have_no_row() -> None:
    around = {"before_online": [1.0, 2.0], "after_online": [3.0, 4.0]}
    summaries = [summary("iql", torch={}, jax={}), summary("finetune/iql", torch=around, jax=around)]
    assert len(gains(summaries).splitlines()) == 4
