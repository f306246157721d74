"""Algorithms that learn from data to choose one of finitely many actions."""
