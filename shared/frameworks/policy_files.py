"""A policy as one file that needs none of this project: ONNX, TorchScript, or NumPy's arrays with a recipe.

Whatever the format, the observation goes in as the environment gives it, and the action comes out as the environment
takes it. The normalisation of states and the scaling of actions are inside.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from shared.envs.spaces import Shape, axes
from shared.errors import InputError
from shared.frameworks.recipe import recipe

Metadata = Mapping[str, Any]


class PortablePolicy(nn.Module):
    """From observations (E, S) of E episodes to actions (E, A), float32.

    Attributes:
        output: What the result is called in files.
        scales: Whether the network's actions are scaled ones.
    """

    output = "actions"

    def __init__(
        self,
        policy: Callable[..., Tensor],
        network: nn.Module,
        mean: np.ndarray,
        std: np.ndarray,
        actions: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        """Takes the network as it is.

        Args:
            policy: The twin's function of that name, from the network and normalised observations to actions.
            network: What it calls the actor, of a sequence model the model.
            mean: (S,).
            std: (S,).
            actions: What is added to the policy's actions, (A,), and what multiplies them before, (A,); None: nothing.
        """
        super().__init__()
        self._policy, self.network = policy, network
        # In double precision, as the evaluator normalises: rounding comes last.
        self.register_buffer("state_mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("state_std", torch.tensor(std, dtype=torch.float64))
        self.scales = actions is not None
        if actions is not None:
            self.register_buffer("action_mean", torch.tensor(actions[0]))
            self.register_buffer("action_std", torch.tensor(actions[1]))

    def normalised(self, observations: Tensor) -> Tensor:
        """Observations (..., S) as the network takes them."""
        return ((observations - self.state_mean) / self.state_std).to(torch.float32)

    def unscaled(self, actions: Tensor) -> Tensor:
        """Actions (..., A) of the network as the environment takes them."""
        return actions * self.action_std + self.action_mean if self.scales else actions

    def forward(self, observations: Tensor) -> Tensor:
        """The actions (E, A) for observations (E, S)."""
        return self.unscaled(self._policy(self.network, self.normalised(observations)))


class PortableSampledPolicy(PortablePolicy):
    """From observations (E, S) of E episodes, and noise (E, ...), to actions (E, A), float32.

    Attributes:
        example_noise: The noise of one episode, (...).
    """

    def __init__(self, *arguments: Any, example_noise: np.ndarray) -> None:
        """Takes what a `PortablePolicy` takes, and an example of the noise."""
        super().__init__(*arguments)
        self.example_noise = torch.tensor(example_noise, dtype=torch.float32)

    # As below
    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:  # type: ignore[override]
        """The actions (E, A) for observations (E, S), drawn by noise (E, ...)."""
        return self.unscaled(self._policy(self.network, self.normalised(observations), noise))


class PortableSequencePolicy(PortablePolicy):
    """From windows of K steps of E episodes to the actions (E, K, A) at each of their steps, float32."""

    output = "next_actions"

    def __init__(self, *arguments: Any, reward_scale: float) -> None:
        """Takes what a `PortablePolicy` takes, and the factor on returns."""
        super().__init__(*arguments)
        self.reward_scale = reward_scale

    # Like any module of PyTorch's: what it takes is its own affair
    def forward(  # type: ignore[override]
        self, observations: Tensor, actions: Tensor, returns: Tensor, timesteps: Tensor
    ) -> Tensor:
        """The actions (E, K, A); that of a step depends on what stands before it, and on its observation and return.

        Args:
            observations: (E, K, S).
            actions: (E, K, A), those taken; of the present step and of those to come, anything.
            returns: (E, K), what was still to be earned at each step, in the environment's own unit.
            timesteps: (E, K), whole numbers: each step's number in its episode, from 0.
        """
        to_go = (returns * self.reward_scale).to(torch.float32)
        actions = actions.to(torch.float32)
        scaled = (actions - self.action_mean) / self.action_std if self.scales else actions
        return self.unscaled(self._policy(self.network, self.normalised(observations), scaled, to_go, timesteps))


def example_inputs(policy: PortablePolicy, shape: Shape, action_dim: int) -> dict[str, Tensor]:
    """Inputs of the right shapes and types by name, of two episodes."""
    observations = torch.zeros(2, *axes(shape))
    if isinstance(policy, PortableSampledPolicy):
        return {"observations": observations, "noise": torch.stack([policy.example_noise] * 2)}
    if not isinstance(policy, PortableSequencePolicy):
        return {"observations": observations}
    steps = policy.network.hp.seq_len
    shapes = {"observations": (2, steps, *axes(shape)), "actions": (2, steps, action_dim), "returns": (2, steps)}
    timesteps = torch.arange(steps).expand(2, -1).contiguous()
    return {**{name: torch.zeros(shape) for name, shape in shapes.items()}, "timesteps": timesteps}


# ---- formats -------------------------------------------------------------------------------------------------------


def _program(policy: PortablePolicy, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    """The policy as a graph, for any number of episodes."""
    episodes = Dim("episodes")
    shapes = {name: {0: episodes} for name in inputs}
    return torch.export.export(policy.eval(), tuple(inputs.values()), dynamic_shapes=shapes)


def to_onnx(policy: PortablePolicy, inputs: Mapping[str, Tensor], metadata: Metadata) -> bytes:
    """The policy for ONNX Runtime; the metadata as the model's properties, each value as JSON.

    Raises:
        InputError: The packages that it takes are missing.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch.onnx writes with it)
    except ImportError as error:
        raise InputError(f"ONNX needs {error.name}: pip install 'corl-twins[export]'") from error
    names = {"input_names": list(inputs), "output_names": [policy.output]}
    # It reports of packages that it could do more with, and of its own use of PyTorch.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Of a graph that is one already it would forget the name of the free size.
        free = {"dynamic_shapes": {name: {0: "episodes"} for name in inputs}}
        program = torch.onnx.export(policy.eval(), tuple(inputs.values()), dynamo=True, verbose=False, **free, **names)
    model = program.model_proto
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in metadata.items()})
    return model.SerializeToString()


def to_torchscript(policy: PortablePolicy, inputs: Mapping[str, Tensor], metadata: Metadata) -> bytes:
    """The policy for `torch.jit.load`, in C++ too; the metadata as JSON in the extra file `metadata.json`."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        # PyTorch goes on to torch.export, whose files need Python; TorchScript is what runs without.
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.trace(policy.eval(), tuple(inputs.values()))
        torch.jit.save(script, content, _extra_files={"metadata.json": json.dumps(metadata)})
    return content.getvalue()


def to_npz(policy: PortablePolicy, inputs: Mapping[str, Tensor], metadata: Metadata) -> bytes:
    """The policy's weights under PyTorch's names, and how to compute with them, for NumPy alone.

    Raises:
        InputError: The policy is a sequence model.
    """
    if isinstance(policy, PortableSequencePolicy):
        raise InputError("npz holds networks without memory, and this one is a transformer: export it as onnx")
    steps, arrays = recipe(_program(policy, inputs), list(inputs), policy.output)
    content = io.BytesIO()
    entries: dict[str, Any] = {**arrays, "recipe": json.dumps(steps), "metadata": json.dumps(metadata)}
    np.savez(content, **entries)
    return content.getvalue()
