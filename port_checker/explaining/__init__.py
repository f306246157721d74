"""Explains a mistake by searching for the change to the reference that gives the port's numbers."""
