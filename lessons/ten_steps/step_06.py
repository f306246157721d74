"""Step 6: the delayed actor, by a static flag."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax import Array, value_and_grad
from jax.lax import stop_gradient
from jax.numpy import clip, minimum, square

from corl_torch.td3_bc import Hyperparameters, TrainConfig
from shared.data.transitions import Batch
from shared.frameworks.jax_layers import Linear, Network
from shared.frameworks.jax_side import narrow

# ---- networks ------------------------------------------------------------------------------------------------------


class Actor(nn.Module):
    """The deterministic policy: (B, S) to (B, A), within [-max_action, max_action]."""

    action_dim: int
    max_action: float

    def setup(self) -> None:
        self.net = nn.Sequential([
            Linear(256),
            nn.relu,
            Linear(256),
            nn.relu,
            Linear(self.action_dim),
            nn.tanh,
        ])  # fmt: skip

    def __call__(self, observations: Array) -> Array:
        """The actions (B, A) for observations (B, S)."""
        return self.max_action * self.net(observations)


class Critic(nn.Module):
    """Q(s, a): (B, S) and (B, A) to (B,)."""

    def setup(self) -> None:
        self.net = nn.Sequential([
            Linear(256),
            nn.relu,
            Linear(256),
            nn.relu,
            Linear(1),
        ])  # fmt: skip

    def __call__(self, observations: Array, actions: Array) -> Array:
        """The values (B,) of actions (B, A) in observations (B, S)."""
        return self.net(jnp.concatenate([observations, actions], axis=-1)).squeeze(-1)


# ---- randomness ----------------------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """The random numbers that an update draws besides its batch."""

    # Standard normal, (B, A): smooths the target policy
    target: Array


# ---- losses and update ---------------------------------------------------------------------------------------------

# Every network's optimiser
ADAM = optax.adam(3e-4)


def gradient_step(state: "TD3_BC", part: str, gradient: Network) -> "TD3_BC":
    """One step of Adam on one part of the state, down its gradient."""
    change, moments = ADAM.update(gradient, getattr(state, f"{part}_optimizer"))
    return state.replace(**{part: optax.apply_updates(getattr(state, part), change), f"{part}_optimizer": moments})


class TD3_BC(struct.PyTreeNode):
    """All that an update reads and writes."""

    actor: Network
    critic_1: Network
    critic_2: Network
    actor_target: Network
    critic_1_target: Network
    critic_2_target: Network
    actor_optimizer: optax.OptState
    critic_1_optimizer: optax.OptState
    critic_2_optimizer: optax.OptState
    hp: Hyperparameters = struct.field(pytree_node=False)
    max_action: float = struct.field(pytree_node=False)

    def td_target(self, batch: Batch, noise: Noise) -> Array:
        """The regression target of both critics, (B,): the smaller target value of a smoothed target action."""
        hp, max_action = self.hp, self.max_action
        actor, critic_1, critic_2 = self.actor_target, self.critic_1_target, self.critic_2_target
        smoothing = clip(
            noise.target * (hp.policy_noise * max_action), -hp.noise_clip * max_action, hp.noise_clip * max_action
        )
        next_actions = clip(actor(batch.next_observations) + smoothing, -max_action, max_action)
        next_q = minimum(
            critic_1(batch.next_observations, next_actions), critic_2(batch.next_observations, next_actions)
        )
        assert next_q.shape == batch.rewards.shape == batch.terminals.shape
        return batch.rewards + (1.0 - batch.terminals) * hp.discount * next_q

    def critic_loss(
        self, critics: tuple[Network, Network], batch: Batch, noise: Noise
    ) -> tuple[Array, dict[str, Array]]:
        """The squared error of both critics to the same target."""
        critic_1, critic_2 = critics
        target = self.td_target(batch, noise)
        q1 = critic_1(batch.observations, batch.actions)
        q2 = critic_2(batch.observations, batch.actions)
        assert q1.shape == q2.shape == target.shape
        return square(q1 - target).mean() + square(q2 - target).mean(), {}

    def actor_loss(self, actor: Network, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The value under critic 1, scaled by its own size, against the distance to the data's actions."""
        critic_1 = self.critic_1
        actions = actor(batch.observations)
        q = critic_1(batch.observations, actions)
        # There is no epsilon below |Q|, as in the authors' code.
        weight = self.hp.alpha / stop_gradient(jnp.abs(q).mean())
        assert actions.shape == batch.actions.shape
        return -weight * q.mean() + square(actions - batch.actions).mean(), {}

    def update(self, batch: Batch, noise: Noise, delayed: bool) -> tuple["TD3_BC", dict[str, Array]]:
        """One gradient step: the critics; if `delayed`, also the actor, on the new critic."""
        state = self
        critics = (state.critic_1, state.critic_2)
        (loss, _), gradients = value_and_grad(state.critic_loss, has_aux=True)(critics, batch, noise)
        state = gradient_step(state, "critic_1", gradients[0])
        state = gradient_step(state, "critic_2", gradients[1])
        metrics = {"critic_loss": loss}
        if delayed:
            (loss, _), gradient = value_and_grad(state.actor_loss, has_aux=True)(state.actor, batch)
            state = gradient_step(state, "actor", gradient)
            metrics["actor_loss"] = loss
        return state, metrics


# ---- training ------------------------------------------------------------------------------------------------------


def create_train_state(key: Array, config: TrainConfig, state_dim: int, action_dim: int, max_action: float) -> TD3_BC:
    """Fresh networks with PyTorch's initialisation."""
    observations, actions = jnp.zeros((1, state_dim)), jnp.zeros((1, action_dim))
    actor_key, critic_1_key, critic_2_key = jax.random.split(key, 3)
    actor = Network.create(Actor(action_dim, max_action), actor_key, observations)
    critic_1 = Network.create(Critic(), critic_1_key, observations, actions)
    critic_2 = Network.create(Critic(), critic_2_key, observations, actions)
    return TD3_BC(
        actor=actor,
        critic_1=critic_1,
        critic_2=critic_2,
        actor_target=actor,
        critic_1_target=critic_1,
        critic_2_target=critic_2,
        actor_optimizer=ADAM.init(actor),
        critic_1_optimizer=ADAM.init(critic_1),
        critic_2_optimizer=ADAM.init(critic_2),
        hp=narrow(config, Hyperparameters),
        max_action=max_action,
    )
