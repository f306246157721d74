"""GCBC, GCIVL, GCIQL and CRL in their authors' arrangement: one loss, one gradient, one Adam, in bare arrays."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from corl_torch.goal_conditioned import crl, gcbc, gciql, gcivl
from parity_tests.reference.common import ACTION_DIM, STATE_DIM
from parity_tests.reference.goals import (
    Adam,
    Batch,
    File,
    Policy,
    assert_same_layers,
    assert_same_policy,
    fixed,
    layers_of,
    leaves_of,
    mixed,
    moved,
    run,
    six_updates,
)
from shared.frameworks.torch_goals import take_goals

WIDTHS: dict[str, Any] = {"actor_hidden_dims": (40, 30), "value_hidden_dims": (30, 40), "batch_size": 64}
SMALL: dict[str, Any] = {name: value for name, value in WIDTHS.items() if not name.startswith("value")}
OF_VALUES = {"value_p_curgoal": 0.4, "value_p_trajgoal": 0.6, "value_p_randomgoal": 0.0, "value_geom_sample": False}
OF_ACTORS = {"actor_p_curgoal": 0.1, "actor_p_trajgoal": 0.5, "actor_p_randomgoal": 0.4, "actor_geom_sample": True}
OTHER_GOALS: dict[str, Any] = OF_VALUES | OF_ACTORS | {"gc_negative": False, "discount": 0.8}
ITSELF: dict[str, Any] = {"value_p_curgoal": 1.0, "value_p_trajgoal": 0.0, "value_p_randomgoal": 0.0}
LEARNT: dict[str, Any] = {"const_std": False, "learning_rate": 1e-3}


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Makes a mistake a thousand million times larger than rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def both(networks: list[list[Any]], *inputs: Tensor) -> Tensor:
    """The outputs of two networks side by side, (B, 2)."""
    return torch.cat([run(network, *inputs) for network in networks], 1)


class Imitator:
    """GCBC, and what all others share."""

    def __init__(self, config: Any, trainer: Any, bound: float) -> None:
        self.c, self.file, self.policy = config, File(config), Policy(trainer.actor, bound)
        self.adam = Adam(self.policy.leaves() + leaves_of(self.networks(trainer)), config.learning_rate)

    def networks(self, trainer: Any) -> list[list[Any]]:
        """Copies the networks besides the policy; returns those that learn."""
        return []

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """All terms of the one loss, and the other entries of the log."""
        s, a, h = batch["s"], batch["a"], batch["h"]
        error = run(self.policy.mu, s, h) - a
        return {"actor_loss": -self.policy.log_density(s, h, a).mean(), "mse": (error**2).mean()}

    def follow(self) -> None:
        """Moves the targets."""

    def update(self) -> dict[str, Tensor]:
        """The targets follow the old weights; then one step of everything."""
        found = self.terms(self.file.batch())
        self.follow()
        total = [found[name] for name in ("actor_loss", "value_loss", "critic_loss") if name in found]
        self.adam.step(torch.stack(total).sum())
        return found

    def towards_q(self, q: Tensor, log_density: Tensor) -> dict[str, Tensor]:
        """The policy's loss that maximizes Q, (B,), divided by its size, and clones."""
        q_loss = -q.mean() / (q.detach().abs().mean() + 1e-6)
        bc_loss = -self.c.alpha * log_density.mean()
        return {"q_loss": q_loss, "bc_loss": bc_loss, "actor_loss": q_loss + bc_loss}

    def weighted(self, temperature: float, adv: Tensor, log_density: Tensor) -> Tensor:
        """The policy's loss that clones by the exponentials of advantages (B,)."""
        free = (temperature * adv).exp()
        weight = torch.where(free > 100.0, 100.0, free)
        self.capped = bool((weight == 100.0).any())
        return -(weight * log_density).mean()

    def tried(self, s: Tensor, h: Tensor) -> Tensor:
        """The actions for which Q is maximized, with a draw if the deviation is learnt."""
        mu = run(self.policy.mu, s, h)
        u = mu if self.c.const_std else mu + self.policy.deviation() * torch.randn(mu.shape)
        return self.policy.inside(u)


