"""Makes datasets by D4RL's recipes: trains an online agent, records its policies, writes D4RL's or Minari's layout."""
