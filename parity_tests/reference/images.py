"""Observations for derivations: vectors, or images with d3rlpy's convolutions."""

from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.reference.common import ROWS, STATE_DIM, mlp
from parity_tests.reference.d3rlpy import tried
from shared.data.transitions import Batch

# Channels, kernel and stride of each layer
LAYERS = {"nature": [(32, 8, 4), (64, 4, 2), (64, 3, 1)], "minatar": [(16, 3, 1)]}
SHAPES: dict[str, tuple[int, ...]] = {"none": (STATE_DIM,), "nature": (2, 44, 40), "minatar": (4, 6, 5)}
# Cases with images for each derivation
IMAGES: dict[str, dict[str, Any]] = {
    "images": {"encoder": "minatar", "hidden_dims": (20,)},
    "larger images": {"encoder": "nature"},
}


class Convolutions(nn.Module):
    """d3rlpy's convolutions of bytes, in its order of draws: at the end it runs a random image to count features."""

    def __init__(self, encoder: str) -> None:
        super().__init__()
        channels, *_ = SHAPES[encoder]
        self.layers = nn.ModuleList()
        for outputs, kernel, stride in LAYERS[encoder]:
            self.layers.append(nn.Conv2d(channels, outputs, kernel, stride))
            channels = outputs
        self.width = self(torch.rand(1, *SHAPES[encoder])).shape[1]

    def forward(self, images: Tensor) -> Tensor:
        """Computes features, channel by channel."""
        x = images / 255
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.flatten(1)


def reader(encoder: str) -> tuple[nn.Module, int]:
    """The module that reads an observation before all other layers, and the number of its features."""
    if encoder == "none":
        return nn.Identity(), STATE_DIM
    eyes = Convolutions(encoder)
    return eyes, eyes.width


def shape_of(settings: Any) -> Any:
    """The observation shape under these settings, as twins take it."""
    encoder = settings.get("encoder", "none")
    return STATE_DIM if encoder == "none" else SHAPES[encoder]


def layers(config: Any, *outputs: int) -> list[Any]:
    """d3rlpy's network: an encoder and hidden layers, through which it runs random rows, then its heads."""
    if config.encoder == "none":
        return tried(config.hidden_dims, (STATE_DIM,), *outputs)
    reader = Convolutions(config.encoder)
    widths = [reader.width, *config.hidden_dims]
    body = nn.Sequential(reader, mlp(*widths, end=nn.ReLU()))
    torch.rand(2, *SHAPES[config.encoder])
    return [body, *(nn.Linear(widths[-1], output) for output in outputs)]


def shown(choices: Batch, settings: Any) -> Batch:
    """The batch, with images in place of vectors if there is an encoder."""
    if (shape := shape_of(settings)) == STATE_DIM:
        return choices
    generator = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (ROWS, *shape), dtype=torch.uint8, generator=generator) for _ in range(2)]
    return choices._replace(observations=images[0], next_observations=images[1])


def moved(images: Tensor, padding: int) -> Tensor:
    """Pads each image with its edges, then crops it to its original size at a place drawn from torch's generator."""
    padded = torch.nn.functional.pad(images.float(), [padding] * 4, mode="replicate").to(images.dtype)
    *_, height, width = images.shape
    corners = torch.randint(0, 2 * padding + 1, (len(images), 2)).tolist()
    cut = [image[:, y : y + height, x : x + width] for image, (y, x) in zip(padded, corners, strict=True)]
    return torch.stack(cut)
