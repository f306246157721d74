"""What a user types besides training."""
