"""What judges a policy by a dataset, without its environment."""
