"""What the ladder keeps in memory."""

from corl_jax.td3_bc import TD3_BC
from parity_tests import ladder
from parity_tests.scene import forget_results


def test_results_are_forgotten() -> None:
    """Every cache of the ladder is empty, since what it holds keeps compiled programs alive."""
    ladder.value_and_gradient(TD3_BC, "critic_loss")
    assert ladder.value_and_gradient.cache_info().currsize > 0
    forget_results()
    assert ladder.value_and_gradient.cache_info().currsize == 0
