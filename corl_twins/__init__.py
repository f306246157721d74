"""The package that `pip install` puts in place: the command `corl-twins`, and the house of this repository below it."""
