"""The choice of the library for matrix products in a compiled program on a CPU.

jaxlib 0.10 uses YNNPACK for some products and Eigen for the others. Twins whose updates mostly consist of large
products choose Eigen for all, which is faster. `python -m benchmarks.tricks` shows by how much.
"""

from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from typing import Any

import jax

# The option of XLA with which YNNPACK gets no products
NONE_FOR_YNNPACK = {"xla_cpu_experimental_ynn_fusion_type": ""}


@cache
def eigen_alone() -> dict[str, str] | None:
    """`NONE_FOR_YNNPACK`, or None if this jaxlib lacks the option."""
    program: Any = jax.jit(lambda: 0, compiler_options=NONE_FOR_YNNPACK)
    try:
        program.lower().compile()
    except jax.errors.JaxRuntimeError:
        return None
    return NONE_FOR_YNNPACK


class EigenProgram:
    """`jax.jit`, with Eigen's matrix products on a CPU.

    XLA's options apply to whole programs. Inside another program, such as one of several seeds, this is a plain
    `jax.jit`.

    Args:
        function: The function to compile.
        how: Keyword arguments of `jax.jit`, such as `static_argnames`.
    """

    def __init__(self, function: Callable[..., Any], **how: Any) -> None:
        update_wrapper(self, function)
        self._function, self._how = function, how
        self._part = jax.jit(function, **how)

    @cached_property
    def whole(self) -> Any:
        """The compiled program, for calls that are not part of another program."""
        return jax.jit(self._function, compiler_options=eigen_alone(), **self._how)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the compiled function."""
        is_part = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        return (self._part if is_part else self.whole)(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers the whole program, like a `jax.jit`'s method of the same name."""
        return self.whole.lower(*args, **kwargs)

    def _cache_size(self) -> int:
        """The number of compiled whole programs, like a `jax.jit`'s method of the same name."""
        return int(self.whole._cache_size())
