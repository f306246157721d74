"""The parts of every run: settings, task, folder, resuming, seeds."""
