"""What `python -m parity_tests.check` is made of: it climbs the ladder with a file of somebody else's."""
