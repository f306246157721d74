"""NumPy's results for a traced function equal the results of XLA's program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from parity_tests.engine.interpreter import RULES, interpreted
from parity_tests.engine.precision import both_in
from parity_tests.ladder.scene import Scene
from parity_tests.pairs import PAIRS

X = np.linspace(-2.0, 3.0, 24).reshape(2, 3, 4)
POSITIVE, INTEGERS, FLAGS = np.abs(X) + 0.1, np.arange(-12, 12).reshape(2, 3, 4), X > 0.5
KEY = jax.random.key(3)

# By the operation that each is about, or several if it has several forms
CASES: dict[str, tuple[Callable, tuple]] = {
    **{name: (getattr(jnp, name), (X,)) for name in ("abs", "sign", "exp", "expm1", "square", "sin", "cos", "tanh")},
    **{name: (getattr(jnp, name), (POSITIVE,)) for name in ("log", "log1p", "sqrt", "floor")},
    "add": (jnp.add, (X, POSITIVE)),
    "add_any": (jax.grad(lambda x: (x * x).sum()), (X,)),
    "sub": (jnp.subtract, (X, POSITIVE)),
    "mul": (jnp.multiply, (X, 3.0)),
    "neg": (jnp.negative, (X,)),
    "max": (jnp.maximum, (X, -X)),
    "min": (jnp.minimum, (X, -X)),
    "rem": (lax.rem, (INTEGERS, np.full_like(INTEGERS, 5))),
    "div": (jnp.divide, (X, POSITIVE)),
    "div of integers": (lax.div, (INTEGERS, np.full_like(INTEGERS, 5))),
    "pow": (jnp.power, (POSITIVE, X)),
    "pow by integers": (jnp.power, (POSITIVE, INTEGERS)),
    "integer_pow": (lambda x: (x**3, x**2, x**-1), (POSITIVE,)),
    "eq": (jnp.equal, (INTEGERS, INTEGERS[::-1])),
    "ne": (jnp.not_equal, (INTEGERS, 3)),
    "lt": (jnp.less, (X, 0.5)),
    "le": (jnp.less_equal, (INTEGERS, 0)),
    "gt": (jnp.greater, (X, 0.5)),
    "ge": (jnp.greater_equal, (INTEGERS, 0)),
    "is_finite": (jnp.isfinite, (np.where(X > 0, X, np.inf),)),
    "and": (jnp.logical_and, (FLAGS, X < 1.0)),
    "or": (jnp.logical_or, (FLAGS, X < -1.0)),
    "not": (jnp.logical_not, (FLAGS,)),
    "rsqrt": (lax.rsqrt, (POSITIVE,)),
    "logistic": (jax.nn.sigmoid, (X,)),
    "erf": (lax.erf, (X,)),
    "erf_inv": (lax.erf_inv, (np.linspace(-0.999, 0.999, 12).reshape(3, 4),)),
    "select_n": (jnp.where, (FLAGS, X, -X)),
    "select_n of three": (lax.select_n, (INTEGERS.astype(np.int32) % 3, X, -X, POSITIVE)),
    "clamp": (lambda x: lax.clamp(-1.0, x, 1.0), (X,)),
    "copy": (jnp.copy, (X,)),
    "stop_gradient": (lax.stop_gradient, (X,)),
    "optimization_barrier": (lax.optimization_barrier, (X,)),
    "convert_element_type": (lambda x: x.astype(jnp.int32), (X,)),
    "dot_general": (jnp.matmul, (X, X.transpose(0, 2, 1))),
    "dot_general of a sum over two": (lambda x, y: jnp.einsum("abc,dbc->da", x, y), (X, X[:1])),
    "dot_general to a number": (lambda x: jnp.einsum("abc,abc->", x, x), (X,)),
    "dot_general without a sum": (lambda x: jnp.einsum("ab,cd->abcd", x[0], x[1]), (X,)),
    "broadcast_in_dim": (lambda x: jnp.broadcast_to(x[:, None], (2, 5, 3, 4)), (X,)),
    "reshape": (lambda x: x.reshape(4, 6), (X,)),
    "squeeze": (lambda x: x[:, :1].squeeze(1), (X,)),
    "transpose": (lambda x: x.transpose(2, 0, 1), (X,)),
    "rev": (lambda x: jnp.flip(x, (0, 2)), (X,)),
    "concatenate": (lambda x: jnp.concatenate([x, 2.0 * x], axis=1), (X,)),
    "cumsum": (lambda x: (lax.cumsum(x, 1), lax.cumsum(x, 2, reverse=True)), (X,)),
    "split": (lambda x: jnp.split(x, [1, 3], axis=2), (X,)),
    "stack": (lambda x: jnp.stack([x, -x], axis=1), (X,)),
    "unstack": (lambda x: jnp.unstack(x, axis=1), (X,)),
    "slice": (lambda x: lax.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2)), (X,)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, 0, i), (1, 3, 2)), (X, 1)),
    "dynamic_slice over an edge": (lambda x, i: lax.dynamic_slice(x, (i, 0, i), (1, 3, 2)), (X, 9)),
    "dynamic_update_slice": (lambda x, i: lax.dynamic_update_slice(x, -x[:, :2], (0, i, 0)), (X, 2)),
    "pad": (lambda x: lax.pad(x, 7.0, [(1, 0, 0), (0, 2, 1), (-1, -1, 0)]), (X,)),
    "iota": (lambda: lax.broadcasted_iota(jnp.int32, (2, 3, 4), 1), ()),
    "reduce_sum": (lambda x: x.sum(axis=(0, 2)), (X,)),
    "reduce_sum of integers": (lambda x: x.astype(jnp.int8).sum(dtype=jnp.int8), (INTEGERS,)),
    "reduce_prod": (lambda x: x.prod(axis=1), (X,)),
    "reduce_max": (lambda x: x.max(axis=1), (X,)),
    "reduce_min": (lambda x: x.min(axis=(1, 2)), (X,)),
    "reduce_and": (lambda x: x.all(axis=1), (FLAGS,)),
    "reduce_or": (lambda x: x.any(axis=1), (FLAGS,)),
    "argmax": (lambda x: x.argmax(axis=1), (X**2,)),
    "argmin": (lambda x: x.argmin(axis=2), (X**2,)),
    "scan": (lambda x: lax.scan(lambda sum, row: (sum + row, sum * row), x[0, 0], x[0]), (X,)),
    "scan from the end": (lambda x: lax.scan(lambda s, row: (s + row, s * row), x[0, 0], x[0], reverse=True), (X,)),
    "scan of no steps": (lambda x: lax.scan(lambda sum, row: (sum + row, sum), x[0, 0], x[0, :0]), (X,)),
    "what NumPy has not": (lambda x: (jnp.sort(x, axis=1), x[jnp.array([1, 0])], jax.nn.softplus(x)), (X,)),
    "a function's own derivative": (jax.grad(lambda x: jax.nn.relu(x).sum() + jax.nn.gelu(x).sum()), (X,)),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32), (X,)),
    "shift_left": (lambda x: lax.shift_left(x, jnp.full_like(x, 5)), (INTEGERS.astype(np.uint32),)),
    "shift_right_logical": (lambda x: lax.shift_right_logical(x, jnp.full_like(x, 5)), (INTEGERS.astype(np.uint32),)),
    "random_bits": (lambda: [jax.random.bits(KEY, (3, 2), kind) for kind in ("uint8", "uint16", "uint32")], ()),
    "random_bits of each key": (lambda: jax.vmap(lambda key: jax.random.bits(key, (5,)))(jax.random.split(KEY, 4)), ()),
    "random_split": (lambda: jax.random.key_data(jax.random.split(KEY, (2, 3)))[1], ()),
    "random_fold_in": (lambda x: jax.random.key_data(jax.random.fold_in(KEY, x)), (INTEGERS[1, 2, 3],)),
    "scan of keys": (
        lambda x: lax.scan(lambda s, key: (s, s * jax.random.uniform(key)), x[0, 0], jax.random.split(KEY, 3)),
        (X,),
    ),
    "keys that are chosen": (lambda: jax.random.normal(jax.random.split(KEY, 3)[1:][0], (4,)), ()),
    "another generator's keys": (lambda: jax.random.uniform(jax.random.key(3, impl="rbg"), (4,)), ()),
    "random keys": (lambda: jax.random.normal(jax.random.split(jax.random.fold_in(KEY, 5), 3)[1], (4,)), ()),
}


def assert_equal(ours: Any, theirs: Any, tolerance: float) -> None:
    """Checks structure, types, shapes and values, relative to the largest."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        largest = np.abs(np.asarray(other, float)).max(initial=0.0, where=np.isfinite(other))
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_xlas(name: str, precision: str) -> None:
    function, inputs = CASES[name]
    with both_in(precision):
        inputs = [jnp.asarray(x, float if np.asarray(x).dtype.kind == "f" else None) for x in inputs]
        tolerance = {"float64": 1e-14, "float32": 1e-6}[precision]
        assert_equal(interpreted(function)(*inputs), jax.jit(function)(*inputs), tolerance)


def test_every_rule_is_tried() -> None:
    """Each occurs in the program of the case with its name."""
    for name in RULES:
        function, inputs = CASES[name]
        assert name in str(jax.make_jaxpr(function)(*inputs)), name


def test_a_function_is_traced_once_for_each_kind_of_arguments() -> None:
    traces = []

    def function(x: jax.Array) -> jax.Array:
        traces.append(x.shape)
        return 2.0 * x

    compute = interpreted(function)
    assert float(compute(jnp.ones(3))[0]) == 2.0
    assert float(compute(jnp.full(3, 4.0))[0]) == 8.0
    compute(jnp.ones(2))
    assert traces == [(3,), (2,)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["td3_bc", "model_based/mopo"])
def test_an_update_is_xlas(name: str) -> None:
    """State and metrics, in double precision under the default settings; the ladder compares both of every pair."""
    with both_in("float64"):
        found = []
        for engine in (interpreted, jax.jit):
            scene = Scene.create(PAIRS[name], PAIRS[name].jax, "default", "extreme", engine=engine)
            indices, noise = next(scene.draws())
            found.append(scene.update(scene.state(), scene.updates + 1, indices, scene.jax_noise(noise)))
        assert_equal(*found, 1e-12)
