"""Functions that may be mistaken for each other, by their names in the source."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import special

Numbers = Callable[[np.ndarray], np.ndarray]


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _huber(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) <= 1.0, 0.5 * x * x, np.abs(x) - 0.5)


def _softmax(x: np.ndarray) -> np.ndarray:
    return special.softmax(x, axis=-1)


ACTIVATIONS: Mapping[str, Numbers] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": _gelu,
    "gelu without approximation": lambda x: 0.5 * x * (1.0 + special.erf(x / math.sqrt(2.0))),
    "silu": lambda x: x * special.expit(x),
    "sigmoid": special.expit,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "clip to [-1, 1]": lambda x: np.clip(x, -1.0, 1.0),
}

FUNCTIONS: Mapping[str, Numbers] = {
    "exp": np.exp,
    "abs": np.abs,
    "square": np.square,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "-x": np.negative,
    "1 - x": lambda x: 1.0 - x,
    "1 / x": lambda x: 1.0 / x,
    "huber": _huber,
    "twice huber": lambda x: 2.0 * _huber(x),
    "softmax": _softmax,
    "log_softmax": lambda x: special.log_softmax(x, axis=-1),
}

BINARY: Mapping[str, Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "min": {"maximum": np.maximum, "the mean": lambda x, y: (x + y) / 2.0, "+": np.add},
    "max": {"minimum": np.minimum, "the mean": lambda x, y: (x + y) / 2.0},
    "add": {"-": np.subtract, "*": np.multiply, "minimum": np.minimum},
    "sub": {"+": np.add, "the other way round": lambda x, y: y - x},
    "mul": {"/": np.divide, "+": np.add},
    "div": {"*": np.multiply, "the other way round": lambda x, y: y / x},
}

REDUCED: Mapping[str, Callable] = {"reduce_sum": np.sum, "reduce_max": np.max, "reduce_min": np.min}

REDUCED_TO: dict[str, Callable] = {
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "sum": np.sum,
    "the first": lambda x, axis=0: np.take(x, 0, axis),
    "the last": lambda x, axis=0: np.take(x, -1, axis),
}

FURTHER_REDUCED: dict[str, Callable] = {**REDUCED_TO, "median": np.median, "std": np.std}

COMPARED: Mapping[str, Mapping[str, Callable]] = {
    "gt": {"<": np.less, ">=": np.greater_equal},
    "ge": {"<=": np.less_equal, ">": np.greater},
    "lt": {">": np.greater, "<=": np.less_equal},
    "le": {">=": np.greater_equal, "<": np.less},
    "eq": {"!=": np.not_equal},
    "ne": {"==": np.equal},
}

SIGNS = {"+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!="}

BY_ROWS: Mapping[str, Numbers] = {
    "divided by its sum": lambda x: x / x.sum(),
    "divided by its mean": lambda x: x / x.mean(),
    "divided by its largest": lambda x: x / x.max(),
    "less its mean": lambda x: x - x.mean(),
    "less its largest": lambda x: x - x.max(),
    "standardised": lambda x: (x - x.mean()) / (x.std() + 1e-8),
    "replaced by its softmax": _softmax,
    "replaced by its mean": lambda x: np.full_like(x, x.mean()),
    "cut at 1": lambda x: np.minimum(x, 1.0),
    "cut at 0": lambda x: np.maximum(x, 0.0),
    "cut to [-1, 1]": lambda x: np.clip(x, -1.0, 1.0),
    "put through tanh": np.tanh,
}