class Valuer(Imitator):
    """GCIVL."""

    def networks(self, trainer: Any) -> list[list[Any]]:
        """Copies them."""
        self.v, self.t = ([layers_of(x.v1), layers_of(x.v2)] for x in (trainer.value, trainer.value_target))
        return self.v

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """All terms at the same weights."""
        s, a, n, g, h, r, m = (batch[name] for name in "sanghrm")
        with torch.no_grad():
            following = both(self.t, n, g)
            surprise = r + self.c.discount * m * following.min(1, keepdim=True).values
            surprise = surprise - both(self.t, s, g).sum(1, keepdim=True) / 2
            y = r + self.c.discount * m * following
            adv = ((both(self.v, n, h) - both(self.v, s, h)).sum(1)) / 2
        w = torch.where(surprise < 0, 1 - self.c.iql_tau, self.c.iql_tau)
        v = both(self.v, s, g)
        log_density = self.policy.log_density(s, h, a)
        return {
            "value_loss": (w * (y - v) ** 2).sum() / len(s),
            "actor_loss": self.weighted(self.c.inverse_temperature, adv, log_density),
            "v": v.mean(),
            "adv": adv.mean(),
            "bc_log_prob": log_density.mean(),
        }

    def follow(self) -> None:
        """Moves the targets towards the old networks."""
        self.t = [mixed(old, new, self.c.tau) for old, new in zip(self.t, self.v, strict=True)]


class Critics(Imitator):
    """GCIQL."""

    def networks(self, trainer: Any) -> list[list[Any]]:
        """Copies them."""
        self.v = layers_of(trainer.value.v)
        self.q, self.t = ([layers_of(x.q1), layers_of(x.q2)] for x in (trainer.critic, trainer.critic_target))
        return [self.v, *self.q]

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """All terms at the same weights."""
        s, a, n, g, h, r, m = (batch[name] for name in "sanghrm")
        v = run(self.v, s, g)
        with torch.no_grad():
            best = both(self.t, s, g, a).min(1, keepdim=True).values
            y = r + self.c.discount * m * run(self.v, n, g)
            adv = both(self.q, s, h, a).min(1).values - run(self.v, s, h)[:, 0]
        d = best - v
        log_density = self.policy.log_density(s, h, a)
        if self.c.actor_loss == "awr":
            loss = self.weighted(self.c.alpha, adv, log_density)
            actor = {"actor_loss": loss, "bc_log_prob": log_density.mean()}
        else:
            q = both([fixed(q) for q in self.q], s, h, self.tried(s, h)).min(1).values
            actor = self.towards_q(q, log_density)
        return actor | {
            "value_loss": (torch.where(d < 0, 1 - self.c.iql_tau, self.c.iql_tau) * d**2).mean(),
            "critic_loss": ((both(self.q, s, g, a) - y) ** 2).sum() / len(s),
            "v": v.mean(),
        }

    def follow(self) -> None:
        """Moves the targets towards the old networks."""
        self.t = [mixed(old, new, self.c.tau) for old, new in zip(self.t, self.q, strict=True)]


