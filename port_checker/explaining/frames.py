"""Locates an operation of a traced function in its source file; only this module reads JAX's internals."""

from collections.abc import Sequence
from typing import Any

import jax


class NotExplainedError(RuntimeError):
    """A mistake is found, but this version of JAX does not record where its operations come from."""


def frames_of(equation: Any) -> Sequence[Any]:
    """The calls in the user's source that led to an equation of a jaxpr, innermost first.

    Each has `file_name`, `function_name`, and the first and last line and column of its expression.

    Raises:
        NotExplainedError: This version of JAX stores them elsewhere.
    """
    try:
        from jax._src.source_info_util import user_frames

        return list(user_frames(equation.source_info.traceback))
    except (ImportError, AttributeError, TypeError) as error:
        raise NotExplainedError(
            f"install the JAX of constraints.txt, since {jax.__version__} keeps the lines of its operations elsewhere"
        ) from error
