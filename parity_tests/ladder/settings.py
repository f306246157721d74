"""Compares the settings of both twins by name."""

import dataclasses

from parity_tests.pair import Pair


def unequal_settings(pair: Pair) -> list[str]:
    """The first setting of each class that differs in name, order, type, default or bounds: `TrainConfig.alpha`."""
    found = []
    for name in ("TrainConfig", "Hyperparameters"):
        ours, reference = (
            [(f.name, f.type, f.default, f.metadata.get("words")) for f in dataclasses.fields(getattr(twin, name))]
            for twin in (pair.jax, pair.torch)
        )
        places = range(max(len(ours), len(reference)))
        first = next((i for i in places if ours[i : i + 1] != reference[i : i + 1]), None)
        if first is not None:
            found.append(f"{name}.{(reference[first:] or ours[first:])[0][0]}")
    return found
