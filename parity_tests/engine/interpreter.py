"""JAX functions computed by NumPy: traced as XLA would get them, then evaluated operation by operation.

XLA takes seconds to compile what the ladder runs only a few times. A trace takes a tenth of that, and NumPy needs no
preparation. The program is the same: `jax.jit` traces the function, and its operations are computed one by one. NumPy
computes the operations with rules below, including random bits (`threefry.py`). JAX computes the others.

The rung `shipped path` compares XLA's compiled programs with the results of this module.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Var
from scipy import special

from parity_tests.engine import threefry

Rule = Callable[..., Any]
# Called for each operation while `watched`, with the enclosing calls, outermost first, its inputs and its outputs
Watcher = Callable[[Sequence[Any], tuple, list], None]
_watchers: list[Watcher] = []
_calls: list[Any] = []


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Programs that are traced in this context call the watcher for each operation that they compute."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def interpreted(function: Callable) -> Callable:
    """The function, traced once for each structure of its arguments and computed by NumPy, from and to JAX arrays."""
    programs: dict[Any, tuple[Callable[..., list], Sequence[Any], Any]] = {}

    def call(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        key = structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves), jax.enable_x64.value
        if key not in programs:
            traced = jax.jit(function).trace(*args)
            programs[key] = _program(traced.jaxpr), traced.jaxpr.out_avals, jax.tree.structure(traced.out_info)
        run, kinds, outputs = programs[key]
        return jax.tree.unflatten(outputs, list(map(_to_jax, run(*leaves), kinds)))

    return call


def interpreted_jit(function: Callable) -> Callable:
    """The same for a function that `jax.jit` compiles; arguments annotated as int or bool are static."""
    parameters = list(inspect.signature(function).parameters.values())
    static = {parameter.name for parameter in parameters if parameter.annotation in (int, bool)}
    programs: dict[Any, Callable] = {}

    def call(*args: Any, **named: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, named))):
            return function(*args, **named)  # a part of a program that is being traced
        given = {p.name: value for p, value in zip(parameters, args, strict=False)} | named
        fixed = {name: value for name, value in given.items() if name in static}
        traced = [name for name in given if name not in static]

        def run(*values: Any) -> Any:
            return function(**dict(zip(traced, values, strict=True)), **fixed)

        key = tuple(sorted(fixed.items())), tuple(traced)
        programs[key] = programs.get(key) or interpreted(run)
        return programs[key](*(given[name] for name in traced))

    return call


def _to_jax(value: Any, aval: Any) -> jax.Array:
    if isinstance(value, jax.Array):
        return value
    return threefry.unpacked(value) if threefry.is_key(aval) else jnp.asarray(value)


# ---- programs ------------------------------------------------------------------------------------------------------


def _program(closed: ClosedJaxpr) -> Callable[..., list]:
    """Compiles a jaxpr to a function on NumPy arrays; keys that NumPy has no rules for stay JAX arrays."""
    jaxpr = closed.jaxpr
    constants = [_to_numpy(value) for value in closed.consts]
    steps = [
        (_rule(eqn), [_reader(atom) for atom in eqn.invars], eqn.outvars, eqn.primitive.multiple_results)
        for eqn in jaxpr.eqns
    ]
    outputs = [_reader(atom) for atom in jaxpr.outvars]

    def run(*inputs: Any) -> list:
        values: dict[Var, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        for var, value in zip(jaxpr.invars, inputs, strict=True):
            values[var] = _to_numpy(value) if _is_key(var.aval) else np.asarray(value, var.aval.dtype)
        # As in XLA, an overflow gives a number without a warning.
        with np.errstate(all="ignore"):
            for rule, readers, targets, several in steps:
                found = rule(*[read(values) for read in readers])
                values.update(zip(targets, found if several else [found], strict=True))
        return [read(values) for read in outputs]

    return run


def _reader(atom: Var | Literal) -> Callable[[Mapping[Var, Any]], Any]:
    """Returns a function that looks up an operand: a variable's value or a constant."""
    if isinstance(atom, Literal):
        aval: Any = atom.aval
        constant = np.asarray(atom.val, aval.dtype)
        return lambda values: constant
    return lambda values: values[atom]


def _rule(eqn: Any) -> Rule:
    """Returns a function that computes an operation and notifies the watchers."""
    rule, watchers = rule_of(eqn), tuple(_watchers)
    if not watchers:
        return rule

    def telling(*inputs: Any) -> Any:
        _calls.append(eqn)
        found = rule(*inputs)
        for watcher in watchers:
            watcher(_calls, inputs, found if eqn.primitive.multiple_results else [found])
        _calls.pop()
        return found

    return telling


