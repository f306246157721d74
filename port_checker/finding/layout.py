"""Maps PyTorch's tensors to a tree of somebody else's making.

A layout is found once, from a tree that contains consecutive numbers in place of weights. It then converts weights,
gradients and moments in both directions, whatever the names of the leaves.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shared.errors import InputError
from shared.frameworks.exchange import Named
from shared.frameworks.jax_checkpoints import params_from_torch

# What a layer's weight and its bias are called; flax calls a LayerNorm's weight `scale`
ROLES = (("weight", "kernel", "scale"), ("bias",))

FromTorch = Callable[[str, Named], Any]
Leaf = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Layout:
    """How one part's tensors are laid out in a tree.

    Attributes:
        shapes: The names and shapes of PyTorch's tensors, in their order.
        places: A tree like the part's weights, with the index of each number among all of PyTorch's.
    """

    shapes: Mapping[str, tuple[int, ...]]
    places: Any

    def to_tree(self, named: Named) -> Any:
        """Arranges PyTorch's tensors as the tree, in double precision."""
        numbers = np.concatenate([np.ravel(np.asarray(named[name], np.float64)) for name in self.shapes])
        return jax.tree.map(lambda places: jnp.asarray(numbers[places]), self.places)

    @property
    def num_leaves(self) -> int:
        """The number of the tree's arrays."""
        return len(jax.tree.leaves(self.places))

    def to_torch(self, tree: Any, what: str) -> Named:
        """Converts the leaves of this tree, or of any tree with the same order, to PyTorch's tensors.

        Raises:
            InputError: The leaves have other shapes; `what` names the tree.
        """
        places, leaves = jax.tree.leaves(self.places), jax.tree.leaves(tree)
        expected, found = list(map(np.shape, places)), list(map(np.shape, leaves))
        if expected != found:
            raise InputError(f"{what} has leaves of the shapes {found}: expected {expected}, those it was created with")
        numbers = np.empty(sum(map(math.prod, self.shapes.values())))
        for where, leaf in zip(places, leaves, strict=True):
            numbers[where] = np.asarray(leaf)
        return _split(numbers, self.shapes)


def _split(numbers: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> Named:
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    pieces = np.split(numbers, ends[:-1])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def find_layout(
    part: str, reference: Named, weights: Any, from_torch: FromTorch | None, channels_last: bool = False
) -> Layout:
    """Finds a part's layout by the file's own `from_torch`, else by PyTorch's names, else by order and shape.

    Args:
        part: The part's name.
        reference: PyTorch's tensors.
        weights: The file's fresh weights of that part, a tree of arrays.
        from_torch: The file's function from the part's name and tensors to its weights, if it has one.
        channels_last: Without `from_torch`, whether images are flattened (H, W, C) for the layer after convolutions.

    Raises:
        InputError: Tree and tensors do not contain the same numbers, or cannot be matched.
    """
    shapes = {name: np.shape(value) for name, value in reference.items()}
    counted = _split(np.arange(sum(map(math.prod, shapes.values()))), shapes)
    if from_torch is None:
        ordered = counted | (_channels_last(counted) if channels_last else {})
        tree = _by_torch_names(ordered, weights)
        tree = _by_order(part, ordered, weights) if tree is None else tree
    else:
        tree = from_torch(part, {name: value.copy() for name, value in counted.items()})
    _check(part, shapes, weights, tree)
    places = [np.asarray(leaf).astype(int) for leaf in jax.tree.leaves(tree)]
    return Layout(shapes, jax.tree.unflatten(jax.tree.structure(weights), places))


def flattens(reference: Named) -> bool:
    """Whether a part's tensors belong to a network that flattens images."""
    return bool(_behind_convolutions(reference))


def _behind_convolutions(tensors: Named) -> dict[str, int]:
    """The weights (out, in) of layers whose inputs are flattened images, by name, with the images' channel counts."""
    found, channels = {}, 0
    for name, value in tensors.items():
        if np.ndim(value) == 4:
            channels = np.shape(value)[0]
        elif np.ndim(value) == 2 and channels:
            # If inputs equal channels, the image has one pixel, or its pixels were averaged.
            if np.shape(value)[1] > channels and np.shape(value)[1] % channels == 0:
                found[name] = channels
            channels = 0
    return found


def _channels_last(tensors: Named) -> Named:
    """Reorders the inputs of these weights from PyTorch's (C, H, W) to (H, W, C)."""
    return {
        name: tensors[name].reshape(len(tensors[name]), channels, -1).swapaxes(1, 2).reshape(len(tensors[name]), -1)
        for name, channels in _behind_convolutions(tensors).items()
    }


def _check(part: str, shapes: Mapping[str, tuple[int, ...]], weights: Any, tree: Any) -> None:
    """Checks that a tree is like the file's and contains every number once."""
    ours, theirs = leaf_shapes(weights), leaf_shapes(tree)
    if ours != theirs:
        wrong = next((a, b) for a, b in zip([*ours, None], [*theirs, None], strict=False) if a != b)
        raise InputError(
            f"from_torch({part!r}, ...) must give a tree like state.{part}: expected {_show(wrong[0])}, "
            f"found {_show(wrong[1])}"
        )
    numbers = np.sort(np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]))
    if not np.array_equal(numbers, np.arange(sum(map(math.prod, shapes.values())))):
        raise InputError(
            f"from_torch({part!r}, ...) must hold each of PyTorch's numbers once, unchanged: rename, reshape, "
            f"transpose, split or stack its tensors, and nothing else"
        )


