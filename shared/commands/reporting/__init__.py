"""What a report of many runs is made of."""
