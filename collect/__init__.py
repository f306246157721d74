"""Makes the bundled datasets again: trains an agent, records its policies, writes D4RL's file layout."""
