"""What both sides use: data, environments, evaluation, configs and runs."""
