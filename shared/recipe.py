"""A small network's graph as a recipe that NumPy can follow: a list of steps, each a few words.

A step is `[result, operation, *inputs]`: an input that is text names an earlier result, an array of the file or what
the user gives; any other is a number. docs/deploy.md lists the operations, and the twenty lines that carry them out.
"""

from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from shared.errors import InputError

aten = torch.ops.aten
OPERATIONS = {
    aten.sub.Tensor: "subtract",
    aten.div.Tensor: "divide",
    aten.mul.Tensor: "multiply",
    aten.to.dtype: "single",
    aten.linear.default: "linear",
    aten.layer_norm.default: "layer_norm",
    aten.relu.default: "relu",
    aten.tanh.default: "tanh",
    aten.clamp.default: "clamp",
    aten.slice.Tensor: "columns",
}

Step = list[Any]


def recipe(program: ExportedProgram, inputs: list[str], output: str) -> tuple[list[Step], dict[str, np.ndarray]]:
    """The steps that lead from the inputs to the output, and the arrays that they use.

    Args:
        program: The network.
        inputs: What the steps call what the user gives.
        output: What they call the result.

    Raises:
        InputError: The network does something that a recipe has no word for.
    """
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    names = {name: stored[name] for name in stored} | dict(zip(signature.user_inputs, inputs, strict=True))
    return [], {}
