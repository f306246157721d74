"""The names of settings: one name for each idea in every file here, and the names that references use.

People paste the files and commands of CORL, d3rlpy, OfflineRL-Kit and algorithms' authors, and resume runs from before
a renaming. Therefore each of these names is understood wherever a setting is read: on the command line, in YAML, sweeps
and searches, in a run's folder and in a checkpoint. A run itself writes our name.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from shared.errors import InputError

_BUT_FOR_A_LETTER = 0.85  # similarity as difflib measures it


class Idea(NamedTuple):
    """A setting that has several names.

    Attributes:
        name: Our name.
        meaning: Its meaning, with the unit.
        others: Names in references or in earlier versions, for every algorithm.
        only: Further names in one algorithm's references, by algorithm; these take precedence.
    """

    name: str
    meaning: str
    others: tuple[str, ...] = ()
    only: Mapping[str, tuple[str, ...]] = {}


_WEIGHTED = ("awr", "crr")
_WITH_VAE = ("bcq", "bear", "plas", "finetune/spot")
_WITH_GOALS = tuple(f"goal_conditioned/{name}" for name in ("crl", "gcivl", "gciql", "hiql", "qrl"))
_WITH_MODEL = ("model_based/combo", "model_based/mobile", "model_based/mopo")

IDEAS = (
    # The run
    Idea("env", "dataset, or environment", ("env_name", "env_id", "environment", "dataset", "dataset_name", "task")),
    Idea("seed", "of weights, batches and noise", ("train_seed",)),
    Idea("eval_seed", "of an evaluation's start states", ("test_seed",)),
    Idea("n_episodes", "episodes in an evaluation", ("eval_episodes", "n_trials", "n_test_episodes")),
    Idea(
        "eval_freq",
        "updates between two evaluations",
        ("eval_frequency", "eval_interval"),
        {"dt": ("eval_every",), "finetune/rebrac": ("eval_every",)},
    ),
    Idea(
        "max_timesteps",
        "updates in all",
        ("num_train_ops", "update_steps", "max_steps"),
        dict.fromkeys(("acfql", "fql", "ifql"), ("offline_steps",))
        | {"model_based/dynamics": ("max_epochs",)}
        | dict.fromkeys((*_WITH_GOALS, "goal_conditioned/gcbc"), ("train_steps",)),
    ),
    Idea(
        "offline_iterations",
        "updates on the dataset alone",
        ("num_offline_updates",),
        dict.fromkeys(("finetune/acfql", "finetune/fql", "finetune/ifql"), ("offline_steps",))
        | {"finetune/rlpd": ("pretrain_steps",)},
    ),
    Idea(
        "online_iterations",
        "steps of the environment after those",
        ("num_online_updates", "online_steps"),
        {"finetune/rlpd": ("max_steps",)},
    ),
    Idea("num_updates_on_epoch", "updates in an epoch", ("step_per_epoch", "num_steps_per_epoch")),
    Idea(
        "sparse_rewards",
        "whether rewards only say if a task is done",
        (),
        dict.fromkeys(("acfql", "finetune/acfql"), ("sparse",)),
    ),
    Idea("buffer_size", "transitions at most", ("replay_buffer_size",)),
    Idea("normalize", "whether states are normalised", ("normalize_states",)),
    Idea("minibatch_size", "transitions in a slice of a batch", ("batch_size_per_update",)),
    # Every update
    Idea("discount", "factor of a step on rewards, from 0 to 1", ("gamma",)),
    Idea("tau", "share by which targets move at a time, from 0 to 1", ("soft_target_update_rate", "soft_target_tau")),
    Idea("target_update_period", "updates between two moves of the targets", ("target_update_interval",)),
    Idea(
        "policy_freq",
        "updates of the critics for each of the policy",
        ("update_actor_interval", "policy_delay", "policy_frequency"),
    ),
    Idea("actor_updates", "gradient steps of the policy in an update", ("n_actor_updates",)),
    Idea("critic_updates", "gradient steps of the critics in an update", ("utd_ratio",)),
    Idea("value_updates", "gradient steps of V in an update", ("vf_updates", "num_v_updates", "n_critic_updates")),
    # Learning rates, per gradient step
    Idea(
        "learning_rate",
        "of all networks, where they share one",
        ("lr", "dynamics_lr"),
        {"evaluation/fqe": ("critic_lr",)},
    ),
    Idea(
        "actor_lr",
        "learning rate of the policy",
        ("policy_lr", "actor_learning_rate"),
        {"diffusion_ql": ("lr",)},
    ),
    Idea("critic_lr", "learning rate of the critics", ("qf_lr", "critic_learning_rate")),
    Idea("value_lr", "learning rate of V", ("vf_lr",), {"awr": ("critic_learning_rate",)}),
    Idea("vae_lr", "learning rate of the VAE", ("imitator_learning_rate",)),
    Idea(
        "temperature_lr",
        "learning rate of the entropy's temperature",
        ("temp_lr", "temp_learning_rate", "alpha_learning_rate"),
        dict.fromkeys(_WITH_MODEL, ("alpha_lr",)),
    ),
    Idea(
        "alpha_lr", "learning rate of the MMD's weight", (), dict.fromkeys(("bear", "uwac"), ("alpha_learning_rate",))
    ),
    Idea("alpha_prime_lr", "learning rate of the Lagrange multiplier", ("cql_alpha_lr",)),
    Idea("clip_grad", "largest norm of a gradient, which is clipped to it", (), {"diffusion_ql": ("gn",)}),
    # The policy's moving average, and its diffusion
    Idea("ema_period", "updates between two moves of the average", ("update_ema_every",)),
    Idea("ema_start", "updates before its first move", ("step_start_ema",)),
    Idea("diffusion_steps", "steps from noise to an action", ("n_timesteps",), {"diffusion_ql": ("T",)}),
    # Networks
    Idea("n_critics", "critics", ("num_critics", "num_qs", "num_q_ensemble")),
    Idea("n_target_critics", "critics whose smallest value makes the target", ("num_min_qs",)),
    Idea("hidden_dims", "widths of the hidden layers, where networks share them", ("dynamics_hidden_dims",)),
    Idea("actor_hidden_dims", "widths of the policy's hidden layers", ("actor_hidden",)),
    Idea(
        "critic_hidden_dims",
        "widths of the critics' hidden layers",
        ("critic_hidden",),
        dict.fromkeys(
            ("acfql", "finetune/acfql", "fql", "finetune/fql", "ifql", "finetune/ifql"), ("value_hidden_dims",)
        ),
    ),
    Idea("value_hidden_dims", "widths of V's hidden layers", ("vf_hidden_dims",)),
    Idea("value_ln", "whether values have LayerNorm", (), dict.fromkeys(_WITH_GOALS, ("layer_norm",))),
    Idea("vae_hidden_dims", "widths of the VAE's hidden layers", ("imitator_hidden",)),
    Idea("critic_n_hiddens", "hidden layers of a critic", ("q_n_hidden_layers",)),
    Idea("actor_ln", "whether the policy has LayerNorm", ("actor_layer_norm",)),
    Idea("critic_ln", "whether the critics have LayerNorm", ("layer_norm", "critic_layernorm", "critic_layer_norm")),
    Idea("actor_dropout", "share of the policy's units that dropout zeroes", ("dropout_rate",)),
    Idea("spectral_norm", "whether the critics' weights are divided by their largest singular value", ("SN",)),
    # Noise
    Idea("policy_noise", "deviation of the target action's noise", ("target_smoothing_sigma",)),
    Idea("noise_clip", "bound of that noise", ("target_smoothing_clip",)),
    Idea("expl_noise_clip", "bound of the noise that explores", (), {"finetune/iql": ("noise_clip",)}),
    Idea("expl_noise", "deviation of the noise that explores", ("exploration_noise",)),
    Idea("epsilon_start", "share of random actions at the beginning", ("start_epsilon",)),
    Idea("epsilon_end", "share of random actions at the end", ("end_epsilon",)),
    Idea("epsilon_steps", "steps in which that share falls", ("duration",)),
    Idea(
        "learning_starts",
        "steps of the environment before learning begins",
        ("update_start_step",),
        dict.fromkeys(("finetune/balanced_replay", "finetune/rebrac"), ("num_warmup_steps",))
        | dict.fromkeys(("finetune/acfql", "finetune/rlpd"), ("start_training",)),
    ),
    # Shares of a batch
    Idea("offline_share", "share of the dataset's rows in an online batch", (), {"finetune/cal_ql": ("mixing_ratio",)}),
    Idea("online_share", "share of the environment's rows in one", (), {"finetune/rebrac": ("mixing_ratio",)}),
    # Entropy
    Idea("tune_temperature", "whether the temperature is learnt", ("use_automatic_entropy_tuning", "auto_alpha")),
    Idea("initial_temperature", "the temperature at the start", ("init_temperature",)),
    Idea("fixed_temperature", "the temperature where it is not learnt", (), dict.fromkeys(_WITH_MODEL, ("alpha",))),
    # Weights of the policy's and of the critics' losses
    Idea(
        "advantage_temperature",
        "what an advantage is divided by in the exponential that weighs an action",
        ("awac_lambda",),
        dict.fromkeys(_WEIGHTED, ("beta",)),
    ),
    Idea(
        "inverse_temperature",
        "what an advantage is multiplied by there, in IQL and its kin",
        ("weight_temp",),
        dict.fromkeys(("iql", "finetune/iql", "xql", "discrete/iql"), ("beta", "temperature"))
        | {"goal_conditioned/gcivl": ("alpha",)},
    ),
    Idea(
        "low_inverse_temperature",
        "the same for the low policy's actions",
        (),
        {"goal_conditioned/hiql": ("low_alpha",)},
    ),
    Idea(
        "high_inverse_temperature",
        "the same for the high policy's subgoals",
        (),
        {"goal_conditioned/hiql": ("high_alpha",)},
    ),
    Idea("td_lambda", "how far TD(lambda) looks ahead, from 0 to 1", (), {"awr": ("lam",)}),
    Idea(
        "distill_coef",
        "weight of the distance to the flow's action",
        (),
        dict.fromkeys(("acfql", "finetune/acfql", "fql", "finetune/fql"), ("alpha",)),
    ),
    Idea("state_weight", "weight of states beside actions, where the nearest row is searched", (), {"prdc": ("beta",)}),
    # Imitation
    Idea(
        "imitation_steps",
        "first updates, in which the policy learns by the MMD alone",
        (),
        dict.fromkeys(("bear", "uwac"), ("warmup_steps",)),
    ),
    Idea(
        "logit_penalty",
        "weight of the penalty on the outputs of whoever imitates",
        (),
        dict.fromkeys(("discrete/bc", "discrete/bcq"), ("beta",)),
    ),
    Idea(
        "likelihood_threshold",
        "least likelihood of an action that may be chosen, as a share of the likeliest's",
        ("BCQ_threshold",),
        {"discrete/bcq": ("action_flexibility",)},
    ),
    Idea("iql_tau", "expectile that V regresses to, from 0 to 1", ("expectile",)),
    Idea("loss_temp", "temperature of the Gumbel loss", (), {"xql": ("temp",)}),
    Idea("random_actions", "uniform actions in each state that V learns from", ("sample_random_times",)),
    Idea("normalize_q", "whether the Q term is scaled by its own size", ("normalize_q_loss",)),
    Idea(
        "n_action_samples",
        "actions sampled in a state to choose from",
        (),
        dict.fromkeys(("ifql", "finetune/ifql", "uwac"), ("num_samples",))
        | dict.fromkeys(("acfql", "finetune/acfql"), ("actor_num_samples",)),
    ),
    # The VAE and the MMD
    Idea(
        "kl_weight",
        "weight of the VAE's divergence from its prior",
        ("vae_kl_weight",),
        dict.fromkeys(_WITH_VAE, ("beta",)),
    ),
    Idea(
        "vae_iterations", "updates of the VAE alone, before all others", ("rl_start_step",), {"plas": ("warmup_steps",)}
    ),
    Idea("alpha_threshold", "MMD that the policy is allowed", ("target_mmd_thresh",)),
    Idea("mmd_kernel", "kernel of the MMD", ("kernel_type",)),
    Idea("n_mmd_action_samples", "actions sampled in a state on either side of the MMD", ("num_samples_mmd_match",)),
    # The variance in UWAC's weights
    Idea("variance_scale", "factor of the variance in the weight, or what is divided by it", (), {"uwac": ("beta",)}),
    Idea("exp_weight", "whether the weight is an exponential of the variance", ("use_exp_weight",)),
    Idea("exp_penalty", "whether the penalty grows with that exponential", ("use_exp_penalty",)),
    Idea("weigh_actor", "whether the policy's loss is weighed, too", ("var_Pi",)),
    # The conservative term
    Idea("cql_alpha", "weight of the conservative term", ("cql_weight",), {"discrete/cql": ("alpha",)}),
    Idea("cql_temp", "temperature of its soft maximum", (), {"model_based/combo": ("temperature",)}),
    Idea("cql_n_actions", "actions sampled in a state for each of its parts", ("num_repeat_actions",)),
    Idea("cql_max_target_backup", "whether targets take the best of sampled actions", ("max_q_backup",)),
    Idea("cql_lagrange", "whether that weight is tuned", ("with_lagrange",)),
    Idea("cql_target_action_gap", "gap that it is tuned towards", ("lagrange_threshold",)),
    # Model-based
    Idea(
        "n_state_samples",
        "next states drawn from each of the model's members",
        (),
        {"model_based/mobile": ("num_samples",)},
    ),
    Idea("dynamics", "run that has learnt the model", ("load_dynamics_path",)),
)
"""All settings that have several names."""


def other_names(settings: Collection[str], algorithm: str) -> dict[str, str]:
    """Maps other names of an algorithm's settings to our names.

    A name that is itself a setting of the algorithm only means that setting.

    Args:
        settings: The names of the algorithm's settings.
        algorithm: Name of the algorithm, such as `finetune/iql`.
    """
    ideas = [idea for idea in IDEAS if idea.name in settings]
    anywhere = {other: idea.name for idea in ideas for other in idea.others}
    here = {other: idea.name for idea in ideas for other in idea.only.get(algorithm, ())}
    return {other: name for other, name in (anywhere | here).items() if other not in settings}


def suggestion(name: str, settings: Collection[str], others: Mapping[str, str]) -> list[str]:
    """Suggests up to three settings, by our names, that a user may have meant by an unknown name.

    A name that differs by about a letter is the only suggestion. Otherwise names that contain all of its words are
    suggested, such as `actor_lr` and `critic_lr` for `lr`, and otherwise names with a similar spelling.

    Args:
        name: The unknown name.
        settings: The names of all settings.
        others: Other names, as `other_names` returns them.
    """
    houses = {setting: setting for setting in settings} | dict(others)
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    found = (
        difflib.get_close_matches(name.strip("-"), houses, n=1, cutoff=_BUT_FOR_A_LETTER)
        or [known for known in houses if words and words <= set(known.lower().split("_"))]
        or difflib.get_close_matches(name, houses, n=3)
    )
    return list(dict.fromkeys(houses[known] for known in found))[:3]


def in_house(given: Mapping[str, Any], settings: Collection[str], algorithm: str) -> dict[str, Any]:
    """Renames settings to our names; names of unknown settings stay unchanged.

    Raises:
        InputError: A setting has a value under two names.
    """
    others = other_names(settings, algorithm)
    check_once(given, others)
    return {others.get(name, name): value for name, value in given.items()}


def check_once(given: Iterable[str], others: Mapping[str, str], where: str = "") -> None:
    """Checks that each setting is given under one name only.

    Args:
        given: The names.
        others: Other names, as `other_names` returns them.
        where: The prefix of error messages.

    Raises:
        InputError: A setting is given under two names.
    """
    names: dict[str, str] = {}
    for name in given:
        house = others.get(name, name)
        if house in names:
            raise InputError(f"{where}{names[house]} and {name} are the same setting: give one of them")
        names[house] = name
