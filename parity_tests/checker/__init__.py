"""What `corl-twins check` is made of: it climbs the ladder with a file of somebody else's."""
