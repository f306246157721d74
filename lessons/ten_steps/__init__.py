"""TD3+BC from PyTorch to JAX in ten steps: a file a step, each the one before and a few lines more."""
