"""Extraction of an algorithm's training data from a dataset's rows."""

from enum import Enum, auto
from typing import Any, NamedTuple

from shared import names
from shared.data import sources
from shared.data.chunks import extract_in_order
from shared.data.dynamics import extract_known
from shared.data.held_out import Raw
from shared.data.nsteps import extract_n_steps
from shared.data.returns import extract_ended, extract_episodes, extract_returns
from shared.data.transitions import extract_sarsa, extract_transitions
from shared.runs.opening import Opened, own_env


class Extract(Enum):
    """A kind of training data."""

    TRANSITIONS = auto()  # `Batch`, over `n_steps` steps if the config has them
    SARSA = auto()  # with the data's next actions
    RETURNS = auto()  # with next actions and discounted returns
    EPISODES = auto()  # with the ends of episodes that the file states
    ENDED = auto()  # with the ends of trajectories by Cal-QL's rule
    IN_ORDER = auto()  # with the ends of episodes, for chunks of successive rows
    KNOWN = auto()  # only transitions with a known next state, for a dynamics model
    TRAJECTORIES = auto()  # whole trajectories, for sequence models
    GOALS = auto()  # with the ends of trajectories in place of rewards, for goal-conditioned algorithms


class Steps(NamedTuple):
    """The number of steps whose rewards a transition sums, and their discount per step."""

    number: int
    discount: float


def extract(opened: Opened, raw: Raw, kind: Extract, steps: Steps) -> Any:
    """Extracts transitions from the rows of a dataset, or of some of its episodes.

    Raises:
        InputError: There are no transitions, or the end of an episode is unknown.
    """
    limit = opened.limit
    match kind:
        case Extract.SARSA:
            return extract_sarsa(raw, limit)
        case Extract.RETURNS:
            return extract_returns(raw, limit, steps.discount)
        case Extract.ENDED if names.has_published_results(opened.name):
            return extract_ended(raw, limit)
        case Extract.ENDED | Extract.EPISODES:  # Cal-QL's rule relies on what the file says
            return extract_episodes(raw, limit)
        case Extract.IN_ORDER:
            return extract_in_order(raw, limit)
        case Extract.KNOWN:
            following = sources.next_observations(opened.name, opened.read)
            if following is not None and "rows" in raw:  # the other rows are held out
                following = following[raw["rows"]]
            return extract_known(raw, own_env(opened.name, opened.read.attributes), limit, following)
    if steps.number > 1:
        return extract_n_steps(
            raw, limit, n_steps=steps.number, discount=steps.discount, frame_stack=opened.frame_stack
        )
    return extract_transitions(raw, limit, frame_stack=opened.frame_stack)
