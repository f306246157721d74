"""What every run has: settings, task, folder, resuming, seeds."""