def _show(leaf: Leaf | None) -> str:
    return "nothing more" if leaf is None else f"{leaf[0] or 'an array'} {leaf[1]}"


def leaf_shapes(tree: Any) -> list[Leaf]:
    """A tree's leaves: their paths, such as `Dense_0/kernel`, and their shapes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [("/".join(map(_key, path)), np.shape(leaf)) for path, leaf in leaves]


def _key(entry: Any) -> str:
    return str(next(getattr(entry, name) for name in ("key", "idx", "name") if hasattr(entry, name)))


def _by_torch_names(counted: Named, weights: Any) -> Any:
    """Matches a tree whose names are PyTorch's, as in our twins (`net/layers_0/kernel`); None for any other tree."""
    if not isinstance(weights, Mapping):
        return None
    try:
        return params_from_torch(counted, jax.tree.map(lambda leaf: np.empty(leaf.shape, int), weights))
    except (KeyError, ValueError):
        return None


# ---- by order and shape --------------------------------------------------------------------------------------------


def _by_order(part: str, counted: Named, weights: Any) -> Any:
    """Matches a tree with one leaf for each tensor: layers in the order of their numbers, kernels (in, out) or not.

    Convolution kernels are (out, in, height, width) as in PyTorch, or (height, width, in, out) as in flax.
    """
    leaves = sorted(leaf_shapes(weights), key=lambda leaf: _natural(leaf[0]))
    expected, found = (sorted(map(_kind, shapes)) for shapes in (map(np.shape, counted.values()), _shapes(leaves)))
    if expected != found:
        raise InputError(
            f"state.{part} must hold the reference's numbers: expected {_listed(counted)}; found "
            f"{', '.join(f'{path} {shape}' for path, shape in leaves) or 'nothing'}. Where the tensors are laid out "
            f"otherwise, define from_torch(part, weights)"
        )
    names: dict[str, str] = {}
    for kind in set(found):
        same = [path for path, shape in leaves if _kind(shape) == kind]
        ours = [name for name, value in counted.items() if _kind(value.shape) == kind]
        for paths, tensors in _by_role(same, ours):
            names |= _matched(part, paths, tensors)
    as_torch = _laid_out_as_torch(part, leaves, {path: counted[name] for path, name in names.items()})
    tree = {path: _like(shape, counted[names[path]], as_torch) for path, shape in leaves}
    flat = [tree[path] for path, _ in leaf_shapes(weights)]
    return jax.tree.unflatten(jax.tree.structure(weights), flat)


