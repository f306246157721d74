"""The ladder's caches in memory."""

from corl_jax.td3_bc import TD3_BC
from parity_tests.engine.caches import forget
from parity_tests.ladder import rungs as ladder


def test_results_are_forgotten() -> None:
    """Every cache of the ladder is emptied, because cached results keep compiled programs alive."""
    ladder.value_and_gradient(TD3_BC, "critic_loss")
    assert ladder.value_and_gradient.cache_info().currsize > 0
    forget()
    assert ladder.value_and_gradient.cache_info().currsize == 0
