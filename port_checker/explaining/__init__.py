"""What explains a mistake: looks for the change of the reference that gives the port's numbers."""
