"""Mechanical mutants: every small change to a twin's source, and the rung of the ladder that notices it."""
