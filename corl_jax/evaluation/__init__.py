"""Evaluates a policy on a dataset, without its environment."""
