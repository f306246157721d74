"""Converts a small network's graph to a recipe that NumPy can follow: a list of steps of a few words each.

A step is `[result, operation, *inputs]`. A text input names an earlier result, an array in the file, or an input of the
user's. Other inputs are numbers. `docs/guides/deploy.md` prints the operations and the code that executes them.
"""

import operator
import sys
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from shared.errors import InputError

Step = list[Any]

aten = torch.ops.aten
_OPERATIONS = {
    aten.add.Tensor: "add",
    aten.sub.Tensor: "subtract",
    aten.div.Tensor: "divide",
    aten.mul.Tensor: "multiply",
    aten.matmul.default: "matmul",
    aten.linear.default: "linear",
    aten.relu.default: "relu",
    aten.tanh.default: "tanh",
    aten.clamp.default: "clamp",
    aten.clamp.Tensor: "clamp",
    aten.full_like.default: "full",
    aten.tile.default: "tile",
    aten.unsqueeze.default: "unsqueeze",
    aten.squeeze.dim: "squeeze",
    aten.amax.default: "amax",
    aten.amin.default: "amin",
    aten.argmax.default: "argmax",
    aten.gather.default: "gather",
    aten.exp.default: "exp",
    aten.sqrt.default: "sqrt",
    aten.square.default: "square",
    aten.gt.Scalar: "greater",
    aten.where.ScalarOther: "where",
    aten.slice.Tensor: "slice",
    aten.select.int: "select",
    aten.sym_size.int: "size",
    aten.transpose.int: "swapaxes",
    aten.cos.default: "cos",
    aten.sin.default: "sin",
    aten.mish.default: "mish",
    aten.arange.start: "arange",
    aten.linspace.default: "linspace",
}


def recipe(program: ExportedProgram, inputs: list[str], output: str) -> tuple[list[Step], dict[str, np.ndarray]]:
    """Returns the steps from the inputs to the output, and the arrays that they use, under PyTorch's names.

    Args:
        program: A network with one output.
        inputs: The names of the user's inputs in the steps.
        output: The name of the result.

    Raises:
        InputError: The network uses an operation that recipes lack.
    """
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    given = dict(zip(signature.user_inputs, inputs, strict=True))
    steps: list[Step] = []
    arrays: dict[str, np.ndarray] = {}
    names: dict[Node, str] = {}

    def value(argument: Any) -> Any:
        """An argument as it appears in a step, after writing the steps that compute it."""
        if not isinstance(argument, Node):
            return argument
        argument = _meant(argument)
        if argument not in names:
            names[argument] = _store(argument) if argument.op == "placeholder" else _write(argument)
        return names[argument]

    def _store(node: Node) -> str:
        if node.name in given:
            return given[node.name]
        name = stored[node.name].removeprefix("network.")
        arrays[name] = program.state_dict[stored[node.name]].detach().numpy()
        return name

    def _write(node: Node) -> str:
        operation, *arguments = _step(node)
        steps.append([node.name, operation, *map(value, arguments)])
        return node.name

    (result,) = program.graph.output_node().args[0]
    value(result)
    steps[-1][0] = output
    return steps, arrays


def _meant(node: Node) -> Node:
    """Skips operations that only pass on a value: a full slice, an element of a stack, or repeats for a `gather`."""
    if node.target is aten.slice.Tensor and node.args[1:] == (0, 0, sys.maxsize):
        return _meant(node.args[0])
    if node.target is aten.select.int and node.args[0].target is aten.stack.default:
        return _meant(node.args[0].args[0][node.args[2]])
    # NumPy's own gather broadcasts.
    if node.target is aten.expand.default and all(user.target is aten.gather.default for user in node.users):
        return _meant(node.args[0])
    return node


def _step(node: Node) -> list[Any]:
    """The name of an operation in recipes, and its arguments."""
    arguments = list(node.args)
    if node.target in _OPERATIONS:
        return [_OPERATIONS[node.target], *arguments]
    if node.target is aten.to.dtype and arguments[1] is torch.float32:
        return ["single", arguments[0]]
    if node.target is aten.reshape.default:
        inputs, shape = arguments
        return ["reshape", inputs, *shape]
    if node.target is aten.expand.default:
        inputs, shape = arguments
        return ["expand", inputs, *shape]
    if node.target is aten.conv2d.default:
        inputs, weight, *others = arguments
        defaults: list[Any] = [None, [1], [0]]
        bias, stride, padding, *_ = [*others, *defaults[len(others) :]]
        return ["convolve", inputs, weight, bias, stride[0], *([padding[0]] if padding[0] else [])]
    if node.target is aten.max_pool2d.default and arguments[0].target is aten.pad.default:
        # Drops the padding value -inf, which JSON cannot express
        inputs, sides, *_ = arguments[0].args
        (side, _), (stride, _) = arguments[1:3]
        return ["pool", inputs, side, stride, sides]
    if node.target is aten.group_norm.default:
        inputs, groups, weight, bias, *others = arguments
        return ["group_norm", inputs, groups, weight, bias, *(others[:1] or [1e-5])]
    if node.target is aten.flatten.using_ints and arguments[1:] == [1]:
        return ["flatten", arguments[0]]
    if node.target is aten.layer_norm.default:
        inputs, _, weight, bias, epsilon, *_ = arguments
        return ["layer_norm", inputs, weight, bias, epsilon]
    if node.target is aten.gelu.default and node.kwargs == {"approximate": "tanh"}:
        return ["gelu", arguments[0]]
    if node.target is aten.stack.default and len(arguments) == 1:
        return ["stack", *arguments[0]]
    if node.target is aten.mean.dim and len(arguments[1]) == 1:
        return ["mean", arguments[0], *arguments[1]]
    if node.target is aten.mean.dim:
        inputs, axes, *keeps = arguments
        return ["means", inputs, axes, any(keeps)]
    if node.target is aten.sum.dim_IntList and len(arguments) == 2:
        return ["sum", arguments[0], *arguments[1]]
    if node.target is aten.concatenate.default and arguments[1] == -1:
        return ["concatenate", *arguments[0]]
    if node.target is operator.getitem and arguments[0].target is aten.chunk.default:
        inputs, parts, _ = arguments[0].args
        return ["part", inputs, parts, arguments[1]]
    if node.target is operator.getitem and arguments[0].target is aten.split_with_sizes.default:
        inputs, sizes, axis = arguments[0].args
        end = sum(sizes[: arguments[1] + 1])
        return ["slice", inputs, axis, end - sizes[arguments[1]], end]
    raise InputError(f"npz has no word for {node.target}: export the policy as onnx or torchscript")
