"""`corl-twins tune`: a search's settings, its trials on Ray, and their results."""
