"""Changes to when something happens: numbers off by one, and statements in another order."""

from parity_tests.mutants.syntax import Source
from port_checker.explaining.timing import off_by_one, reordered

COUNTING = """
def schedule(hp, step):
    return hp.rate * cos(math.pi * (step - 1) / hp.horizon)

class Twin:
    def loss(self, q):
        return q / abs(q).mean()

    def flow(self, x):
        for step in range(self.steps):
            x = x + step / self.steps
        return x

def train_interval(state, phase):
    def block(state, place):
        return state.update((phase + place + 1) % state.period == 0, (phase + place) % 2)
    return block(state, len(state) % 2)

def train(config):
    return config.start % 2
"""

UPDATE = """
class Twin:
    def update(self, batch, delayed):
        state, hp = self, self.hp
        loss, gradient = grad(state.critic_loss)(state.critic, batch)
        state = step(state, "critic", gradient)
        metrics = {"loss": loss}
        if delayed:
            state = step(state, "actor", gradient)
            state = state.replace(critic_target=soft(state.critic))
        return state, metrics

    def loss(self, q):
        q = q + 1
        q = 2 * q
        return q
"""


def test_numbers_that_are_divided_are_one_less_and_one_more() -> None:
    """A schedule's step, a loop's index and what is in front of `%`; no values of a loss, and nothing of a run."""
    found = {(change.function, change.old, change.new) for change in off_by_one(Source(COUNTING))}
    assert found == {
        ("schedule", "step - 1", "step - 2"),
        ("schedule", "step - 1", "step"),
        ("flow", "step", "(step - 1)"),
        ("flow", "step", "(step + 1)"),
        ("train_interval", "phase + place + 1", "phase + place"),
        ("train_interval", "phase + place + 1", "phase + place + 2"),
        ("train_interval", "phase + place", "phase + place - 1"),
        ("train_interval", "phase + place", "phase + place + 1"),
        ("train_interval", "state", "(state - 1)"),
        ("train_interval", "state", "(state + 1)"),
    }


def test_statements_of_an_update_are_exchanged_where_it_can_matter() -> None:
    """Not where nothing is read that the other one writes, and no name is read before it has a value."""
    found = [change.applied(UPDATE) for change in reordered(Source(UPDATE), "critic_target")]
    actor = '            state = step(state, "actor", gradient)\n'
    target = "            state = state.replace(critic_target=soft(state.critic))\n"
    assert UPDATE.replace(actor + target, target + actor) in found
    gradient = "        loss, gradient = grad(state.critic_loss)(state.critic, batch)\n"
    critic, metrics = '        state = step(state, "critic", gradient)\n', '        metrics = {"loss": loss}\n'
    assert UPDATE.replace(critic + metrics, metrics + critic) not in found, "neither reads what the other one writes"
    assert UPDATE.replace(gradient + critic, critic + gradient) not in found, "the gradient has no value yet"
    end = UPDATE[UPDATE.index("        return state") :]
    assert all(changed.endswith(end) for changed in found), "the last statement stays, and so do other functions"
