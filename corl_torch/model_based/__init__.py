"""Algorithms with a learnt model of the environment."""
