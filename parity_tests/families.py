"""The families of algorithms, in the order in which readers who have to choose one meet them.

The offline families follow the survey of Levine et al., 2020, https://arxiv.org/abs/2005.01643, except that imitation
is
split into two families here.
"""

from enum import Enum


class Family(Enum):
    """A group of similar algorithms; each value is a title and the situation in which to choose the family."""

    IMITATION = "Imitation", "Most of the data comes from a good policy, or you can pick its good episodes."
    WEIGHTED = "Weighted imitation", "The data is mixed. The policy imitates its actions, the better ones more."
    CONSTRAINT = "Policy constraint", "The data is mixed. The policy can leave the data's actions, but not by far."
    REGULARISATION = "Value regularisation", "The data is mixed. Values of actions outside the data are kept low."
    UNCERTAINTY = "Uncertainty", "The data covers many actions. If the critics disagree about an action, it is unknown."
    GOALS = "Goal-conditioned", "The data has no rewards, and you want to reach any of its states."
    FINETUNING = "Offline to online", "You train on data first, and can then continue in the environment."
    ONLINE = "Online", "You have an environment but no data, or you want to make data."
    FINITE = "Finite actions", "There are only a few actions, as in CartPole. The state is a vector or an image."
    MODEL = "Learned model", "You want to generate steps in the environment from data."
    EVALUATION = "Evaluation", "You want to evaluate a policy from data, without an environment."

    def __init__(self, title: str, case: str) -> None:
        self.title, self.case = title, case
