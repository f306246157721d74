"""Diffusion-QL on the ladder."""

from typing import Any

from parity_tests.families import Family
from parity_tests.pair import Pair

SMALL = {"actor_hidden_dims": (32, 24), "critic_hidden_dims": (24, 32), "n_action_samples": 5}


def outputs(twin: Any, batch: Any) -> dict[str, Any]:
    """Every network's output; rewards serve as steps' numbers."""
    return {
        "actor": twin.actor(batch.observations, batch.actions, batch.rewards),
        "critic": twin.critic(batch.observations, batch.actions),
    }


class Adapter(Pair):
    """This pair's overrides."""

    # Also the shares of action and noise before each row's step
    gathers = 2
    # The chains of the average and of the policy, and the latter's backward pass
    inner_scans = 3

    outputs = staticmethod(outputs)


PAIR = Adapter(
    name="diffusion_ql",
    title="Diffusion-QL",
    family=Family.CONSTRAINT,
    use="The data's actions have several modes, and you can afford to differentiate through the steps of a diffusion.",
    paper="Wang et al. 2023",
    url="https://arxiv.org/abs/2208.06193",
    benchmark_updates=20,
    variants={
        # The moving average of the policy moves in every update, as fast as the target critics
        "default": SMALL | {"ema_period": 1},
        # Clipped in every update; a short cosine of the rates, whose end is passed; the best of several next actions.
        # With this rate, the critics soon agree so well that each is the smaller one for some of a row's actions.
        "other": {"actor_hidden_dims": (16, 24, 16), "critic_hidden_dims": (24, 16, 24), "n_action_samples": 3}
        | {"beta_schedule": "linear", "diffusion_steps": 8, "n_target_actions": 10, "clip_grad": 0.1, "eta": 3.0}
        | {"ema_decay": 0.9, "ema_period": 2, "ema_start": 9, "max_timesteps": 40, "discount": 0.9, "tau": 0.1}
        | {"actor_lr": 1e-3, "critic_lr": 3e-3, "selection_temperature": 0.5},
        # In the authors' form: the average waits, and the rates fall with the evaluations
        "authors": SMALL
        | {"beta_schedule": "cosine", "diffusion_steps": 3, "clip_grad": None, "selection_temperature": 0.0}
        | {"opt_decay_schedule": "by_evaluation", "eval_freq": 4, "num_updates_on_epoch": 2, "max_timesteps": 100}
        | {"ema_start": 32, "ema_period": 2},
        "constant": SMALL | {"opt_decay_schedule": "none", "diffusion_steps": 2, "clip_grad": 1.0, "eta": 0.1},
    },
    settings={
        # A CUDA graph would repeat one learning rate, and the average, which usually waits, would never move.
        "on device": {"opt_decay_schedule": "none", "ema_start": 0},
    },
)
