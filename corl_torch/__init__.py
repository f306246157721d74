"""The PyTorch twins: CORL, to the last draw."""
