"""The one exception that a user's input raises."""


class InputError(ValueError):
    """What the user gave cannot be used. The message is one line that names the fix; commands print it and exit 2."""
