"""AWR on the ladder. An update is an iteration of many gradient steps, made few here."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Pair
from shared.data.returns import extract_episodes
from shared.data.transitions import normalise_states
from shared.frameworks.twins import load_twin

# Eight slices in the ladder's batches, and one in the smallest batch of any test. The last step of V and the last two
# of the policy do not complete a pass.
SMALL = {"value_hidden_dims": (32, 24), "actor_hidden_dims": (24, 32)} | {
    "minibatch_size": 4,
    "value_updates": 17,
    "actor_updates": 26,
}


def load(raw: dict[str, np.ndarray]) -> Any:
    """Transitions with normalised states, from episodes that a time limit cuts in several places.

    Rewards are divided by ten, because plain gradient descent would diverge with the ladder's largest ones.
    """
    rows = np.arange(len(raw["timeouts"]))
    raw = raw | {"timeouts": raw["timeouts"] | (rows % 23 == 22), "rewards": 0.1 * raw["rewards"]}
    dataset: Any = extract_episodes(raw)
    return normalise_states(dataset)[0]


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output, and the values that an iteration computes from them once."""
    mean, std = twin.actor(batch.observations)
    returns = twin.lambda_returns(batch)
    return {
        "v": twin.value(batch.observations),
        "mean": mean,
        "std": std,
        "returns": returns,
        "weights": twin.weights(batch, returns),
    }


def targets_and_weights(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Returns of both signs, and weights."""
    return {"returns": rng.normal(size=size, scale=10.0), "weights": rng.exponential(size=size)}


def unlikelihood(actor: Any, batch: Any) -> Any:
    """Behaviour cloning: the data's negative log-likelihood under the squashed normal policy."""
    return -load_twin("jax", "awr").log_prob(actor, batch.observations, batch.actions).mean()


class Adapter(Pair):
    """This pair's overrides."""

    outputs = staticmethod(outputs)

    extra_inputs = staticmethod(targets_and_weights)

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return (len(dataset.actions),)

    def take(self, twin: Any, dataset: Any, indices: Any, config: Any) -> Any:
        return twin.take_of(dataset, indices)

    def ready(self, twin: Any, dataset: Any, config: Any) -> Any:
        return twin.in_episodes(dataset)

    def load(self, raw: dict[str, np.ndarray], frame_stack: int = 1) -> Any:
        return load(raw)


PAIR = Adapter(
    name="awr",
    title="AWR",
    family=Family.WEIGHTED,
    use="The simplest in its family, without critics or targets, but it needs whole episodes.",
    paper="Peng et al. 2019",
    url="https://arxiv.org/abs/1910.00177",
    benchmark_updates=2,
    variants={
        "default": SMALL,
        # The paper's plain advantages, which reach the cap; slices that leave out two rows of a batch
        "plain": SMALL
        | {
            "normalize_advantages": False,
            "advantage_temperature": 0.5,
            "max_weight": 3.0,
            "td_lambda": 0.7,
            "discount": 0.9,
        }
        | {"minibatch_size": 5, "value_updates": 13, "actor_updates": 7, "value_lr": 2e-4, "actor_lr": 1e-4},
    },
    settings={
        "full size": {"value_updates": 16, "actor_updates": 16},
    },
    tolerances={
        # At full size an update is 32 gradient steps, each of them rounded: 1.1e-5.
        "float32": {"update": 5e-5},
    },
)
