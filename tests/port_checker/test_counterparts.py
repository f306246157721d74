"""Statements that are taken over from the other file."""

from parity_tests.mutants.syntax import Source
from port_checker.explaining.counterparts import taken_over

JAX = """
class Twin:
    def critic_loss(self, critic, batch):
        \"\"\"The loss.\"\"\"
        q = critic(batch.observations)
        target = batch.rewards + self.value(batch)
        scale = 2.0
        return scale * square(q - target).mean()

def only_here(x):
    return x
"""
TORCH = """
class Twin:
    def critic_loss(self, batch):
        \"\"\"Another text.\"\"\"
        critic = self.critic
        q = critic(batch.observations)
        target = (
            batch.rewards + torch.exp(clamp(self.value(batch).detach(), max=1.0))
        )
        return square(q - target).mean()
"""


def test_statements_that_differ_are_taken_over_in_jaxs_words() -> None:
    """Layout and docstrings don't count, functions of one file are left alone, and runs are taken as a whole."""
    found = list(taken_over(Source(JAX), Source(TORCH)))
    assert [(change.function, change.line, change.new) for change in found] == [
        (
            "Twin.critic_loss",
            6,
            "target = (\n"
            "            batch.rewards + jnp.exp(jnp.clip(jax.lax.stop_gradient(self.value(batch)), max=1.0))\n"
            "        )\n"
            "        return square(q - target).mean()",
        )
    ]
    (change,) = found
    assert change.old.startswith("target")
    assert change.old.endswith("mean()")
    assert "scale" not in change.applied(JAX)


def test_equally_many_statements_are_also_taken_one_by_one() -> None:
    theirs = TORCH.replace("return square", "scale = 3.0\n        return scale * square")
    found = [change.new for change in taken_over(Source(JAX), Source(theirs))]
    assert "scale = 3.0" in found
    assert sum("scale" in new and "target" in new for new in found) == 1


def test_a_networks_function_has_another_name_in_flax() -> None:
    ours = "class Critic:\n    def __call__(self, x):\n        return self.net(x)\n"
    theirs = ours.replace("__call__", "forward").replace("self.net(x)", "tanh(self.net(x))")
    assert [change.new for change in taken_over(Source(ours), Source(theirs))] == ["return tanh(self.net(x))"]
