"""The parity ladder: the checks that every pair of twins has to pass."""
