"""Exports a policy to one file that works without this project: ONNX, TorchScript, or NumPy arrays with a recipe.

In all formats, the input is the environment's observation, and the output is the environment's action. The file
includes the normalisation of states and the scaling of actions.
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

from shared.envs.boxes import NEUTRAL, ActionUnits
from shared.envs.spaces import Shape, axes
from shared.errors import InputError
from shared.frameworks.recipe import recipe

Metadata = Mapping[str, Any]


class PortablePolicy(nn.Module):
    """Maps observations (E, S) of E episodes to actions (E, A), float32.

    Attributes:
        output: The name of the result in files.
        scales: Whether the network's actions are in other units than the environment's.
        clips: Whether actions are clipped to their box, because scaling them may round beyond it.
    """

    output = "actions"

    def __init__(
        self,
        policy: Callable[..., Tensor],
        network: nn.Module,
        mean: np.ndarray,
        std: np.ndarray,
        units: ActionUnits = NEUTRAL,
    ) -> None:
        """Wraps a network without changing it.

        Args:
            policy: The twin's function `policy`, from the network and normalised observations to actions.
            network: The actor, or a sequence model.
            mean: (S,).
            std: (S,).
            units: Converts the policy's actions to the environment's.
        """
        super().__init__()
        self._policy, self.network = policy, network
        # In double precision, like the evaluator's normalisation, which rounds last
        self.register_buffer("state_mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("state_std", torch.tensor(std, dtype=torch.float64))
        self.scales, self.clips = not units.are_neutral, False
        if self.scales:
            self.register_buffer("action_mean", torch.tensor(units.mean))
            self.register_buffer("action_std", torch.tensor(units.std))
        if self.scales and units.box is not None:
            self.clips = True
            self.register_buffer("action_low", torch.tensor(units.box.low))
            self.register_buffer("action_high", torch.tensor(units.box.high))

    def normalised(self, observations: Tensor) -> Tensor:
        """Normalises observations (..., S) for the network."""
        return ((observations - self.state_mean) / self.state_std).to(torch.float32)

    def unscaled(self, actions: Tensor) -> Tensor:
        """Converts the network's actions (..., A) to the environment's."""
        actions = actions * self.action_std + self.action_mean if self.scales else actions
        return torch.clamp(actions, self.action_low, self.action_high) if self.clips else actions

    def forward(self, observations: Tensor) -> Tensor:
        """The actions (E, A) for observations (E, S)."""
        return self.unscaled(self._policy(self.network, self.normalised(observations)))


class PortableSampledPolicy(PortablePolicy):
    """Maps observations (E, S) of E episodes, and noise (E, ...), to actions (E, A), or chunks (E, h, A), float32.

    Attributes:
        example_noise: An example of the noise of one episode, (...).
    """

    def __init__(self, *arguments: Any, example_noise: np.ndarray) -> None:
        """Takes the arguments of a `PortablePolicy`, and an example of the noise."""
        super().__init__(*arguments)
        self.example_noise = torch.tensor(example_noise, dtype=torch.float32)

    # See PortableSequencePolicy
    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:  # type: ignore[override]
        """The actions (E, A) for observations (E, S), sampled with noise (E, ...)."""
        return self.unscaled(self._policy(self.network, self.normalised(observations), noise))


class PortableGoalPolicy(PortablePolicy):
    """Maps observations (E, S) and goals (E, S) of E episodes to actions (E, A), float32."""

    # See PortableSequencePolicy
    def forward(self, observations: Tensor, goals: Tensor) -> Tensor:  # type: ignore[override]
        """The actions (E, A) for observations (E, S) and goals (E, S), which are observations too."""
        return self.unscaled(self._policy(self.network, self.normalised(observations), self.normalised(goals)))


class PortableSequencePolicy(PortablePolicy):
    """Maps windows of K steps of E episodes to the actions (E, K, A) at each step, float32."""

    output = "next_actions"

    def __init__(self, *arguments: Any, reward_scale: float) -> None:
        """Takes the arguments of a `PortablePolicy`, and the factor on returns."""
        super().__init__(*arguments)
        self.reward_scale = reward_scale

    # Modules of PyTorch may choose their own arguments.
    def forward(  # type: ignore[override]
        self, observations: Tensor, actions: Tensor, returns: Tensor, timesteps: Tensor
    ) -> Tensor:
        """The actions (E, K, A); each depends on the steps before it, and on its own observation and return.

        Args:
            observations: (E, K, S).
            actions: (E, K, A), those taken so far; values at the present and later steps are ignored.
            returns: (E, K), the return-to-go at each step, in the environment's own unit.
            timesteps: (E, K), integers: each step's number in its episode, from 0.
        """
        to_go = (returns * self.reward_scale).to(torch.float32)
        actions = actions.to(torch.float32)
        scaled = (actions - self.action_mean) / self.action_std if self.scales else actions
        return self.unscaled(self._policy(self.network, self.normalised(observations), scaled, to_go, timesteps))


def example_inputs(policy: PortablePolicy, shape: Shape, action_dim: int) -> dict[str, Tensor]:
    """Example inputs by name, with the right shapes and types for two episodes."""
    observations = torch.zeros(2, *axes(shape))
    if isinstance(policy, PortableSampledPolicy):
        return {"observations": observations, "noise": torch.stack([policy.example_noise] * 2)}
    if isinstance(policy, PortableGoalPolicy):
        return {"observations": observations, "goals": torch.zeros_like(observations)}
    if not isinstance(policy, PortableSequencePolicy):
        return {"observations": observations}
    steps = policy.network.hp.seq_len
    shapes = {"observations": (2, steps, *axes(shape)), "actions": (2, steps, action_dim), "returns": (2, steps)}
    timesteps = torch.arange(steps).expand(2, -1).contiguous()
    return {**{name: torch.zeros(shape) for name, shape in shapes.items()}, "timesteps": timesteps}


# ---- formats -------------------------------------------------------------------------------------------------------


def _program(policy: PortablePolicy, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    """Exports the policy as a graph for any number of episodes."""
    episodes = Dim("episodes")
    shapes = {name: {0: episodes} for name in inputs}
    return torch.export.export(policy.eval(), tuple(inputs.values()), dynamic_shapes=shapes)


def to_onnx(policy: PortablePolicy, inputs: Mapping[str, Tensor], metadata: Metadata) -> bytes:
    """Exports the policy for ONNX Runtime; the metadata become the model's properties, each value as JSON.

    Raises:
        InputError: A required package is missing.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch.onnx writes with it)
    except ImportError as error:
        raise InputError(f"ONNX needs {error.name}: pip install 'corl-twins[export]'") from error
    names = {"input_names": list(inputs), "output_names": [policy.output]}
    # It logs packages that it could use, and its own use of PyTorch.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # From an exported program it would lose the name of the dynamic axis.
        free = {"dynamic_shapes": {name: {0: "episodes"} for name in inputs}}
        program = torch.onnx.export(policy.eval(), tuple(inputs.values()), dynamo=True, verbose=False, **free, **names)
    model = program.model_proto
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in metadata.items()})
    return model.SerializeToString()


def to_torchscript(policy: PortablePolicy, inputs: Mapping[str, Tensor], metadata: Metadata) -> bytes:
    """Exports the policy for `torch.jit.load`, in C++ too; the metadata are JSON in the extra file `metadata.json`."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        # PyTorch recommends torch.export instead, whose files need Python; TorchScript does not.
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.trace(policy.eval(), tuple(inputs.values()))
        torch.jit.save(script, content, _extra_files={"metadata.json": json.dumps(metadata)})
    return content.getvalue()


def to_npz(policy: PortablePolicy, inputs: Mapping[str, Tensor], metadata: Metadata) -> bytes:
    """Exports the policy's weights under PyTorch's names, and a recipe to compute with them in NumPy alone.

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