def rule_of(eqn: Any) -> Rule:
    """Returns a function that computes an operation with its parameters filled in."""
    keys = [atom.aval for atom in [*eqn.invars, *eqn.outvars] if _is_key(atom.aval)]
    if eqn.primitive.name in RULES and all(map(threefry.is_key, keys)):
        rule = RULES[eqn.primitive.name](**eqn.params)
        return (lambda *inputs: rule(*map(_to_numpy, inputs))) if keys else rule
    inner = [eqn.params[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in eqn.params]
    if inner and eqn.primitive.name in CALLS:
        return _program(inner[0] if isinstance(inner[0], ClosedJaxpr) else ClosedJaxpr(inner[0], ()))
    return _by_jax(eqn)


# Operations that only run an inner program
CALLS = {"jit", "pjit", "closed_call", "checkpoint", "custom_jvp_call", "custom_vjp_call"}


def _by_jax(eqn: Any) -> Rule:
    """Lets JAX itself compute an operation."""

    def rule(*inputs: Any) -> Any:
        given = (_to_jax(value, atom.aval) for value, atom in zip(inputs, eqn.invars, strict=True))
        found = eqn.primitive.bind(*given, **eqn.params)
        return [_to_numpy(value) for value in found] if eqn.primitive.multiple_results else _to_numpy(found)

    return rule


def _is_key(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jax.dtypes.extended)


def _to_numpy(value: Any) -> Any:
    if isinstance(value, jax.Array) and _is_key(value):
        return threefry.packed(value) if threefry.is_key(value) else value
    return np.asarray(value)


# ---- operations ----------------------------------------------------------------------------------------------------


def _plain(function: Callable) -> Callable[..., Rule]:
    """Makes the rule of an operation whose parameters do not matter here, such as the layout on a device."""
    return lambda **params: function


def _convert(new_dtype: Any, **params: Any) -> Rule:
    return lambda x: x.astype(new_dtype)


def _integer_pow(y: int) -> Rule:
    return np.square if y == 2 else lambda x: x ** x.dtype.type(y)


def _pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.power(x, y.astype(x.dtype))


def _div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # Integer division rounds towards 0.
    return x / y if x.dtype.kind == "f" else np.trunc(x / y).astype(x.dtype)


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    return np.where(which, cases[1], cases[0]) if which.dtype == bool else np.choose(which, cases)


def _dot_general(dimension_numbers: Any, preferred_element_type: Any, **params: Any) -> Rule:
    (left_sum, right_sum), (left_batch, right_batch) = dimension_numbers

    def free(x: np.ndarray, *taken: Sequence[int]) -> list[int]:
        return [axis for axis in range(x.ndim) if axis not in {number for axes in taken for number in axes}]

    def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        left, right = free(x, left_sum, left_batch), free(y, right_sum, right_batch)
        batch = [x.shape[axis] for axis in left_batch]
        size = int(np.prod([x.shape[axis] for axis in left_sum], dtype=int))
        rows, columns = [x.shape[axis] for axis in left], [y.shape[axis] for axis in right]
        first = x.transpose(*left_batch, *left, *left_sum).reshape(*batch, -1, size)
        second = y.transpose(*right_batch, *right_sum, *right).reshape(*batch, size, -1)
        return (first @ second).reshape([*batch, *rows, *columns]).astype(preferred_element_type or x.dtype, copy=False)

    return dot


def _broadcast_in_dim(shape: Sequence[int], broadcast_dimensions: Sequence[int], **params: Any) -> Rule:
    def broadcast(x: np.ndarray) -> np.ndarray:
        sizes = [1] * len(shape)
        for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
            sizes[axis] = size
        return np.broadcast_to(x.reshape(sizes), shape)

    return broadcast


def _reduce(function: Callable) -> Callable[..., Rule]:
    # NumPy would add small integers and flags in a wider type.
    return lambda axes, **params: lambda x: function(x, axis=tuple(axes)).astype(x.dtype, copy=False)


def _arg(function: Callable) -> Callable[..., Rule]:
    return lambda axes, index_dtype: lambda x: function(x, axis=axes[0]).astype(index_dtype)


def _split(sizes: Sequence[int], axis: int) -> Rule:
    return lambda x: np.split(x, np.cumsum(sizes)[:-1], axis=axis)


def _slice(start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None) -> Rule:
    steps = strides or [1] * len(start_indices)
    return lambda x: x[tuple(map(slice, start_indices, limit_indices, steps))]


def _starts(x: np.ndarray, starts: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The slices of a block of these sizes; as in XLA, a block that exceeds an edge is moved inwards."""
    firsts = [min(max(int(start), 0), whole - size) for start, whole, size in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _dynamic_slice(slice_sizes: Sequence[int]) -> Rule:
    return lambda x, *starts: x[_starts(x, starts, slice_sizes)]


def _dynamic_update_slice(x: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    changed = x.copy()
    changed[_starts(x, starts, update.shape)] = update
    return changed


def _pad(padding_config: Sequence[tuple[int, int, int]]) -> Rule:
    def pad(x: np.ndarray, value: np.ndarray) -> np.ndarray:
        # Negative padding cuts entries off, and interior padding leaves gaps between entries.
        inner = [size + gap * max(size - 1, 0) for size, (_, _, gap) in zip(x.shape, padding_config, strict=True)]
        padded = np.full([n + max(a, 0) + max(b, 0) for n, (a, b, _) in zip(inner, padding_config, strict=True)], value)
        ends = zip(inner, padding_config, strict=True)
        padded[tuple(slice(max(low, 0), max(low, 0) + size, gap + 1) for size, (low, _, gap) in ends)] = x
        edges = zip(padded.shape, padding_config, strict=True)
        return padded[tuple(slice(max(-low, 0), size - max(-high, 0)) for size, (low, high, _) in edges)]

    return pad


def _iota(dtype: Any, shape: Sequence[int], dimension: int, **params: Any) -> Rule:
    sizes = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    return lambda: np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(sizes), shape)


def _scan(jaxpr: ClosedJaxpr, length: int, num_consts: int, num_carry: int, reverse: bool, **params: Any) -> Rule:
    body, stacked = _program(jaxpr), jaxpr.out_avals[num_carry:]

    def scan(*inputs: Any) -> list:
        constants, carry = inputs[:num_consts], list(inputs[num_consts : num_consts + num_carry])
        columns, rows = inputs[num_consts + num_carry :], []
        for i in reversed(range(length)) if reverse else range(length):
            found = body(*constants, *carry, *(column[i] for column in columns))
            carry = found[:num_carry]
            rows.append(found[num_carry:])
        rows = rows[::-1] if reverse else rows
        outputs = [np.stack(column) for column in zip(*rows, strict=True)] if rows else _empty(stacked)
        return [*carry, *outputs]

    return scan


def _bitcast(new_dtype: Any) -> Rule:
    def bitcast(x: np.ndarray) -> np.ndarray:
        assert x.dtype.itemsize == np.dtype(new_dtype).itemsize
        return x.view(new_dtype)

    return bitcast


def _random(function: Callable) -> Callable[..., Rule]:
    return lambda **params: partial(function, **params)


def _empty(avals: Sequence[Any]) -> list[np.ndarray]:
    return [np.zeros((0, *aval.shape), aval.dtype) for aval in avals]


RULES: Mapping[str, Callable[..., Rule]] = {
    **{
        name: _plain(getattr(np, name))
        for name in ("abs", "sign", "exp", "expm1", "log", "log1p", "sqrt", "square", "sin", "cos", "tanh", "floor")
    },
    "add": _plain(np.add),
    "add_any": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "neg": _plain(np.negative),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "rem": _plain(np.fmod),
    "div": _plain(_div),
    "pow": _plain(_pow),
    "integer_pow": _integer_pow,
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "is_finite": _plain(np.isfinite),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "not": _plain(np.invert),
    "rsqrt": _plain(lambda x: 1 / np.sqrt(x)),
    "logistic": _plain(special.expit),
    "erf": _plain(special.erf),
    "erf_inv": _plain(special.erfinv),
    "select_n": _plain(_select),
    "clamp": _plain(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "copy": _plain(lambda x: x),
    "stop_gradient": _plain(lambda x: x),
    "optimization_barrier": _plain(lambda *xs: list(xs)),
    "convert_element_type": _convert,
    "dot_general": _dot_general,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": lambda new_sizes, **params: lambda x: x.reshape(new_sizes),
    "squeeze": lambda dimensions: lambda x: x.squeeze(tuple(dimensions)),
    "transpose": lambda permutation: lambda x: x.transpose(permutation),
    "rev": lambda dimensions: lambda x: np.flip(x, dimensions),
    "concatenate": lambda dimension: lambda *xs: np.concatenate(xs, axis=dimension),
    "cumsum": lambda axis, reverse: (
        lambda x: np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis)
    ),
    "split": _split,
    "stack": lambda axis: lambda *xs: np.stack(xs, axis=axis),
    "unstack": lambda axis: lambda x: list(np.moveaxis(x, axis, 0)),
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _plain(_dynamic_update_slice),
    "pad": _pad,
    "iota": _iota,
    "reduce_sum": _reduce(np.sum),
    "reduce_prod": _reduce(np.prod),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "reduce_and": _reduce(np.all),
    "reduce_or": _reduce(np.any),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "scan": _scan,
    "bitcast_convert_type": _bitcast,
    "shift_left": _plain(np.left_shift),
    "shift_right_logical": _plain(np.right_shift),
    "random_bits": _random(threefry.random_bits),
    "random_split": _random(threefry.random_split),
    "random_fold_in": _plain(threefry.random_fold_in),
}
