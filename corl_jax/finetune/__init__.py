"""Algorithms that learn from a dataset first, and then in the environment."""
