"""Mistakes made up by people, by kind, with the rung of the ladder that must catch each.

`operators.py` makes thousands of mutants of every twin, each of them one small change. This file contains kinds of
mistakes that it does not make: steps in another order, a key used twice, an object taken for another. Each kind is
planted in a few different pairs, so that a new pair needs none of its own. `patterns.py` describes the syntax.
"""

from dataclasses import dataclass
from functools import cache
from types import ModuleType

from parity_tests.mutants.patterns import Edit, edit
from parity_tests.mutants.planting import planted
from parity_tests.mutants.twins import source_of


@dataclass(frozen=True)
class Mistake:
    """A mistake to plant into a JAX twin: the ladder must catch it at this rung.

    Attributes:
        pair: The pair's name.
        name: The mistake in a few words.
        rung: A rung that fails, and passes without the mistake.
        function: The function to change, such as `TD3_BC.critic_loss`; empty for the whole twin.
        pattern: The current code, with the names of variables left open.
        replacement: The code that a tired person might have written instead.
        variant: The variant of settings under which it shows.
    """

    pair: str
    name: str
    rung: str
    function: str
    pattern: str
    replacement: str
    variant: str = "default"


@cache
def edit_of(mistake: Mistake) -> Edit:
    """The edit that plants a mistake in the twin.

    Raises:
        ValueError: The twin does not contain the pattern exactly once.
    """
    try:
        return edit(source_of(mistake.pair), mistake.function, mistake.pattern, mistake.replacement)
    except ValueError as error:
        raise ValueError(f"{mistake.pair}, {mistake.name}: {error}") from None


def with_mistake(mistake: Mistake) -> ModuleType:
    """The JAX twin with the mistake."""
    return planted(f"{mistake.pair} with {mistake.name}", edit_of(mistake).applied(source_of(mistake.pair)))


