"""The one exception that a user's input raises."""


class InputError(ValueError):
    """What the user gave cannot be used. The message is one line that names the fix; commands print it and exit 2."""

    def __init__(self, message: str) -> None:
        # What it quotes may hold line breaks: the name of a file, a library's complaint.
        super().__init__(" ".join(message.splitlines()))
