"""The exceptions that commands report in one line, with a specific exit status."""

import signal


class InputError(ValueError):
    """The user's input cannot be used. The message is one line that names the fix; commands print it and exit 2."""

    def __init__(self, message: str) -> None:
        # It may quote text with line breaks, such as a file's name or a library's message.
        super().__init__(" ".join(message.splitlines()))


class RunError(RuntimeError):
    """A run that began well cannot continue or end well. One line says why and what is saved; commands exit with 1."""


class Stopped(KeyboardInterrupt):
    """A run has stopped because the user asked it to. One line says what is saved; commands exit with `exit_status`.

    Attributes:
        exit_status: 128 plus the signal's number, as in shells: 130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(self, saved: str, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {saved}")
        self.exit_status = 128 + number


def reason(error: Exception) -> str:
    """The error message of a library or the system, on one line of at most 200 characters."""
    words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(words.split())[:200]
