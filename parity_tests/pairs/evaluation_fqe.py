"""Fitted Q evaluation on the ladder, for a small TD3 policy with scaled states and actions."""

from pathlib import Path
from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from shared.data.transitions import SarsaBatch, extract_sarsa, normalise

# Trained in a moment by `corl_torch/online/td3.py --env mini/hopper-mostly-expert --actor_hidden_dims [16]
# --critic_hidden_dims [8] --n_critics 1 --max_timesteps 300 --observation_scaler standard --action_scaler min_max`
POLICY = Path(__file__).parent / "policies" / "hopper.pt"
SMALL = {"critic_hidden_dims": (48, 64), "target_update_period": 3, "policy": str(POLICY)}


def load(raw: dict[str, np.ndarray]) -> SarsaBatch:
    """Transitions with normalised states, and with next actions by a rule that no row of the data follows."""
    sarsa = extract_sarsa(raw)
    mean, std = sarsa.observations.mean(axis=0), sarsa.observations.std(axis=0) + 1e-3
    states = normalise(sarsa.observations, mean, std), normalise(sarsa.next_observations, mean, std)
    return sarsa._replace(
        observations=states[0],
        next_observations=states[1],
        next_actions=np.tanh(states[1][:, : raw["actions"].shape[1]]),
    )


def corner(trainer: Any) -> None:
    """Makes target critics differ, so that each is the smaller one in some rows."""
    for member in trainer.critic_target.members:
        member[-1].weight.data.mul_(20.0)


class Adapter(Pair):
    """This pair's overrides."""

    # The first update, which copies the targets, and two regressions
    counted_updates = 201
    metric = "initial_state_value"

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {"critic": twin.critic(batch.observations, batch.actions)}

    corner = staticmethod(corner)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (len(dataset[0]),)

    def update_statics(self, config: Any, step: int) -> dict[str, Any]:
        return {"copied": (step - 1) % config.target_update_period == 0}

    def interval_statics(self, config: Any, start: int, num_updates: int) -> dict[str, Any]:
        return {"phase": start % config.target_update_period}

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        return load(raw)


PAIR = Adapter(
    name="evaluation/fqe",
    title="Fitted Q evaluation",
    family=Family.EVALUATION,
    use="It ranks policies by their value, estimated from data.",
    paper="Le et al. 2019",
    url="https://arxiv.org/abs/1903.08738",
    benchmark_updates=500,
    variants={
        "default": SMALL,
        "other": SMALL | {"n_critics": 2, "target_update_period": 8, "discount": 0.9, "learning_rate": 1e-3},
        "each": SMALL | {"n_critics": 3, "target_update_period": 1},
    },
    settings={
        "full size": {"policy": str(POLICY)},
    },
)
