"""The same plumbing in PyTorch and in JAX, and what crosses between the two."""
