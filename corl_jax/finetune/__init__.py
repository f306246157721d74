"""Algorithms that learn in the environment alone."""
