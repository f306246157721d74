"""`corl-twins sweep`: a sweep's settings, and the processes that run it."""
