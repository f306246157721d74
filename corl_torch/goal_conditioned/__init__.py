"""Algorithms that learn to reach any state of their data, in PyTorch."""
