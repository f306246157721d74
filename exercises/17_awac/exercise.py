"""AWAC in JAX: my port. docs/port/check.md says what each function is given and must give.

    corl-twins check THIS_FILE.py --algorithm awac

Shapes, in the check's first batch: B = 32, S = 11, A = 3, S+A = 14, under hidden_dim=64.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn


class Actor(nn.Module):
    """The policy: a normal distribution whose standard deviation is the same in every state."""

    action_dim: Any
    hidden_dim: Any

    @nn.compact
    def __call__(self, observations):
        """Unbounded mean (B, A) and standard deviation (B, A) for observations (B, S)."""
        raise NotImplementedError


class Critic(nn.Module):
    """Q(s, a): (B, S) and (B, A) to (B,)."""

    hidden_dim: Any

    @nn.compact
    def __call__(self, observations, actions):
        """The values (B,) of actions (B, A) in observations (B, S)."""
        raise NotImplementedError


class State(NamedTuple):
    """All that an update reads and writes; the comments list PyTorch's tensors."""

    # _log_std (A,), _mlp.0.weight (64, S), _mlp.0.bias (64,), _mlp.2.weight (64, 64), _mlp.2.bias (64,),
    # _mlp.4.weight (64, 64), _mlp.4.bias (64,), _mlp.6.weight (A, 64), _mlp.6.bias (A,)
    actor: Any
    # _mlp.0.weight (64, S+A), _mlp.0.bias (64,), _mlp.2.weight (64, 64), _mlp.2.bias (64,), _mlp.4.weight (64, 64),
    # _mlp.4.bias (64,), _mlp.6.weight (1, 64), _mlp.6.bias (1,)
    critic_1: Any
    # _mlp.0.weight (64, S+A), _mlp.0.bias (64,), _mlp.2.weight (64, 64), _mlp.2.bias (64,), _mlp.4.weight (64, 64),
    # _mlp.4.bias (64,), _mlp.6.weight (1, 64), _mlp.6.bias (1,)
    critic_2: Any
    # _mlp.0.weight (64, S+A), _mlp.0.bias (64,), _mlp.2.weight (64, 64), _mlp.2.bias (64,), _mlp.4.weight (64, 64),
    # _mlp.4.bias (64,), _mlp.6.weight (1, 64), _mlp.6.bias (1,)
    critic_1_target: Any
    # _mlp.0.weight (64, S+A), _mlp.0.bias (64,), _mlp.2.weight (64, 64), _mlp.2.bias (64,), _mlp.4.weight (64, 64),
    # _mlp.4.bias (64,), _mlp.6.weight (1, 64), _mlp.6.bias (1,)
    critic_2_target: Any
    actor_optimizer: Any
    critic_1_optimizer: Any
    critic_2_optimizer: Any


def create_train_state(key, config, state_dim, action_dim, max_action):
    """A fresh state: weights, targets that equal them, and optimisers' states.

    `config` has every setting of the reference, `config.discount` say.
    """
    raise NotImplementedError


def outputs(state, batch):
    """Every network's output by name.

    'mean': (B, A)
    'std': (B, A)
    'critic_1': (B,)
    'critic_2': (B,)
    """
    raise NotImplementedError


# - noise.target: Standard normal, (B, A): the policy's next actions in the target
# - noise.actor: Standard normal, (B, A): the policy's actions that the data's are compared with


def draw_noise(key, step, config, dataset_size, action_dim):
    """Optional: delete it, and draws are not checked.

    (indices, noise) for update `step`, from `key` and `step` alone. The indices are row numbers (B,) below
    `dataset_size`. The noise is a named tuple or a dict with what is listed above.
    """
    raise NotImplementedError


def critic_loss(critics, state, config, batch, noise):
    """The squared error of both critics to the same target.

    A scalar, differentiated by critic_1 and critic_2: `critics` is a tuple of both.
    """
    raise NotImplementedError


def actor_loss(actor, state, config, batch, noise):
    """Imitation of the data's actions, each with its weight.

    A scalar, differentiated by actor.
    """
    raise NotImplementedError


def update(state, config, batch, noise):
    """One gradient step: the critics; the actor, on the new critics; the targets.

    The next state, or (state, metrics).
    """
    raise NotImplementedError
