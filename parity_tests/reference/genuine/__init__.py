"""PyTorch twins beside the libraries that they stand for, which are run and never read."""
