"""Whose matrix products a compiled program uses on a CPU.

jaxlib 0.10 hands some products to the library YNNPACK and the rest to Eigen. Twins whose updates are mostly large
products ask for Eigen's alone, since they are faster. `python -m benchmarks.tricks` shows by how much.
"""

from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from typing import Any

import jax

# The option of XLA by which no product goes to YNNPACK
NONE_FOR_YNNPACK = {"xla_cpu_experimental_ynn_fusion_type": ""}


@cache
def eigen_alone() -> dict[str, str] | None:
    """`NONE_FOR_YNNPACK`; None for a jaxlib that has no such option."""
    program: Any = jax.jit(lambda: 0, compiler_options=NONE_FOR_YNNPACK)
    try:
        program.lower().compile()
    except jax.errors.JaxRuntimeError:
        return None
    return NONE_FOR_YNNPACK


class EigenProgram:
    """`jax.jit`, with Eigen's matrix products on a CPU.

    XLA's options belong to a program as a whole. As a part of another program, such as that of several seeds, this is
    `jax.jit` and no more.

    Args:
        function: What is compiled.
        how: `static_argnames` and the like, for `jax.jit`.
    """

    def __init__(self, function: Callable[..., Any], **how: Any) -> None:
        update_wrapper(self, function)
        self._function, self._how = function, how
        self._part = jax.jit(function, **how)

    @cached_property
    def whole(self) -> Any:
        """The compiled program, where it is no part of another."""
        return jax.jit(self._function, compiler_options=eigen_alone(), **self._how)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the compiled function."""
        is_part = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        return (self._part if is_part else self.whole)(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As the same method of a `jax.jit`: the whole program, lowered."""
        return self.whole.lower(*args, **kwargs)

    def _cache_size(self) -> int:
        """As the same method of a `jax.jit`: how many programs were compiled, parts of others left out."""
        return int(self.whole._cache_size())
