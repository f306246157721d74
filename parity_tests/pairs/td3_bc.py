"""TD3+BC on the ladder."""

from parity_tests.families import Family
from parity_tests.pair import Facts, Loss, Pair, squared_error

PAIR = Pair(
    name="td3_bc",
    title="TD3+BC",
    family=Family.CONSTRAINT,
    use="One number to tune: it is TD3 with a pull towards the data's actions.",
    paper="Fujimoto & Gu 2021",
    url="https://arxiv.org/abs/2106.06860",
    benchmark_updates=400,
    outputs=lambda twin, batch: {
        "actor": twin.actor(batch.observations),
        "critic_1": twin.critic_1(batch.observations, batch.actions),
        "critic_2": twin.critic_2(batch.observations, batch.actions),
    },
    losses={
        "critic_loss": Loss(of=("critic_1", "critic_2")),
        "actor_loss": Loss(of=("actor",), inputs=("batch",)),
    },
    variants={
        "default": {},
        "other": {"policy_freq": 3, "discount": 0.9, "tau": 0.1, "alpha": 1.0, "policy_noise": 0.5, "noise_clip": 0.3},
    },
    update_statics=lambda config, step: {"delayed": step % config.policy_freq == 0},
    interval_statics=lambda config, start, num_updates: {"phase": start % config.policy_freq},
    facts=Facts(rewarded="critic_loss", first_delayed=2, imitation=squared_error),
)
