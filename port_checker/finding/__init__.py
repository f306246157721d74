"""Finds a mistake: reads a port, asks it questions, and compares its answers with the reference's."""
