"""Computes JAX twins in the tests, with an interpreter in NumPy or with compiled programs that are kept for a while."""
