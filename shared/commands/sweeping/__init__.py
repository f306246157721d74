"""`corl-twins sweep`: what a sweep asks for, and the processes that make it."""
