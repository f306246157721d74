"""PyTorch twins compared with the original libraries, which are run and never read."""
