"""The parity ladder: compares twins with the same weights, rung by rung."""
