"""The JAX twins: the same algorithms, fast."""