def _shapes(leaves: list[Leaf]) -> list[tuple[int, ...]]:
    return [shape for _, shape in leaves]


def _kind(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape, regardless of the order of its two axes, or of a convolution's four."""
    return tuple(sorted(shape)) if len(shape) in (2, 4) else tuple(shape)


def _natural(path: str) -> list[Any]:
    """Sorts `Dense_10` after `Dense_2`."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", path)]


def _listed(tensors: Named) -> str:
    return ", ".join(f"{name} {value.shape}" for name, value in tensors.items())


def _by_role(paths: list[str], names: list[str]) -> list[tuple[list[str], list[str]]]:
    """Leaves and tensors of the same shape, weights apart from biases if all their names say which they are."""
    apart = [
        ([path for path in paths if _last_word(path) in words], [name for name in names if _last_word(name) in words])
        for words in ROLES
    ]
    told = all(sum(map(len, side)) == len(paths) for side in zip(*apart, strict=True))
    fit = all(len(leaves) == len(tensors) for leaves, tensors in apart)
    return apart if told and fit else [(paths, names)]


def _last_word(path: str) -> str:
    return re.split(r"[/.]", path)[-1]


def _matched(part: str, paths: list[str], names: list[str]) -> dict[str, str]:
    """Matches leaves to tensors of the same shape: by PyTorch's name, or by numbers in otherwise equal names.

    Anything else would be a guess that might call a correct file wrong.
    """
    matched = {}
    for name in names:
        alike = [path for path in paths if _stem(name) in path]
        if len(alike) == 1 and len([other for other in names if _stem(other) in alike[0]]) == 1:
            matched[alike[0]] = name
    rest = [path for path in paths if path not in matched]
    if len({re.sub(r"\d+", "#", path) for path in rest}) > 1:
        raise InputError(
            f"which of state.{part}'s {', '.join(paths)} is which of {', '.join(names)}, all of the same shape? Number "
            f"them in their names, or define from_torch(part, weights)"
        )
    return matched | dict(zip(rest, (name for name in names if name not in matched.values()), strict=True))


def _stem(name: str) -> str:
    """The name of a tensor's module: `log_std_offset` for `log_std_offset.constant`, `mlp` for `_mlp.0.weight`."""
    words = [piece for piece in name.split(".") if not piece.isdigit() and piece not in ("weight", "bias", "constant")]
    return words[-1].strip("_") if words else name


def _laid_out_as_torch(part: str, leaves: list[Leaf], tensors: Named) -> bool:
    """Whether kernels are (out, in): a square one does not show it, but the part's others do."""
    kernels = [path for path, shape in leaves if len(shape) == 2 and shape[0] != shape[1]]
    ways = {dict(leaves)[path] == tensors[path].shape for path in kernels}
    square = [path for path, shape in leaves if len(shape) == 2 and shape[0] == shape[1]]
    if len(ways) > 1 and square:
        raise InputError(
            f"some of state.{part}'s kernels are (in, out), some (out, in): which way round is {square[0]}? Define "
            f"from_torch(part, weights)"
        )
    return ways == {True}


def _like(shape: tuple[int, ...], tensor: np.ndarray, as_torch: bool) -> np.ndarray:
    """The tensor with its axes in the leaf's order."""
    if tensor.ndim == 4:
        flaxs = tensor.transpose(2, 3, 1, 0)
        return flaxs if flaxs.shape == shape and not (as_torch and tensor.shape == shape) else tensor
    square = tensor.ndim == 2 and shape[0] == shape[1]
    return tensor if tensor.shape == shape and (as_torch or not square) else tensor.T
