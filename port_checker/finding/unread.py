"""Finds the ladder's settings that a file never reads: CORL's CQL is 256 wide, and a port for vectors has no images."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from parity_tests.ladder import rungs
from parity_tests.ladder.rungs import TRAJECTORY_UPDATES
from parity_tests.ladder.scene import Scene
from port_checker.finding.loading import NotWrittenError
from port_checker.finding.port import OwnTwin, Port
from port_checker.finding.questions import draw_inputs, update_inputs
from shared.errors import InputError
from shared.frameworks.exchange import blank_state


def unread(port: Port, variants: tuple[str, ...]) -> frozenset[str]:
    """The settings in which these variants differ from the defaults, and which the file never reads under any of them.

    Settings that the reference's updates do not read either, such as a dataset's, are left out.
    """
    if isinstance(port, OwnTwin):
        # It reads them all, from a config without a record.
        return frozenset()
    pair = port.pair
    varied = {name for variant in variants for name in pair.variants[variant]}
    # A file that draws nothing is given the ladder's small batches.
    varied |= {"batch_size"} if port.has("draw_noise") else set()
    scenes = [Scene.create(pair, pair.jax, variant, "bundled", warm=False) for variant in variants]
    plain = Scene.create(pair, pair.jax, variants[0], "bundled", warm=False, left=frozenset(varied))
    for scene in (*scenes, plain):
        # The defaults are tried last, for a file that creates a state only under them.
        if scene is not plain or not port.created:
            _trace(port, scene)
    if "__dict__" in port.asked or not port.created:
        # It reads all settings at once, or stops before it has read them, so that nothing is known.
        return frozenset()
    told = {name for scene in scenes for name in varied if _arguments(scene, plain, name) & port.asked}
    twin = Port(pair.name, pair.jax, pair)
    for scene in scenes:
        blank_state(pair.jax, twin.settings(scene.jax_config), *scene.sizes)
    return frozenset(varied & twin.asked - port.asked - told)


def distinct(port: Port, variants: tuple[str, ...]) -> tuple[str, ...]:
    """The variants that differ in settings that the file reads; the first of those that do not differ for it."""
    if not port.left:
        return variants
    found: dict[str, str] = {}
    for variant in variants:
        settings = port.pair.variants[variant]
        found.setdefault(repr(sorted((name, settings[name]) for name in settings.keys() & port.asked)), variant)
    return tuple(found.values())


def _trace(port: Port, scene: Scene) -> None:
    """Runs everything in the file at its own fresh weights; errors are ignored here and reported when it is checked."""
    with suppress(InputError, NotWrittenError):
        state = port.fresh(scene.jax_config, scene.sizes)
        if isinstance(scene.sizes[0], tuple):
            # A file may also recognise image observations by their shape.
            port.asked.add("encoder")
        for call in _calls(port, scene, state):
            with suppress(InputError, NotWrittenError):
                call()


def _calls(port: Port, scene: Scene, state: Any) -> Iterator[partial]:
    given, _ = rungs.inputs(scene)
    given["config"] = scene.jax_config
    yield partial(port.outputs, state, given)
    for name in scene.losses():
        yield partial(_loss, port, name, state, given)
    phases = _phases(scene)
    for step, (indices, noise) in enumerate(islice(scene.draws(), TRAJECTORY_UPDATES), start=1):
        if phases.index(phases[step - 1]) == step - 1:
            yield partial(port.update, state, update_inputs(scene, indices, noise, step))
    if port.has("draw_noise"):
        yield partial(port.draws, draw_inputs(scene, 0, 1))


def _loss(port: Port, name: str, state: Any, given: Mapping[str, Any]) -> None:
    port.loss(name, state, given, port.differentiated(name, state))


def _phases(scene: Scene) -> Sequence[Mapping[str, Any]]:
    """The flags that depend on a step's number, for each step of a trajectory."""
    steps, pair = range(1, 1 + TRAJECTORY_UPDATES), scene.pair
    return [pair.update_statics(scene.config, step) | pair.draw_statics(scene.config, step) for step in steps]


def _arguments(scene: Scene, plain: Scene, name: str) -> set[str]:
    """The arguments of an update that convey a setting: `delayed` tells a port what `policy_freq` is."""
    other = replace(scene, config=replace(scene.config, **{name: getattr(plain.config, name)}))
    pairs = zip(_phases(scene), _phases(other), strict=True)
    return {key for ours, theirs in pairs for key in ours if ours[key] != theirs.get(key)}