class Contrasts(Imitator):
    """CRL."""

    def networks(self, trainer: Any) -> list[list[Any]]:
        """Copies them."""
        self.q = [(layers_of(q.phi), layers_of(q.psi)) for q in (trainer.critic.q1, trainer.critic.q2)]
        self.w = layers_of(trainer.value.phi), layers_of(trainer.value.psi)
        return [layers for pair in (*self.q, self.w) for layers in pair]

    @staticmethod
    def table(codes: Any, g: Tensor, *inputs: Tensor) -> Tensor:
        """The values of all rows for all rows' goals, (B, B)."""
        phi, psi = run(codes[0], *inputs), run(codes[1], g)
        return phi @ psi.T / phi.shape[1] ** 0.5

    @staticmethod
    def entropy(table: Tensor) -> Tensor:
        """The binary cross-entropy of a table whose diagonal is true."""
        right = torch.eye(len(table))
        likely = 1 / (1 + (-table).exp())
        return -(right * likely.log() + (1 - right) * (1 - likely).log()).mean()

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """All terms at the same weights."""
        s, a, g, h = (batch[name] for name in "sagh")
        tables = [self.table(q, g, s, a) for q in self.q]
        found = {"critic_loss": (self.entropy(tables[0]) + self.entropy(tables[1])) / 2}
        found["q"] = (tables[0].diagonal().mean() + tables[1].diagonal().mean()) / 2
        log_density = self.policy.log_density(s, h, a)
        if self.c.actor_loss == "awr":
            with torch.no_grad():
                q = torch.stack([self.table(q, h, s, a).diagonal() for q in self.q]).min(0).values
                adv = q - self.table(self.w, h, s).diagonal()
            loss = self.weighted(self.c.alpha, adv, log_density)
            value_loss = self.entropy(self.table(self.w, g, s))
            return found | {"actor_loss": loss, "bc_log_prob": log_density.mean(), "value_loss": value_loss}
        u, still = self.tried(s, h), [tuple(map(fixed, q)) for q in self.q]
        q = torch.stack([self.table(q, h, s, u).diagonal() for q in still]).min(0).values
        return found | self.towards_q(q, log_density)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", [SMALL, SMALL | OTHER_GOALS | LEARNT, {"batch_size": 16}])
def test_gcbc(settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal."""
    config = gcbc.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = gcbc.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer, ["actor"], bound)
    reference = Imitator(config, trainer, bound)
    six_updates(gcbc, config, trainer, take_goals, reference)
    assert_same_policy(trainer, reference.policy)


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize(
    "settings",
    [
        WIDTHS | {"inverse_temperature": 30.0},
        WIDTHS | OTHER_GOALS | LEARNT | {"value_ln": False, "tau": 0.1, "iql_tau": 0.7},
        WIDTHS | ITSELF,
        {"batch_size": 16},
    ],
)
def test_gcivl(settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal."""
    config = gcivl.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = gcivl.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer, ["actor", "value", "value_target"], bound)
    reference = Valuer(config, trainer, bound)
    six_updates(gcivl, config, trainer, take_goals, reference)
    value, target = trainer.value, trainer.value_target
    assert_same_layers([value.v1, value.v2, target.v1, target.v2], [*reference.v, *reference.t])
    assert_same_policy(trainer, reference.policy)
    assert reference.capped or config.inverse_temperature != 30.0


CRITICS: list[dict[str, Any]] = [
    WIDTHS,
    WIDTHS | {"actor_loss": "awr", "alpha": 40.0},
    WIDTHS | OTHER_GOALS | LEARNT | {"value_ln": False, "alpha": 2.0},
    {"batch_size": 16},
]


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", [*CRITICS, WIDTHS | {"tau": 0.1, "iql_tau": 0.7}])
def test_gciql(settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal."""
    config = gciql.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = gciql.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer, ["actor", "value", "critic", "critic_target"], bound)
    reference = Critics(config, trainer, bound)
    six_updates(gciql, config, trainer, take_goals, reference)
    critic, target = trainer.critic, trainer.critic_target
    ours = [trainer.value.v, critic.q1, critic.q2, target.q1, target.q2]
    assert_same_layers(ours, [reference.v, *reference.q, *reference.t])
    assert_same_policy(trainer, reference.policy)
    assert config.actor_loss != "awr" or reference.capped


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("settings", [settings | {"latent_dim": 20} for settings in CRITICS])
def test_crl(settings: dict[str, Any], bound: float) -> None:
    """All weights, logs and actions are equal."""
    config = crl.TrainConfig(device="cpu", **settings)
    torch.manual_seed(7)
    trainer = crl.create_trainer(config, STATE_DIM, ACTION_DIM, bound)
    moved(trainer, ["actor", "critic", "value"], bound)
    reference = Contrasts(config, trainer, bound)
    six_updates(crl, config, trainer, take_goals, reference)
    ours = [code for q in (trainer.critic.q1, trainer.critic.q2, trainer.value) for code in (q.phi, q.psi)]
    assert_same_layers(ours, [layers for pair in (*reference.q, reference.w) for layers in pair])
    assert_same_policy(trainer, reference.policy)
    assert config.actor_loss != "awr" or reference.capped
