"""Measures of the data's actions on held-out rows: values and likelihoods, equal in both frameworks."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity_tests.ladder.scene import Scene
from parity_tests.pairs import PAIRS
from shared.frameworks import jax_held_out, torch_held_out
from shared.frameworks.held_out import Outputs, measured, normal_log_prob, spread

CPU = torch.device("cpu")
DENSITIES = ("bear", "cql", "edac", "lb_sac", "model_based/combo", "model_based/mobile", "model_based/mopo", "sac_n")
# One more of each kind. Finite actions have a policy, values alone, or two outputs. Policies sample without a density,
# or are deterministic. AWR learns only V, and UWAC's critics need more inputs than states and actions.
KINDS = ("discrete/iql", "discrete/cql", "discrete/bcq", "bcq", "td3_bc", "awr", "uwac", "awac")
LIKELY = {*DENSITIES, "awac", "awr", "discrete/iql", "uwac"}
NOT_JUDGING = {"awr", "uwac"}


def fresh(name: str) -> Scene:
    """Both twins with the same fresh weights, on made-up rows with actions within 1."""
    return Scene.create(PAIRS[name], PAIRS[name].jax, "default", "made-up", warm=False)


def by_torch(scene: Scene) -> dict[str, float]:
    """The PyTorch twin's measures of the actions."""
    return torch_held_out.Measures(scene.dataset, CPU).of_actions(scene.pair.torch, scene.trainer)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*DENSITIES, *KINDS])
def test_both_frameworks_measure_the_same(name: str) -> None:
    """Everything that an algorithm's networks can measure, with equal values."""
    scene = fresh(name)
    ours, theirs = by_torch(scene), jax_held_out.Measures(scene.dataset).of_actions(scene.jax_twin, scene.state())
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ("mean_q" in ours, "log_likelihood" in ours) == (name not in NOT_JUDGING, name in LIKELY)


@pytest.mark.parametrize("name", DENSITIES)
def test_it_is_the_density_that_the_algorithm_uses(name: str) -> None:
    """For samples whose densities the algorithm itself returns."""
    scene, rows, noise = fresh(name), torch.randn(50, 11), torch.randn(50, 3)
    with torch.no_grad():
        drawn = scene.pair.torch.sample(scene.trainer.actor, rows, noise[:, None] if name == "bear" else noise)
        actions, log_prob = (column.reshape(50, -1) for column in drawn)
        data = SimpleNamespace(observations=rows, actions=actions)
        found = torch_held_out.outputs(scene.pair.torch, scene.trainer, lambda network: network.forward, data)
    likely = measured(scene.pair.torch, Outputs(*map(torch_held_out.numbers, found)), actions.numpy())
    assert likely["log_likelihood"] == pytest.approx(float(log_prob.mean()), abs=2e-3)


# ---- known values --------------------------------------------------------------------------------------------------


def test_a_constant_critic_has_its_constant_for_a_mean_value() -> None:
    """Twin critics with values 2 and 5 in every row."""
    scene = fresh("td3_bc")
    for critic, value in ((scene.trainer.critic_1, 2.0), (scene.trainer.critic_2, 5.0)):
        *_, last = (layer for layer in critic.modules() if isinstance(layer, torch.nn.Linear))
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.constant_(last.bias, value)
    assert by_torch(scene) == {"mean_q": pytest.approx(3.5)}


def test_equal_chances_of_three_actions() -> None:
    """Whichever is chosen, its log-likelihood is minus the logarithm of 3."""
    found = Outputs([], None, np.full((4, 3), 7.0))
    assert measured(SimpleNamespace(), found, np.array([0, 1, 2, 2])) == {"log_likelihood": pytest.approx(-math.log(3))}


@pytest.mark.parametrize("squashed", [False, True])
def test_the_density_of_an_action(squashed: bool) -> None:
    """At the mean 0 both equal the normal density; each integrates to 1."""
    at_zero = normal_log_prob(np.zeros((1, 1)), np.zeros((1, 1)), np.ones((1, 1)), squashed)
    assert at_zero == pytest.approx(-0.5 * math.log(2.0 * math.pi))
    bound = 0.99999 if squashed else 9.0
    actions = np.linspace(-bound, bound, 200_001)[:, None]
    density = np.exp(normal_log_prob(actions, np.full_like(actions, 0.3), np.full_like(actions, 0.5), squashed))
    assert np.trapezoid(density, actions[:, 0]) == pytest.approx(1.0, abs=1e-3)


def test_rows_are_spread_evenly() -> None:
    """All rows if they are few; otherwise the first, the last and evenly spaced rows between, in parts of one size."""
    assert [part.tolist() for part in spread(4)] == [[0, 1, 2, 3]]
    parts = list(spread(50_000))
    assert {len(part) for part in parts} == {1_000}
    numbers = np.concatenate(parts)
    assert (len(numbers), numbers[0], numbers[-1]) == (10_000, 0, 49_999)
    assert set(np.diff(numbers)) <= {4, 5, 6}
