"""Step 1: what has weights."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax import Array

from corl_torch.td3_bc import Hyperparameters, TrainConfig
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_side import narrow

# ---- networks ------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """The deterministic policy: (B, S) to (B, A)."""

    action_dim: int

    def setup(self) -> None:
        self.net = nn.Sequential([
            Linear(256),
            nn.relu,
            Linear(256),
            nn.relu,
            Linear(self.action_dim),
        ])  # fmt: skip

    def __call__(self, observations: Array) -> Array:
        """The actions (B, A) for observations (B, S)."""
        return self.net(observations)


class Critic(nn.Module):
    """Q(s, a): (B, S) and (B, A) to (B, 1)."""

    def setup(self) -> None:
        self.net = nn.Sequential([
            Linear(256),
            nn.relu,
            Linear(256),
            nn.relu,
            Linear(1),
        ])  # fmt: skip

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (B, 1) of actions (B, A) in observations (B, S)."""
        return self.net(jnp.concatenate([observations, actions], axis=-1))


# ---- losses and update ---------------------------------------------------------------------------------------------


class TD3_BC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic_1: Network
    critic_2: Network
    actor_target: Network
    critic_1_target: Network
    critic_2_target: Network
    hp: Hyperparameters = struct.field(pytree_node=False)
    max_action: float = struct.field(pytree_node=False)


# ---- training ------------------------------------------------------------------------------------------------------


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> TD3_BC:
    """Fresh networks with PyTorch's initialisation."""
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critic_1_key, critic_2_key = jax.random.split(key, 3)
    actor = Network.create(Actor(action_dim), actor_key, observations)
    critic_1 = Network.create(Critic(), critic_1_key, observations, actions)
    critic_2 = Network.create(Critic(), critic_2_key, observations, actions)
    return TD3_BC(
        actor=actor,
        critic_1=critic_1,
        critic_2=critic_2,
        actor_target=actor,
        critic_1_target=critic_1,
        critic_2_target=critic_2,
        hp=narrow(config, Hyperparameters),
        max_action=max_action,
    )
