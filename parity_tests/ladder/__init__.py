"""The ladder: both twins at the same weights, and how far they are apart on each rung."""