# fmt: off
KINDS: dict[str, list[Mistake]] = {
    "A row against a column: (B, B)": [
        Mistake("awac", "targets broadcast to (B, B)", "loss", "AWAC.critic_loss",
            "square(_q1 - _target).mean() + square(_q2 - _target).mean()",
            "square(_q1[:, None] - _target).mean() + square(_q2[:, None] - _target).mean()"),
        Mistake("awac", "weights broadcast to (B, B): behaviour cloning", "gradient", "AWAC.actor_loss",
            "-_log_probs * _weights",
            "-_log_probs * _weights[:, None]"),
        Mistake("awr", "weights broadcast to (B, B): behaviour cloning", "gradient", "AWR.actor_loss",
            "_weights * _log_probs",
            "_weights[:, None] * _log_probs"),
        Mistake("iql", "broadcast to (B, B)", "loss", "IQL.actor_loss",
            "(_weight * _bc_loss).mean",
            "(_weight[:, None] * _bc_loss).mean"),
        Mistake("sac_n", "targets broadcast to (B, B)", "loss", "SAC_N.critic_loss",
            "square(_q - _target).mean(axis=1)",
            "square(_q[:, :, None] - _target).mean(axis=(1, 2))"),
        Mistake("discrete/cql", "target broadcast to (B, B)", "loss", "quantile_huber",
            "_target[:, :, None] - _q[:, :, None]",
            "_target[:, :, None] - _q[:, None]"),
        Mistake("fql", "broadcast to (B, B)", "loss", "FQL.critic_loss",
            "_q - _target",
            "_q[..., None] - _target"),
        Mistake("model_based/mopo", "targets broadcast to (B, B)", "loss", "MOPO.critic_loss",
            "(square(_q1 - _target).mean(), square(_q2 - _target).mean())",
            "(square(_q1[:, None] - _target).mean(), square(_q2 - _target).mean())"),
    ],
    "Steps in another order": [
        Mistake("awr", "steps of V and of the policy exchanged", "update", "AWR.update",
            "_hp.value_updates",
            "_hp.actor_updates"),
        Mistake("bear", "the policy meets the old critics", "update", "BEAR.update",
            "_state.step_actor",
            "_state.replace(critic=self.critic).step_actor"),
        Mistake("model_based/combo", "actor by the new critics", "update", "COMBO.update",
            "(_actor_loss, _aux), _gradient = value_and_grad(_state.actor_loss, "
            "has_aux=True)(_state.actor, _batch, _noise)",
            "early = jax.grad(_state.critic_loss, has_aux=True)((_state.critic_1, _state.critic_2), "
            "_batch, _noise)[0]\n"
            "fresh = gradient_step(gradient_step(_state, 'critic_1', early[0]), 'critic_2', early[1])\n"
            "(_actor_loss, _aux), _gradient = value_and_grad(fresh.actor_loss, "
            "has_aux=True)(_state.actor, _batch, _noise)"),
        Mistake("finetune/awac", "update before the step is stored", "shipped path", "train_online",
            "_ring, _num_updates = (push(_ring, _rows), len(_rows))",
            "before, _ring, _num_updates = (_ring, push(_ring, _rows), len(_rows))\n"
            "_ring = _ring.replace(rows=before.rows)"),
        Mistake("finetune/iql", "acts on the old weights", "shipped path", "train_online",
            "_state, _history = train_interval(_state, _key, _ring, _start, _num_updates, _ring.size)\n"
            "return (_state, _ring, next_action(_state, _key, _start + _num_updates, _observation), "
            "_history)",
            "old = _state\n"
            "_state, _history = train_interval(_state, _key, _ring, _start, _num_updates, _ring.size)\n"
            "return (_state, _ring, next_action(old, _key, _start + _num_updates, _observation), "
            "_history)"),
        Mistake("iql", "critics learn from the new V", "update", "IQL.update",
            "value_and_grad(_state.q_loss, has_aux=True)(_state.critic, _batch)",
            "value_and_grad(gradient_step(_state, 'value', jax.grad(_state.value_loss, "
            "has_aux=True)(_state.value, _batch)[0]).q_loss, has_aux=True)(_state.critic, _batch)"),
        Mistake("discrete/iql", "critics learn from the new V", "update", "IQL.update",
            "value_and_grad(_state.q_loss, has_aux=True)(_state.critic, _batch)",
            "value_and_grad(gradient_step(_state, 'value', jax.grad(_state.value_loss, "
            "has_aux=True)(_state.value, _batch)[0]).q_loss, has_aux=True)(_state.critic, _batch)"),
        Mistake("iql", "policy sees the new V", "update", "IQL.update",
            "value_and_grad(_state.actor_loss, has_aux=True)(_state.actor, _batch, _noise, _aux['adv'])",
            "value_and_grad(_state.actor_loss, has_aux=True)(_state.actor, _batch, _noise, "
            "_state.target_q(_batch) - gradient_step(_state, 'value', jax.grad(_state.value_loss, "
            "has_aux=True)(_state.value, _batch)[0]).value(_batch.observations))"),
        Mistake("sac", "temperature first", "update", "SAC.update",
            "_alpha, _critics = (_state.temperature(), (_state.critic_1, _state.critic_2))\n"
            "(_loss, _aux), _gradients = value_and_grad(_state.critic_loss, has_aux=True)(_critics, "
            "_batch, _noise)",
            "_, early = sample(_state.actor, _batch.observations, _noise.actor)\n"
            "_state = gradient_step(_state, 'log_temperature', jax.grad(_state.alpha_loss, "
            "has_aux=True)(_state.log_temperature, early)[0])\n"
            "_alpha, _critics = (_state.temperature(), (_state.critic_1, _state.critic_2))\n"
            "(_loss, _aux), _gradients = value_and_grad(_state.critic_loss, has_aux=True)(_critics, "
            "_batch, _noise)"),
        Mistake("cql", "actor sees the new critics", "update", "CQL.update",
            "value_and_grad(_state.actor_loss, has_aux=True)(_state.actor, _batch, _noise)",
            "value_and_grad(gradient_step(_state, 'critic_1', jax.grad(_state.critic_loss, "
            "has_aux=True)((_state.critic_1, _state.critic_2), _batch, _noise)[0][0], "
            "self.hp.critic_lr).actor_loss, has_aux=True)(_state.actor, _batch, _noise)"),
        Mistake("fql", "policy on the new critics", "update", "FQL.update",
            "value_and_grad(self.actor_loss, has_aux=True)(self.actor, _batch, _noise)",
            "value_and_grad(gradient_step(self, 'critic', jax.grad(self.critic_loss, "
            "has_aux=True)(self.critic, _batch, _noise)[0]).actor_loss, has_aux=True)(self.actor, "
            "_batch, _noise)"),
        Mistake("fql", "policy on the new flow", "update", "FQL.update",
            "value_and_grad(self.actor_loss, has_aux=True)(self.actor, _batch, _noise)",
            "value_and_grad(gradient_step(self, 'flow', jax.grad(self.flow_loss, "
            "has_aux=True)(self.flow, _batch, _noise)[0]).actor_loss, has_aux=True)(self.actor, _batch, "
            "_noise)"),
    ],
    "A target network that follows another network, or at another time": [
        Mistake("uwac", "directions averaged with the targets", "update", "UWAC.update",
            "_state = _state.replace(critic_target=soft_update(_state.critic_target, _state.critic, "
            "_hp.tau))",
            "_state = _state.replace(critic_target=soft_update(_state.critic_target, _state.critic, "
            "_hp.tau))\n"
            "_state = _state.replace(target_directions=soft_update(_state.target_directions, "
            "_state.directions, _hp.tau))",
            variant="authors"),
        Mistake("discrete/sac", "Polyak's step in place of a copy", "update", "SAC.update",
            "partial(where, _copied)",
            "lambda new, old: 0.995 * old + 0.005 * new"),
        Mistake("evaluation/fqe", "always copied", "trajectory", "FQE.update",
            "if _copied:\n"
            "    _state = _state.replace(critic_target=_state.critic)",
            "if True:\n"
            "    _state = _state.replace(critic_target=_state.critic)"),
        Mistake("plas", "the target starts with numbers of its own", "start", "create_train_state",
            "not _config.copy_target_policy",
            "True"),
        Mistake("finetune/rebrac", "targets reset at the switch", "shipped path", "train_online",
            "_state.replace(total_it=_state.total_it + _idle)",
            "_state.replace(total_it=_state.total_it + _idle, critic_target=_state.critic)",
            variant="plain"),
        Mistake("fql", "target from the new critics", "update", "FQL.update",
            "_state = _state.replace(critic_target=soft_update(_state.critic_target, _state.critic, "
            "_hp.tau))\n"
            "_state = gradient_step(_state, 'actor', _of_actor)\n"
            "_state = gradient_step(_state, 'flow', _of_flow)\n"
            "_state = gradient_step(_state, 'critic', _of_critic)",
            "_state = gradient_step(_state, 'actor', _of_actor)\n"
            "_state = gradient_step(_state, 'flow', _of_flow)\n"
            "_state = gradient_step(_state, 'critic', _of_critic)\n"
            "_state = _state.replace(critic_target=soft_update(_state.critic_target, _state.critic, "
            "_hp.tau))"),
        Mistake("discrete/iql", "target from the new critics", "update", "IQL.update",
            "_state = _state.replace(critic_target=soft_update(_state.critic_target, _state.critic, _hp.tau))\n"
            "_state = gradient_step(_state, 'value', _of_v)\n"
            "_state = gradient_step(_state, 'critic', _of_q)",
            "_state = gradient_step(_state, 'value', _of_v)\n"
            "_state = gradient_step(_state, 'critic', _of_q)\n"
            "_state = _state.replace(critic_target=soft_update(_state.critic_target, _state.critic, _hp.tau))"),
        Mistake("rebrac", "target from the new actor", "update", "ReBRAC.update",
            "_state = _state.replace(actor_target=soft_update(_state.actor_target, _state.actor, "
            "_hp.tau))\n"
            "_state = gradient_step(_state, 'actor', _gradient)",
            "_state = gradient_step(_state, 'actor', _gradient)\n"
            "_state = _state.replace(actor_target=soft_update(_state.actor_target, _state.actor, "
            "_hp.tau))"),
        Mistake("td3_bc", "targets moved at every step", "trajectory", "TD3_BC.update",
            "_state = gradient_step(_state, 'critic_2', _gradients[1])",
            "_state = gradient_step(_state, 'critic_2', _gradients[1])\n"
            "_state = _state.replace(critic_1_target=soft_update(_state.critic_1_target, "
            "_state.critic_1, _state.hp.tau))"),
        Mistake("online/td3", "targets moved at every update", "trajectory", "TD3.update",
            "_state = gradient_step(_state, 'critic', _gradient)",
            "_state = gradient_step(_state, 'critic', _gradient)\n"
            "_state = _state.replace(critic_target=soft_update(_state.critic_target, _state.critic, "
            "_state.hp.tau))"),
    ],
    "One source of noise, or one key, used twice": [
        Mistake("sac_n", "one sample for temperature and policy", "loss", "SAC_N.alpha_loss",
            "_noise.alpha",
            "_noise.actor"),
        Mistake("sac", "current noise in the target", "loss", "SAC.td_target",
            "_noise.target",
            "_noise.actor"),
        Mistake("fql", "one noise for both states", "loss", "FQL.td_target",
            "_noise.target",
            "_noise.actor"),
        Mistake("any_percent_bc", "rows and crops from one key", "draws", "draw_noise",
            "_key, _crops_key = jax.random.split(_key)",
            "_crops_key = _key",
            variant="images"),
        Mistake("sac", "rows and crops from one key", "draws", "draw_noise",
            "_key, _crops_key = jax.random.split(_key)",
            "_crops_key = _key",
            variant="images"),
        Mistake("discrete/cql", "one draw of fractions for all passes", "draws", "draw_noise",
            "(jax.random.uniform(_each, _shape) for _each in _keys)",
            "(jax.random.uniform(_each, _shape) for _each in [_keys[0]] * len(_keys))",
            variant="implicit"),
        Mistake("online/ddpg", "one draw of fractions for all critics", "draws", "draw_noise",
            "jax.random.uniform(_each, _shape)",
            "jnp.broadcast_to(jax.random.uniform(_each, _shape[1:]), _shape)",
            variant="implicit"),
        Mistake("online/ddpg", "the target at the fractions of the error", "loss", "DDPG.td_target",
            "_noise.target_fractions",
            "_noise.error_fractions",
            variant="implicit"),
        Mistake("online/dqn", "choice and value at the same fractions", "loss", "DQN.td_target",
            "_noise.choice",
            "_noise.target",
            variant="implicit"),
        Mistake("online/td3", "the first critic's fractions for all", "loss", "Critics.__call__",
            "zip(_members, _given, strict=True)",
            "zip(_members, [_given[0]] * len(_members), strict=True)",
            variant="implicit"),
        Mistake("finetune/iql", "one key for dropout and exploration", "draws", "draw_exploration",
            "jax.random.normal(_keys[2], (1, _action_dim))",
            "jax.random.normal(_keys[0], (1, _action_dim))",
            variant="dropout"),
        Mistake("model_based/combo", "random and policy's samples from one key", "draws", "draw_noise",
            "_keys[4]",
            "_keys[6]"),
        Mistake("bear", "one key for all", "draws", "draw_noise.normal",
            "_keys.pop()",
            "_keys[0]"),
        Mistake("crr", "one sample's noise for all states", "loss", "CRR.advantage",
            "sample(_actor, _batch.observations, _noise.actor)",
            "sample(_actor, _batch.observations, _noise.actor[:1])"),
        Mistake("model_based/mopo", "one draw for policy and model", "draws", "draw_step",
            "_actor_key, _normals_key, _chosen_key = jax.random.split(_key, 3)",
            "_actor_key, _, _chosen_key = jax.random.split(_key, 3)\n"
            "_normals_key = _actor_key"),
        Mistake("finetune/spot", "one key for both noises", "draws", "draw_noise",
            "_index_key, _target_key, _latent_key, _ = jax.random.split(_folded, 4)",
            "_index_key, _target_key, _, _ = jax.random.split(_folded, 4)\n"
            "_latent_key = _target_key"),
        Mistake("bcq", "one code for all samples of a state", "loss", "BCQ.td_target",
            "sample(_actor, _decoder, _observations, _noise.target)",
            "sample(_actor, _decoder, _observations, jnp.repeat(_noise.target[:, :1], "
            "_noise.target.shape[1], axis=1))"),
        Mistake("uwac", "one key for all masks", "draws", "draw_dropout",
            "iter(jax.random.split(_key, _number))",
            "iter([_key] * (_number))"),
    ],
    "The same draws again": [
        Mistake("td3_bc", "same noise at every update", "draws", "draw_noise",
            "jax.random.fold_in(_key, _step)",
            "jax.random.fold_in(_key, 0 * _step)"),
        Mistake("finetune/rebrac", "the same exploration at every step", "draws", "draw_exploration",
            "jax.random.fold_in(_key, _step)",
            "jax.random.fold_in(_key, 0 * _step)"),
        Mistake("model_based/mopo", "the same roll-outs at every time", "shipped path", "imagine",
            "jax.random.split(jax.random.fold_in(_key, _step))",
            "jax.random.split(jax.random.fold_in(_key, 0 * _step))"),
        Mistake("lb_sac", "every update from the first row", "shipped path", "train_interval.update",
            "take(_dataset, _indices)",
            "take(_dataset, 0 * _indices)"),
        Mistake("dt", "same dropout at every update", "draws", "draw_noise",
            "_index_key, _dropout_key = jax.random.split(jax.random.fold_in(_key, _step))",
            "_index_key, _dropout_key = (jax.random.split(jax.random.fold_in(_key, _step))[0], _key)"),
        Mistake("finetune/fql", "draws begin anew at each interval", "shipped path", "train_interval",
            "scan_updates(_update, _draw, _state, _start, _number)",
            "scan_updates(_update, lambda step: _draw(step - _start), _state, _start, _number)"),
        Mistake("evaluation/fqe", "draws begin anew at each interval", "shipped path", "train_interval",
            "scan_updates(_update, _draw, _state, _first, _number)",
            "scan_updates(_update, lambda step: _draw(step - _first), _state, _first, _number)"),
        Mistake("lb_sac", "noise of a chunk's updates alike", "shipped path", "train_interval",
            "scan_updates(_update, _draw, _state, _start, _number, chunk=CHUNK)",
            "scan_updates(_update, lambda step: _draw(_start + (step - _start) // CHUNK * CHUNK), "
            "_state, _start, _number, chunk=CHUNK)"),
        Mistake("edac", "every update from the first batch", "shipped path", "train_interval",
            "jax.vmap(_draw)(_steps)",
            "jax.vmap(_draw)(0 * _steps + _steps[0])"),
    ],
    "Rows that are not there, or not the right ones": [
        Mistake("any_percent_bc", "rows beyond the data", "draws", "draw_noise",
            "jax.random.randint(_key, (_hp.batch_size,), 0, _dataset_size)",
            "jax.random.randint(_key, (_hp.batch_size,), _dataset_size, 2 * _dataset_size)"),
        Mistake("finetune/cal_ql", "rows beyond what is stored", "draws", "draw_noise",
            "jax.random.randint(_keys[7], (_online,), 0, _online_size)",
            "jax.random.randint(_keys[7], (_online,), 0, _online_size + 1)"),
        Mistake("finetune/fql", "buffer overwritten from the wrong end", "shipped path", "train_online",
            "push(_ring, _rows)",
            "push(_ring.replace(pointer=_ring.pointer - 1), _rows)"),
        Mistake("finetune/awac", "batches of what was there before", "shipped path", "train_online",
            "train_interval(_state, _key, _ring, _start, _num_updates, _ring.size)",
            "train_interval(_state, _key, _ring, _start, _num_updates, _ring.size - _num_updates)"),
        Mistake("finetune/balanced_replay", "places counted from the ring", "shipped path", "train_online",
            "_state.enter(_places, len(_dataset))",
            "_state.enter(_places - len(_dataset), len(_dataset))"),
        Mistake("finetune/balanced_replay", "written to other rows", "update", "BalancedReplay.update",
            "_batch.places",
            "_batch.places[::-1]"),
        Mistake("model_based/combo", "batches of the dataset alone", "shipped path", "train_interval.update",
            "take_both(_dataset.rows, _dataset.ring, _indices, shares(_hp)[0])",
            "take(_dataset.rows, _indices % len(_dataset.rows))"),
        Mistake("model_based/dynamics", "held-out rows learnt from", "update", "in_parts",
            "_split.training[_split.bootstrap]",
            "_split.bootstrap"),
        Mistake("awr", "rows dealt to the slices in turn", "update", "slices",
            "_column[:_number * _size].reshape(_number, _size, *_column.shape[1:])",
            "_column[:_number * _size].reshape(_size, _number, *_column.shape[1:]).swapaxes(0, 1)"),
        Mistake("sac", "draws beyond the experience", "shipped path", "train_interval",
            "draw_noise(_key, _step, _hp, _size, _action_dim)",
            "draw_noise(_key, _step, _hp, 2 * _size, _action_dim)"),
        Mistake("online/dqn", "draws beyond the experience", "shipped path", "train_interval",
            "draw_noise(_key, _step, _hp, _size)",
            "draw_noise(_key, _step, _hp, 2 * _size)"),
    ],
    "A gradient that flows where it should not, or does not where it should": [
        Mistake("cql", "policy samples not detached", "gradient", "CQL.critic_loss",
            "_gap, _own = self.gap(_critic, _batch, _q, _noise.random, (_current, _next))",
            "moved = _critic(_batch.observations, _next[0])\n"
            "moved = (_next[0], _next[1] + moved - jax.lax.stop_gradient(moved))\n"
            "_gap, _own = self.gap(_critic, _batch, _q, _noise.random, (_current, moved))"),
        Mistake("discrete/bcq", "hidden layers not moved by the imitator", "gradient", "BCQ.critic_loss",
            "_imitator(_batch.observations, _features)",
            "_imitator(_batch.observations, jax.lax.stop_gradient(_features))"),
        Mistake("discrete/bcq", "gradient through the target", "update", "BCQ.update",
            "value_and_grad(_state.critic_loss, has_aux=True)(_networks, _batch)",
            "value_and_grad(lambda both: _state.replace(critic_target=both[0]).critic_loss(both, "
            "_batch), has_aux=True)(_networks)"),
        Mistake("discrete/iql", "gradient through the advantage", "update", "IQL.update",
            "value_and_grad(_state.q_loss, has_aux=True)(_state.critic, _batch)",
            "value_and_grad(lambda critic, batch: (_state.q_loss(critic, _batch)[0] + "
            "_state.replace(critic=critic).actor_loss(_state.actor, _batch)[0], {}), has_aux=True)(_state.critic, "
            "_batch)"),
        Mistake("discrete/cql", "no gradient through the data's action", "gradient", "gap",
            "_values * one_hot(_actions, _values.shape[-1])",
            "jax.lax.stop_gradient(_values) * one_hot(_actions, _values.shape[-1])"),
        Mistake("edac", "actions not differentiated", "gradient", "EDAC.actor_loss",
            "_critic(_batch.observations, _actions)",
            "_critic(_batch.observations, jax.lax.stop_gradient(_actions))"),
        Mistake("edac", "lengths not differentiated", "gradient", "alikeness",
            "norm(_gradients)",
            "jax.lax.stop_gradient(norm(_gradients))"),
        Mistake("lb_sac", "every critic's gradient", "gradient", "smallest",
            "where(_is_first, _q, 0.0).sum(axis=0)",
            "_q.min(axis=0) + _q.mean(axis=0) - jax.lax.stop_gradient(_q.mean(axis=0))"),
        Mistake("plas", "perturbation sees no gradient of its input", "gradient", "Actor.__call__",
            "[_observations, _actions]",
            "[_observations, jax.lax.stop_gradient(_actions)]",
            variant="vae"),
        Mistake("prdc", "gradient through the nearest action", "gradient", "PRDC.actor_loss",
            "_actions - _nearest",
            "_actions - (_nearest + _actions - stop_gradient(_actions))"),
        Mistake("bear", "MMD held in the policy of d3rlpy's form", "update", "BEAR.step_all",
            "_state.sac_loss",
            "_state.actor_loss",
            variant="other"),
        Mistake("uwac", "sigma without a gradient", "gradient", "SpectralLinear.__call__",
            "_u @ (_v @ _kernel)",
            "stop_gradient(_u @ (_v @ _kernel))"),
        Mistake("fql", "a gradient beyond the bounds", "gradient", "FQL.actor_loss",
            "cut(_actor, _actions)",
            "_actions + stop_gradient(cut(_actor, _actions) - _actions)"),
        Mistake("finetune/cal_ql", "bound without a gradient", "gradient", "CalQL.gap",
            "(maximum(_q_current, _floor), maximum(_q_next, _floor))",
            "jax.lax.stop_gradient((maximum(_q_current, _floor), maximum(_q_next, _floor)))"),
        Mistake("finetune/spot", "the data's actions in the constraint", "gradient", "SPOT.actor_loss",
            "self.neg_log_beta(_batch.observations, _actions, _noise.latent)",
            "self.neg_log_beta(_batch.observations, _batch.actions, _noise.latent)"),
        Mistake("evaluation/fqe", "gradient through the target", "update", "FQE.update",
            "value_and_grad(_state.critic_loss, has_aux=True)(_state.critic, _batch)",
            "value_and_grad(lambda critic: _state.replace(critic_target=critic).critic_loss(critic, "
            "_batch), has_aux=True)(_state.critic)"),
        Mistake("awac", "weights differentiated", "gradient", "AWAC.actor_loss",
            "_weights = self.weights(_batch, _noise)\n"
            "_log_probs = log_prob(_actor, _batch.observations, _batch.actions)",
            "_weights = self.replace(actor=_actor).weights(_batch, _noise)\n"
            "_log_probs = log_prob(_actor, _batch.observations, _batch.actions)"),
        Mistake("crr", "gradient through the weights", "gradient", "CRR.actor_loss",
            "_weights = self.weights(self.advantage(_batch, _noise))\n"
            "_log_probs = log_prob(_actor, _batch.observations, _batch.actions)",
            "_weights = self.weights(self.replace(actor=_actor).advantage(_batch, _noise))\n"
            "_log_probs = log_prob(_actor, _batch.observations, _batch.actions)",
            variant="other"),
        Mistake("finetune/spot", "VAE not frozen", "update", "SPOT.update",
            "(_loss, _aux), _gradient = value_and_grad(_state.actor_loss, has_aux=True)(_state.actor, "
            "_batch, _noise, _lambd)",
            "(_loss, _aux), _gradient = value_and_grad(_state.actor_loss, has_aux=True)(_state.actor, "
            "_batch, _noise, _lambd)\n"
            "_state = gradient_step(_state, 'vae', jax.grad(_state.vae_loss, has_aux=True)(_state.vae, "
            "_batch, _noise)[0])"),
    ],
    "A period off by one, or begun anew": [
        Mistake("rebrac", "first full update one too late", "shipped path", "train_interval.update",
            "_phase + _place",
            "_phase + _place + 1"),
        Mistake("online/td3", "policy in the second update, not in the first", "shipped path", "train_interval.update",
            "_phase + _place",
            "_phase + _place + 1"),
        Mistake("prdc", "policy in the second update, not in the first", "shipped path", "train_interval.block",
            "_phase + _i",
            "_phase + _i + 1"),
        Mistake("discrete/bcq", "target copied one update late", "shipped path", "train_interval.draw",
            "_step - _start + _phase",
            "_step - _start + _phase + 1"),
        Mistake("crr", "copies counted from 1", "shipped path", "train_interval.draw",
            "_step - _start",
            "_step + 1 - _start",
            variant="other"),
        Mistake("bcq", "the VAE alone for one update less", "shipped path", "train_interval",
            "scan(_state, _start, _vae_updates, pretrains=True)",
            "scan(_state, _start, _vae_updates - 1, pretrains=True)",
            variant="other"),
        Mistake("plas", "the VAE one update short", "shipped path", "train_interval",
            "scan(_state, _start, _vae_updates, pretrains=True)",
            "scan(_state, _start, _vae_updates - 1, pretrains=True)"),
        Mistake("cql", "target period ignored", "shipped path", "train_interval.update",
            "(_phase + _place + 1) % _hp.target_update_period == 0",
            "True",
            variant="unweighted"),
        Mistake("finetune/rebrac", "phase of the updates forgotten online", "shipped path", "train_online",
            "train_interval(_state, _key, _dataset, _start + _idle, len(_rows) - _idle, _phase, _ring)",
            "train_interval(_state, _key, _dataset, _start + _idle, len(_rows) - _idle, 0, _ring)"),
        Mistake("finetune/rebrac", "weights stand still", "trajectory", "ReBRAC.update",
            "_state.replace(total_it=_state.total_it + 1)",
            "_state",
            variant="other"),
        Mistake("finetune/spot", "lambd cools one update late", "trajectory", "SPOT.update",
            "_step - _hp.switch",
            "_step - _hp.switch - 1",
            variant="other"),
        Mistake("finetune/cal_ql", "the phase forgotten in a call", "shipped path", "train_interval",
            "_ring is not None",
            "False",
            variant="other"),
        Mistake("uwac", "the warm-up one update short", "shipped path", "train_interval",
            "scan(_state, _start, _warm_updates, warms_up=True)",
            "scan(_state, _start, _warm_updates - 1, warms_up=True)",
            variant="authors"),
    ],
    "Axes and parts in another order": [
        Mistake("td3_bc", "swapped input", "forward", "Critic.__call__",
            "[_observations, _actions]",
            "[_actions, _observations]"),
        Mistake("dt", "tokens in another order", "forward", "DecisionTransformer.__call__",
            "(self.return_emb(_returns[..., None]), self.state_emb(_observations), "
            "self.action_emb(_actions))",
            "(self.state_emb(_observations), self.return_emb(_returns[..., None]), "
            "self.action_emb(_actions))"),
        Mistake("bcq", "observations tiled in another order", "loss", "repeat",
            "tile(_observations[:, None], (1, _n, 1))",
            "tile(_observations, (_n, 1)).reshape(len(_observations), _n, -1)"),
        Mistake("model_based/combo", "states tiled, not repeated", "loss", "Critic.__call__",
            "jnp.broadcast_to(_observations[:, None], (*_actions.shape[:2], _observations.shape[-1]))",
            "jnp.tile(_observations, (_actions.shape[1], 1)).reshape(*_actions.shape[:2], -1)"),
        Mistake("model_based/dynamics", "reward first", "loss", "targets",
            "[_batch.next_observations - _batch.observations, _batch.rewards[..., None]]",
            "[_batch.rewards[..., None], _batch.next_observations - _batch.observations]"),
        Mistake("online/dqn", "outputs by quantile, then by action", "forward", "Critics.__call__",
            "_member(_observations).reshape(-1, self.action_dim, self.n_quantiles)",
            "_member(_observations).reshape(-1, self.n_quantiles, self.action_dim).swapaxes(1, 2)",
            variant="quantiles"),
        Mistake("iql", "rows and columns exchanged", "update", "IQL.update",
            "_noise.crops",
            "None if _noise.crops is None else _noise.crops[..., ::-1]",
            variant="images"),
        Mistake("sac", "the next images cropped like the others", "update", "SAC.update",
            "_noise.crops",
            "None if _noise.crops is None else _noise.crops[:1].repeat(2, axis=0)",
            variant="images"),
        Mistake("xql", "random actions in other rows' states", "loss", "XQL.value_rows",
            "_noise.random.reshape",
            "_noise.random.swapaxes(0, 1).reshape",
            variant="other"),
    ],
    "Operations in another order": [
        Mistake("rebrac", "size of the mean for the mean size", "loss", "ReBRAC.actor_loss",
            "jnp.abs(_q).mean()",
            "jnp.abs(_q.mean())"),
        Mistake("cql", "mean clipped, not the rows", "loss", "CQL.gap",
            "clamp(_ood - _q, _hp.cql_clip_diff_min, _hp.cql_clip_diff_max).mean()",
            "clamp((_ood - _q).mean(), _hp.cql_clip_diff_min, _hp.cql_clip_diff_max)",
            variant="fixed temperature"),
        Mistake("crr", "cap before the exponential", "loss", "CRR.weights",
            "minimum(exp(_advantage / _hp.advantage_temperature), _hp.max_weight)",
            "exp(minimum(_advantage / _hp.advantage_temperature, _hp.max_weight))",
            variant="other"),
        Mistake("xql", "maximum of each row", "loss", "XQL.gumbel_loss",
            "_z.max()",
            "_z"),
        Mistake("online/td3", "noise clipped before it is scaled", "loss", "TD3.td_target",
            "clip(_noise.target * (_hp.policy_noise * _max_action), -_hp.noise_clip * _max_action, "
            "_hp.noise_clip * _max_action)",
            "_hp.policy_noise * _max_action * clip(_noise.target, -_hp.noise_clip, _hp.noise_clip)"),
        Mistake("discrete/sac", "smallest of the expected values", "loss", "SAC.td_target",
            "_q = amin(_critics(_batch.next_observations), axis=0)\n"
            "_next_v = (_probs * (_q - self.temperature() * _log_probs)).sum(axis=-1)",
            "_q = _critics(_batch.next_observations)\n"
            "_next_v = amin((_probs * (_q - self.temperature() * _log_probs)).sum(axis=-1), axis=0)"),
        Mistake("discrete/cql", "soft maximum over the batch", "loss", "gap",
            "logsumexp(_values, axis=-1) - (_values * one_hot(_actions, _values.shape[-1])).sum(axis=-1)",
            "logsumexp(_values, axis=0)[_actions] - (_values * one_hot(_actions, "
            "_values.shape[-1])).sum(axis=-1)"),
        Mistake("online/ddpg", "smallest quantiles of any critic", "loss", "smallest",
            "(_q * _critic.T[..., None]).sum",
            "_q.min",
            variant="quantiles"),
        Mistake("dt", "norm after the block", "forward", "Block.__call__",
            "_tokens + dropped(self.mlp(self.norm2(_tokens)), _dropout.mlp)",
            "self.norm2(_tokens + dropped(self.mlp(_tokens), _dropout.mlp))"),
        Mistake("dt", "attention to what is not normalised", "forward", "Block.__call__",
            "self.norm1(_tokens)",
            "_tokens + 0 * self.norm1(_tokens)"),
        Mistake("awr", "normalised all the same", "forward", "AWR.weights",
            "_hp.normalize_advantages",
            "True",
            variant="plain"),
        Mistake("plas", "the tanh flag inverted", "forward", "Decoder.__call__",
            "tanh(_actions) if self.squashed else _actions",
            "_actions if self.squashed else tanh(_actions)"),
        Mistake("model_based/mopo", "an end forgotten a step later", "act", "MOPO.roll_out.go_on",
            "_alive & ~_step.terminals",
            "~_step.terminals"),
        Mistake("finetune/cql", "policy explores with its mean", "act", "CQL.explore",
            "_noise.action",
            "0.0 * _noise.action"),
        Mistake("rebrac", "target's distance not masked", "trajectory", "ReBRAC.td_target",
            "_next_q = _values - _hp.critic_bc_coef * _distance\n"
            "assert _shapes\n"
            "return _batch.rewards + (1.0 - _batch.terminals) * _hp.discount * _next_q",
            "_next_q = _values\n"
            "return _batch.rewards + _hp.discount * ((1.0 - _batch.terminals) * _next_q - "
            "_hp.critic_bc_coef * _distance)"),
    ],
    "An optimiser of other settings, or what it should not forget": [
        Mistake("td3_bc", "Adam's epsilon", "update", "",
            "optax.adam(0.0003)",
            "optax.adam(0.0003, eps=1e-05)"),
        Mistake("iql", "learning rates swapped", "update", "adam",
            "{'value': _hp.value_lr, 'critic': _hp.critic_lr, 'actor': partial(actor_lr, _hp)}",
            "{'value': _hp.critic_lr, 'critic': _hp.value_lr, 'actor': partial(actor_lr, _hp)}",
            variant="other"),
        Mistake("iql", "learning rate one step ahead", "update", "actor_lr",
            "math.pi * _step",
            "math.pi * (_step + 1)",
            variant="other"),
        Mistake("iql", "learning rate 0 for good", "trajectory", "adam",
            "partial(actor_lr, _hp)",
            "optax.cosine_decay_schedule(_hp.actor_lr, _hp.max_timesteps)",
            variant="other"),
        Mistake("awr", "momentum lost between updates", "update", "AWR.update",
            "_state, _hp = (self, self.hp)",
            "_state, _hp = (self, self.hp)\n"
            "_state = _state.replace(value_optimizer=jax.tree.map(jnp.zeros_like, _state.value_optimizer))"),
        Mistake("finetune/iql", "learning rate starts anew at the switch", "trajectory", "actor_lr",
            "_hp.offline_iterations - _step",
            "_hp.offline_iterations - _step % _hp.offline_iterations",
            variant="other"),
        Mistake("finetune/spot", "moments kept at the switch", "update", "SPOT.go_online",
            "self.replace(**_fresh)",
            "self"),
        Mistake("dt", "cosine decay for the warm-up", "update", "learning_rate",
            "_hp.learning_rate * jnp.minimum((_updates + 1.0) / _hp.warmup_steps, 1.0)",
            "_hp.learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(_updates / _hp.warmup_steps, "
            "1.0)))",
            variant="no dropout"),
        Mistake("model_based/mopo", "cosine per update", "update", "actor_lr",
            "_updates // _hp.num_updates_on_epoch * _hp.num_updates_on_epoch",
            "_updates",
            variant="other"),
        Mistake("any_percent_bc", "moments not kept", "update", "gradient_step",
            "_change, _moments = ADAM.update(_gradient, _old)",
            "_change, _moments = ADAM.update(_gradient, ADAM.init(_gradient))"),
        Mistake("dt", "each leaf clipped alone", "update", "clip_norm",
            "_factor = jnp.minimum(_largest / (optax.tree.norm(_gradient) + 1e-06), 1.0)\n"
            "return jax.tree.map(_scale, _gradient)",
            "return jax.tree.map(lambda leaf: leaf * jnp.minimum(_largest / (optax.tree.norm(leaf) + "
            "1e-06), 1.0), _gradient)"),
    ],
    "A layer of the other framework's defaults": [
        Mistake("dt", "tanh GELU", "forward", "gelu",
            "0.5 * _inputs * (1.0 + erf(_inputs * 2 ** (-0.5)))",
            "nn.gelu(_inputs)"),
        Mistake("dt", "LayerNorm's epsilon", "forward", "",
            "partial(nn.LayerNorm, epsilon=1e-05, use_fast_variance=False, param_dtype=float)",
            "partial(nn.LayerNorm, epsilon=1e-06, use_fast_variance=False, param_dtype=float)"),
        Mistake("rebrac", "LayerNorm's epsilon", "forward", "mlp",
            "nn.LayerNorm(epsilon=1e-06, param_dtype=float)",
            "nn.LayerNorm(epsilon=1e-05, param_dtype=float)"),
        Mistake("fql", "the exact GELU, PyTorch's default", "forward", "mlp",
            "nn.gelu",
            "partial(nn.gelu, approximate=False)"),
        Mistake("discrete/iql", "PyTorch's weights", "start", "linear",
            "Linear(_output_dim, kernel_init=xavier_uniform(gain=1.0), bias_init=zeros)",
            "Linear(_output_dim, bias_init=zeros)"),
        Mistake("xql", "log-std bounded by -20", "forward", "Actor.__call__",
            "-5.0",
            "-20.0"),
    ],}
# fmt: on

MISTAKES = [mistake for mistakes in KINDS.values() for mistake in mistakes]


def mistakes_of(name: str) -> list[Mistake]:
    """The mistakes of a pair."""
    return [mistake for mistake in MISTAKES if mistake.pair == name]
