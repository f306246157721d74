"""The code that both frameworks share: data, environments, evaluation, configs and runs."""
