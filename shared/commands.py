"""What commands share: a bad command line is bad input like any other."""

import argparse
from typing import NoReturn

from shared.errors import InputError


class Parser(argparse.ArgumentParser):
    """Reports a bad command line as an InputError."""

    def error(self, message: str) -> NoReturn:
        """Raises what argparse would print before it exits."""
        raise InputError(f"{message}; --help explains")
