"""The parts of a report on many runs."""
