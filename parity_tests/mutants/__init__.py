"""Mutants by machine: every small change of a twin's source, and the rung of the ladder that notices it."""
