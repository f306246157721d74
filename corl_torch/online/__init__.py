"""Algorithms that learn in an environment; most can learn from a dataset instead."""
