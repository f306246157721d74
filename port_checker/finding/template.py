"""Prints a file to start a port from: the functions that the checker calls, with empty bodies."""

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flax import linen as nn

from parity_tests.ladder.scene import Scene
from parity_tests.losses import state_of
from parity_tests.pair import Pair
from port_checker.finding.port import joint_name, reference_parts
from shared.frameworks.exchange import Named, torch_part

HEADER = '''"""{title} in JAX: my port. docs/port/check.md says what each function is given and must give.

    corl-twins check THIS_FILE.py --algorithm {name}

{sizes}
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
'''


def template(pair: Pair) -> str:
    """The source of a file with every function of the contract, with arguments and shapes in docstrings.

    The shapes are for the ladder's default settings.
    """
    scene = Scene.create(pair, pair.jax, "default", "bundled", warm=False)
    sizes = _Sizes(scene)
    title = _doc(pair.jax).partition(" in JAX")[0]
    pieces = [
        HEADER.format(title=title, name=pair.name, sizes=sizes.legend(pair)),
        *_networks(pair),
        _state(pair, scene, sizes),
        _function("create_train_state", "key, config, state_dim, action_dim, max_action", _CREATE),
        _function("outputs", "state, batch", _outputs_doc(pair, scene, sizes)),
        *_noise(pair),
        _draws(pair, scene),
        *_losses(pair, scene, sizes),
        _update(pair, scene),
    ]
    return "\n\n".join(pieces)


_CREATE = (
    "A fresh state: weights, targets that equal them, and optimisers' states.\n\n"
    "`config` has every setting of the reference, `config.discount` say."
)

_DRAWS = (
    "Optional: delete it, and draws are not checked.\n\n"
    "(indices, noise) for update `step`, from `key` and `step` alone. The indices are row numbers (B,) below\n"
    "`dataset_size`. The noise is a named tuple or a dict with what is listed above."
)


class _Sizes:
    """Letters for the sizes of a scene."""

    def __init__(self, scene: Scene) -> None:
        state_dim, action_dim, _ = scene.sizes
        self.batch = scene.config.batch_size
        self.letters = {self.batch: "B", state_dim: "S", action_dim: "A", state_dim + action_dim: "S+A"}

    def show(self, shape: tuple[int, ...]) -> str:
        """Formats a shape, such as `(B, A)`."""
        words = [self.letters.get(size, str(size)) for size in shape]
        return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"

    def legend(self, pair: Pair) -> str:
        """Explains the letters, and names the settings that give the other sizes."""
        letters = ", ".join(f"{letter} = {size}" for size, letter in self.letters.items())
        settings = ", ".join(f"{name}={value}" for name, value in pair.variants["default"].items())
        text = f"Shapes, in the check's first batch: {letters}"
        return textwrap.fill(f"{text}{', under ' + settings if settings else ''}.", 118)


def _doc(part: Any) -> str:
    """The docstring of a part of the twin."""
    return inspect.getdoc(part) or ""


def _function(name: str, arguments: str, doc: str) -> str:
    body = textwrap.indent(f'"""{doc.strip()}' + ('\n"""' if "\n" in doc.strip() else '"""'), "    ")
    return f"def {name}({arguments}):\n{body}\n    raise NotImplementedError\n"


def _networks(pair: Pair) -> Iterator[str]:
    """The reference's modules, under its names; a port may use other names."""
    for name, kind in vars(pair.jax).items():
        if inspect.isclass(kind) and issubclass(kind, nn.Module) and kind.__module__ == pair.jax.__name__:
            fields = [field for field in inspect.get_annotations(kind) if field not in ("parent", "name")]
            arguments = ", ".join(inspect.signature(kind.__call__).parameters)
            call = textwrap.indent(_function("__call__", arguments, _doc(kind.__call__)), "    ")
            lines = [f"class {name}(nn.Module):", f'    """{_doc(kind)}"""', ""]
            lines += [f"    {field}: Any" for field in fields]
            yield "\n".join([*lines, *([""] if fields else []), "    @nn.compact", call])


def _state(pair: Pair, scene: Scene, sizes: _Sizes) -> str:
    """A named tuple of the parts, with the reference's tensors in comments."""
    lines = [
        "class State(NamedTuple):",
        '    """All that an update reads and writes; the comments list PyTorch\'s tensors."""',
        "",
    ]
    for name in reference_parts(pair):
        if not name.endswith("_optimizer"):
            lines += [f"    # {text}" for text in textwrap.wrap(_tensors(torch_part(scene.trainer, name), sizes), 112)]
        lines.append(f"    {name}: Any")
    return "\n".join(lines) + "\n"


def _tensors(named: Named, sizes: _Sizes) -> str:
    shapes = {name: sizes.show(value.shape) if value.shape else "without axes" for name, value in named.items()}
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _outputs_doc(pair: Pair, scene: Scene, sizes: _Sizes) -> str:
    indices, _ = next(scene.draws())
    with torch.no_grad():
        found = pair.outputs(scene.trainer, scene.torch_batch(indices))
    lines = [f"{name!r}: {sizes.show(tuple(value.shape))}" for name, value in pair.networks_of(found).items()]
    return "Every network's output by name.\n\n" + "\n".join(lines)


def _losses(pair: Pair, scene: Scene, sizes: _Sizes) -> Iterator[str]:
    kind = state_of(pair.jax)
    extra = pair.extra_inputs(np.random.default_rng(0), sizes.batch)
    for name, loss in pair.losses.items():
        by = joint_name(loss.of)
        doc = [_doc(getattr(kind, name)), "", f"A scalar, differentiated by {' and '.join(loss.of)}"]
        doc[-1] += f": `{by}` is a tuple of both." if len(loss.of) > 1 else "."
        doc += [
            f"{given}: {sizes.show(np.shape(extra[given]))}".replace("()", "a scalar")
            for given in loss.inputs
            if given in extra
        ]
        yield _function(name, ", ".join([by, "state", "config", *loss.inputs]), "\n".join(doc))


def _noise(pair: Pair) -> Iterator[str]:
    """Lists the fields of the noise, from the comments in the twin."""
    fields = re.findall(r"((?:    #.*\n)+)    (\w+):", inspect.getsource(pair.jax.Noise))
    lines = [f"- noise.{name}: {' '.join(text.replace('#', ' ').split())}" for text, name in fields]
    wrapped = [textwrap.fill(line, 118, initial_indent="# ", subsequent_indent="#   ") for line in lines]
    if wrapped:
        yield "\n".join(wrapped) + "\n"


def _draws(pair: Pair, scene: Scene) -> str:
    statics: Mapping[str, Any] = pair.draw_statics(scene.config, 1)
    doc = [_DRAWS, *(f"{name}: a bool, known when the draws are compiled." for name in statics)]
    arguments = ["key", "step", "config", "dataset_size", "action_dim", *statics]
    return _function("draw_noise", ", ".join(arguments), "\n".join(doc))


def _update(pair: Pair, scene: Scene) -> str:
    kind = state_of(pair.jax)
    statics: Mapping[str, Any] = pair.update_statics(scene.config, 1)
    doc = [_doc(kind.update), "", "The next state, or (state, metrics)."]
    doc += [f"{name}: a bool, known when the update is compiled." for name in statics]
    return _function("update", ", ".join(["state", "config", "batch", "noise", *statics]), "\n".join(doc))
