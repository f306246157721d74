"""IQL of finite actions: six updates and actions are bitwise equal to a second derivation of our definition."""

import copy
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from corl_torch.discrete import iql
from parity_tests.reference.common import ACTION_DIM, STATE_DIM, adam, assert_same_weights, mlp, polyak
from parity_tests.reference.d3rlpy import stepped
from parity_tests.reference.finite import assert_acts, assert_six_updates, both
from parity_tests.reference.images import IMAGES, Convolutions, shown
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"hidden_dims": (40, 30), "value_lr": 1e-2, "critic_lr": 3e-3, "actor_lr": 2e-3}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "steep weights": SMALL | {"inverse_temperature": 20.0, "iql_tau": 0.9},
    "past the cosine's end": SMALL | {"max_timesteps": 4, "tau": 0.1},
    "a constant rate": SMALL | {"opt_decay_schedule": "none", "batch_size": 64, "discount": 0.9},
    "images": SMALL | IMAGES["images"],
}


def network(config: Any, outputs: int) -> nn.Sequential:
    """A network whose layers are drawn with PyTorch's initialisation, and then each with Glorot and Bengio's."""
    layers: list[nn.Module] = [] if config.encoder == "none" else [Convolutions(config.encoder)]
    widths = [layers[0].width if layers else STATE_DIM, *config.hidden_dims, outputs]
    for inputs, width in pairwise(widths):
        layers += [*mlp(inputs, width), nn.ReLU()]
        bound = math.sqrt(6.0 / (inputs + width))
        layers[-2].weight.data.uniform_(-bound, bound)
        layers[-2].bias.data.zero_()
    return nn.Sequential(*layers[:-1])


class Reference:
    """Critics, V and policy, in the order in which they are drawn; all steps start from the state before the update."""

    def __init__(self, config: Any) -> None:
        self.config, self.step, self.corners = config, 0, set[str]()
        self.critics = [network(config, ACTION_DIM), network(config, ACTION_DIM)]
        self.targets = copy.deepcopy(self.critics)
        self.v, self.policy = network(config, 1), network(config, ACTION_DIM)
        self.critics_adam = adam([p for critic in self.critics for p in critic.parameters()], config.critic_lr)
        self.v_adam = adam(self.v.parameters(), config.value_lr)
        self.policy_adam = adam(self.policy.parameters(), config.actor_lr)

    def rate(self) -> float:
        """The policy's learning rate in the next update."""
        c = self.config
        if c.opt_decay_schedule == "none":
            return c.actor_lr
        return c.actor_lr * (1.0 + math.cos(math.pi * min(self.step, c.max_timesteps) / c.max_timesteps)) / 2.0

    def update(self, s: Tensor, a: Tensor, r: Tensor, s2: Tensor, d: Tensor) -> dict[str, Tensor]:
        """Steps of the policy, then the critics, then V, all of them from values computed before."""
        c, rows = self.config, torch.arange(len(a))
        with torch.no_grad():
            y = r + c.discount * self.v(s2).squeeze(1) * (1 - d)
            best = torch.min(*(target(s)[rows, a] for target in self.targets))
            online = torch.min(*(critic(s)[rows, a] for critic in self.critics))
            weight = torch.exp(c.inverse_temperature * (online - self.v(s).squeeze(1)))
            self.corners |= {f"capped {bool(each)}" for each in weight > 100.0}
        for target, critic in zip(self.targets, self.critics, strict=True):
            polyak(target, critic, c.tau)
        error = best - self.v(s).squeeze(1)
        above = error.detach() > 0
        self.corners |= {f"above {bool(each)}" for each in above}
        v_loss = (torch.where(above, c.iql_tau, 1.0 - c.iql_tau) * error**2).mean()
        q_loss = torch.stack([mse_loss(critic(s)[rows, a], y) for critic in self.critics]).sum()
        policy_loss = (weight.clamp(max=100.0) * cross_entropy(self.policy(s), a, reduction="none")).mean()
        self.policy_adam.param_groups[0]["lr"] = self.rate()
        self.step += 1
        return {
            "actor_loss": stepped(self.policy_adam, policy_loss),
            "q_loss": stepped(self.critics_adam, q_loss),
            "value_loss": stepped(self.v_adam, v_loss),
        }


def assert_same_networks(trainer: iql.IQL, reference: Reference) -> None:
    """Checks that critics, targets, V and policy are equal."""
    ours = [
        trainer.critic.q1,
        trainer.critic.q2,
        trainer.critic_target.q1,
        trainer.critic_target.q2,
        trainer.value,
        trainer.actor,
    ]
    assert_same_weights(ours, [*reference.critics, *reference.targets, reference.v, reference.policy])


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_six_updates(choices: Batch, settings: dict[str, Any]) -> None:
    """Losses, critics, targets, V and policy are equal; the policy is the likeliest action."""
    choices, (trainer, reference) = shown(choices, settings), both(iql, Reference, settings)
    assert_same_networks(trainer, reference)
    assert_six_updates(iql, choices, trainer, reference)
    assert_same_networks(trainer, reference)
    assert {"above True", "above False"} <= reference.corners
    if reference.config.inverse_temperature > 10.0:
        assert {"capped True", "capped False"} <= reference.corners
    assert_acts(trainer, choices, reference.policy(choices.observations).argmax(1))


def test_an_advantage_of_0_is_no_gain() -> None:
    """Its square gets the smaller weight, as in the reference's code for vector actions."""
    trainer, _ = both(iql, Reference, {"iql_tau": 0.9})
    weights = trainer.expectile_weight(torch.tensor([-1.0, 0.0, 1.0]))
    assert weights.tolist() == pytest.approx([0.1, 0.1, 0.9])
