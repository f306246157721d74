"""The families of algorithms, in the order in which somebody who must choose meets them.

The offline ones follow the survey of Levine et al., 2020, https://arxiv.org/abs/2005.01643. Imitation has two families
here.
"""

from enum import Enum


class Family(Enum):
    """What algorithms have in common; each value is a title and the case to choose the family in."""

    IMITATION = "Imitation", "Most of the data comes from a good policy, or its good episodes can be picked."
    WEIGHTED = "Weighted imitation", "The data is mixed. Only its own actions are ever learnt, the better ones more."
    CONSTRAINT = "Policy constraint", "The data is mixed. The policy may leave its actions, but not far."
    REGULARISATION = "Value regularisation", "The data is mixed. Values of actions outside the data are held low."
    UNCERTAINTY = "Uncertainty", "The data covers many actions. Critics that disagree mark the unknown ones."
    FINETUNING = "Offline to online", "Data comes first, and steps in the environment can follow."
    ONLINE = "Online", "There is an environment and no data, or data is to be made."
    FINITE = "Finite actions", "An action is one of a few, as in CartPole. The state is a vector or an image."
    MODEL = "Learnt model", "Steps in the environment are to be made up from data."
    EVALUATION = "Evaluation", "A policy is to be judged from data, without an environment."

    def __init__(self, title: str, case: str) -> None:
        self.title, self.case = title, case
