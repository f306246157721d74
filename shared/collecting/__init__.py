"""Makes datasets by D4RL's recipes: trains an online agent, records its policies, writes D4RL's or Minari's layout."""

ROBOTS = ("halfcheetah", "hopper", "walker2d", "ant")
"""What D4RL's locomotion datasets are of; each is an environment `d4rl/<robot>-v2`."""

RECIPES = {
    "random": "a freshly initialised policy",
    "medium": "a policy with about a third of the expert's return",
    "medium-replay": "all that the agent saw until it was that policy",
    "medium-expert": "the medium policy, then the expert",
    "expert": "the best policy",
    "full-replay": "all that the agent saw",
}
"""What each kind of dataset is made of, in D4RL's words for the kinds."""

NAMES = tuple(f"{robot}-{kind}" for robot in ROBOTS for kind in RECIPES)
"""What `python -m shared.collect` can make: datasets like D4RL's of these names."""
