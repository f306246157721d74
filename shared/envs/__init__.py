"""What a policy is scored in: corrected physics, the registry, evaluation, scores."""
