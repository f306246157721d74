"""Fitted Q evaluation compared with the original d3rlpy 2.8.1: updates, and measures on whole episodes."""

from typing import Any

import numpy as np
import pytest
import torch

from corl_torch.evaluation import fqe
from parity_tests.reference.common import (
    ACTION_DIM,
    CPU,
    ROWS,
    STATE_DIM,
    UPDATES,
    assert_same_log,
    assert_same_weights,
    same_draws,
)
from parity_tests.reference.genuine.library import BATCH_SIZE, HIDDEN, as_theirs, batch_of, created
from shared.data.measures import find_episodes
from shared.data.transitions import Batch, SarsaBatch, extract_transitions
from shared.frameworks.torch_data import take
from shared.runs.valuation import DatasetEvaluator

pytestmark = pytest.mark.d3rlpy


def both_fqe(d3rlpy: Any, **settings: Any) -> tuple[fqe.FQE, Any, Any]:
    """Our critics, the library's, and the evaluated policy of the library; the critics are from the same seed."""
    config = fqe.TrainConfig(device="cpu", batch_size=BATCH_SIZE, critic_hidden_dims=HIDDEN["critic"], **settings)
    renamed = as_theirs(d3rlpy.ope.FQEConfig, config, settings)
    policy = created(d3rlpy, "TD3Config", ("actor", "critic"))
    # Actions that differ from state to state
    for parameter in policy.impl.modules.policy.parameters():
        parameter.data.mul_(2.0)
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=list(HIDDEN["critic"]))
    settings_of_theirs = d3rlpy.ope.FQEConfig(batch_size=BATCH_SIZE, encoder_factory=encoder, **renamed)
    theirs = d3rlpy.ope.FQE(policy, settings_of_theirs, device="cpu:0")
    same_draws()
    theirs.create_impl((STATE_DIM,), ACTION_DIM)
    same_draws()
    trainer = fqe.create_trainer(config, STATE_DIM, ACTION_DIM, 1.0)
    return trainer, theirs, policy


@pytest.mark.parametrize("n_critics", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"target_update_period": 1}, {"target_update_period": 3}])
@pytest.mark.parametrize("other", [{}, {"discount": 0.9, "learning_rate": 1e-3}])
def test_fqe(d3rlpy: Any, dataset: Batch, settings: dict[str, int], other: dict[str, float], n_critics: int) -> None:
    """Weights, logs, targets and values are equal; the policy's actions come from the library, batch by batch."""
    trainer, theirs, policy = both_fqe(d3rlpy, n_critics=n_critics, **settings, **other)
    ours = [*trainer.critic.members, *trainer.critic_target.members]
    networks = [*theirs.impl.modules.q_funcs, *theirs.impl.modules.targ_q_funcs]
    assert_same_weights(ours, networks)
    assert_same_judgement(d3rlpy, dataset, trainer, theirs, policy)


def assert_same_judgement(d3rlpy: Any, dataset: Batch, trainer: fqe.FQE, theirs: Any, policy: Any) -> None:
    """Checks logs, weights and values of updates that start from equal critics and evaluate the library's policy."""
    same_draws()
    logged = [theirs.impl.inner_update(batch_of(d3rlpy, dataset), step) for step in range(UPDATES)]
    same_draws()
    logs = []
    for _ in range(UPDATES):
        indices, noise = fqe.draw_noise(trainer.hp, ROWS, CPU)
        batch = take(dataset, indices)
        next_actions = torch.as_tensor(policy.predict(batch.next_observations.numpy()))
        logs.append(trainer.update(SarsaBatch(*batch, next_actions), noise))
    assert_same_log(logs, [{"critic_loss": log["loss"]} for log in logged])
    ours = [*trainer.critic.members, *trainer.critic_target.members]
    assert_same_weights(ours, [*theirs.impl.modules.q_funcs, *theirs.impl.modules.targ_q_funcs])
    observations, actions = dataset.observations.numpy(), dataset.actions.numpy()
    values = theirs.predict_value(observations, actions)
    np.testing.assert_array_equal(trainer.value(observations, actions), values)


def test_the_measures_of_fqe(d3rlpy: Any) -> None:
    """The measures equal the library's, on episodes of 2 to 1,000 rows, some ended by terminals or time limits."""
    trainer, theirs, policy = both_fqe(d3rlpy, n_critics=2)
    rng = np.random.default_rng(0)
    lengths = [2, 300, 5, 1000, 40, 2]
    raw = {
        "observations": rng.normal(size=(sum(lengths), STATE_DIM)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (sum(lengths), ACTION_DIM)).astype(np.float32),
        "rewards": rng.normal(size=sum(lengths)).astype(np.float32),
        "terminals": np.zeros(sum(lengths), bool),
        "timeouts": np.zeros(sum(lengths), bool),
    }
    ends = np.cumsum(lengths) - 1
    raw["terminals"][ends[::2]], raw["timeouts"][ends[1::2]] = True, True
    buffer = d3rlpy.dataset.MDPDataset(**raw)
    threshold = float(np.median([episode.rewards.sum() for episode in buffer.episodes]))
    evaluators = d3rlpy.metrics
    expected = {
        "soft_opc": evaluators.SoftOPCEvaluator(threshold),
        "td_error": evaluators.TDErrorEvaluator(),
        "discounted_advantage": evaluators.DiscountedSumOfAdvantageEvaluator(),
        "average_value": evaluators.AverageValueEstimationEvaluator(),
        "action_difference": evaluators.ContinuousActionDiffEvaluator(),
    }
    transitions = extract_transitions(raw)
    actions, next_actions = (policy.predict(column) for column in (transitions.observations, transitions[3]))
    evaluator = DatasetEvaluator(
        SarsaBatch(*transitions, next_actions),
        actions,
        find_episodes(raw),
        threshold,
        discount=trainer.hp.discount,
        action_std=np.ones(ACTION_DIM, np.float32),
        fingerprint={},
    )
    found = evaluator(trainer.value)
    for name, measure in expected.items():
        assert found.measures[name] == pytest.approx(measure(theirs, buffer), rel=1e-6, abs=1e-7), name
    # The library takes this mean in single precision.
    first = evaluators.InitialStateValueEstimationEvaluator()(theirs, buffer)
    assert float(found.outcomes.mean()) == pytest.approx(first, rel=1e-5)
