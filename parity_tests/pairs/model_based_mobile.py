"""MOBILE on the ladder: MOPO's two buffers and roll-outs, and an ensemble whose predictions every update penalises."""

import copy
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity_tests.families import Family
from parity_tests.pairs import imagined, model_based_mopo
from parity_tests.pairs.imagined import LEARNT, SEEN, ImaginedPair, models, replays, rolled_out
from shared.data.dynamics import ModelSizes
from shared.data.transitions import Batch

SMALL: dict[str, Any] = {"hidden_dims": (48, 40), "rollout_batch_size": 30, "rollout_length": 3, "rollout_freq": 4} | {
    "model_retain_epochs": 2,
    "real_ratio": 0.3,
    "n_state_samples": 3,
    **LEARNT,
}
# The members and elites of the model whose predictions are penalised: as many as in a run
N_ENSEMBLE, N_ELITES = 7, 5
# The mean of each of its inputs
MEAN = 0.5


def ready(twin: Any, dataset: Any, config: Any) -> Any:
    """Both buffers, and a fresh model for states and actions of the dataset's sizes."""
    sources = imagined.ready(twin, dataset, config)
    if not isinstance(dataset, Batch):
        (state_dim,), (action_dim,), *_ = dataset.shapes
        dtype = torch.float64 if dataset.rows.dtype == jnp.float64 else torch.float32
        _, model = models(dtype, ModelSizes(state_dim, action_dim, N_ENSEMBLE, N_ELITES))
        return twin.Sources(*sources, model.replace(mean=model.mean + MEAN))
    sizes = ModelSizes(dataset.observations.shape[1], dataset.actions.shape[1], N_ENSEMBLE, N_ELITES)
    model, _ = models(dataset.rewards.dtype, sizes)
    device = dataset.rewards.device
    tensors = {name: getattr(model, name).to(device) for name in ("elites", "mean", "std")}
    model = model._replace(dynamics=copy.deepcopy(model.dynamics).to(device), **tensors)
    return twin.Sources(*sources, model._replace(mean=model.mean + MEAN))


def shipped(scene: Any) -> dict[str, float]:
    """The roll-outs, and whether the first rows drawn are the dataset's and the others the model's."""
    rows, (real, _) = len(scene.jax_dataset.rows), scene.jax_twin.shares(scene.config)
    drawn = np.stack([scene.jax_draw(jax.random.key(2), step, {})[0] for step in range(20)])
    apart = (drawn[:, :real] < rows).all() and (drawn[:, real:] >= rows).all()
    return imagined.shipped(scene) | {"rows of the other source": float(not apart)}


class Adapter(ImaginedPair):
    """This pair's overrides."""

    # One from each buffer, and the elites' means and log-variances
    gathers = 4

    def outputs(self, twin: Any, batch: Any) -> dict[str, Any]:
        return {
            "mean": twin.actor(batch.observations)[0],
            "std": twin.actor(batch.observations)[1],
            "critic": twin.critic(batch.observations, batch.actions),
        }

    ready = staticmethod(ready)

    shipped = staticmethod(shipped)

    def predicted(self, twin: Any, batch: Any) -> dict[str, Any]:
        """The ring, whose rows are without the elites' predictions."""
        return rolled_out(twin, Batch(*batch[: len(Batch._fields)]))

    corner = staticmethod(model_based_mopo.corner)

    def take(self, twin: ModuleType, dataset: Any, indices: Any, config: Any) -> Any:
        # For an update's batch their number is known. Counting them would make the host wait for the device.
        if len(indices) == config.batch_size:
            return twin.take_modelled(dataset, indices, twin.shares(config)[0])
        size = len(dataset.rows.rewards if isinstance(dataset.rows, Batch) else dataset.rows)
        return twin.take_modelled(dataset, indices, int((indices < size).sum()))

    def draw_inputs(self, dataset: Any, action_dim: int) -> tuple:
        return len(dataset[0]), SEEN, N_ELITES, dataset[0].shape[1], action_dim

    def extra_inputs(self, rng: np.random.Generator, size: int) -> dict[str, Any]:
        return {"log_prob": rng.normal(size=size)}

    def uses(self, loss: str, config: Any) -> bool:
        return loss != "alpha_loss" or config.tune_temperature

    def replays(self, patch: Any) -> None:
        return replays("model_based/mobile", "MOBILE")(patch)


PAIR = Adapter(
    name="model_based/mobile",
    title="MOBILE",
    family=Family.MODEL,
    use="Like MOPO, but it measures how far the members' values are apart, not their states; an update costs more.",
    paper="Sun et al. 2023",
    url="https://proceedings.mlr.press/v202/sun23q.html",
    benchmark_updates=5,
    variants={
        "default": SMALL,
        "entropy": SMALL
        | {"discount": 0.9, "tau": 0.1, "actor_lr": 1e-2, "critic_lr": 3e-3, "temperature_lr": 1e-1}
        | {"target_entropy": -20.0, "real_ratio": 0.8, "rollout_length": 4, "penalty_coef": 4.0}
        | {"max_timesteps": 40, "num_updates_on_epoch": 8, "n_state_samples": 1, "n_critics": 3}
        | {"backup_entropy": True, "nonnegative_targets": False},
        "best of several": SMALL
        | {"tune_temperature": False, "fixed_temperature": 0.7, "real_ratio": 0.5, "rollout_length": 1}
        | {"n_target_actions": 4, "backup_entropy": True, "n_critics": 1, "n_state_samples": 2},
    },
    settings={"full size": LEARNT},
    tolerances={
        # As for MOPO: near an action's bound, 1 - tanh(u)^2 loses most of its digits, differently in each framework.
        "float64": {"loss": 1e-10, "gradient": 5e-9, "update": 2e-9, "log": 2e-9, "shipped path": 1e-8},
        "float32": {"update": 1e-3, "shipped path": 1e-3},
    },
)
