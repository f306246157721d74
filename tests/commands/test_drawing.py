"""Common parts of pictures of many runs: colours that everybody can distinguish, and ticks with distinct labels."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure

from shared.commands.reporting.drawing import COLOURS, MARKERS, looks, wrapped
from shared.runs.curves import count_updates

# Linear sRGB as seen without the long, the middle or the short wavelengths (Machado et al. 2009)
EYES = {
    "all": np.eye(3),
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no middle": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour: str) -> np.ndarray:
    """Linear sRGB (3,) of `#rrggbb`."""
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB (3,), in which a distance of 2 is barely visible."""
    relative = TO_XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    x, y, z = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES)
def test_colours_can_be_told_apart(eye: str) -> None:
    seen = {colour: lab(np.array(EYES[eye]) @ linear(colour)) for colour in COLOURS}
    for first, second in combinations(COLOURS, 2):
        assert np.linalg.norm(seen[first] - seen[second]) > 15, (first, second)


def test_colours_stand_out_from_white() -> None:
    """With a contrast of 3 to 1, which WCAG 2.1 requires of what must be seen."""
    assert all(1.05 / (TO_XYZ[1] @ linear(colour) + 0.05) >= 3 for colour in COLOURS)


def test_an_algorithm_has_its_look_whichever_others_are_there() -> None:
    """Unless two prefer the same look; no two algorithms ever share one."""
    names = [f"algorithm {number}" for number in range(len(COLOURS) * len(MARKERS))]
    assert len(set(looks(names).values())) == len(names)
    assert len({look.colour for look in looks(names[:8]).values()}) == len(COLOURS)
    alone = {name: looks([name])[name] for name in names}
    pair = next((a, b) for a, b in combinations(names, 2) if alone[a] != alone[b])
    assert looks(pair) == {name: alone[name] for name in pair}
    assert looks([*names, "one too many"])["one too many"] in looks(names).values()


@pytest.mark.parametrize("last", [1, 4, 12, 2500, 3000, 12_500, 1_000_000])
def test_no_two_ticks_read_the_same(last: int) -> None:
    """From a handful of updates to a million; each tick is a whole number."""
    figure = Figure(figsize=(2.0 if last % 4 else 7.0, 3.0))
    axes = figure.subplots()
    axes.plot([last // 5, last], [0.0, 1.0])
    count_updates(axes)
    figure.canvas.draw()
    ticks = [(tick, label.get_text()) for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)]
    assert len({text for _, text in ticks}) == len(ticks) > 1
    assert all(tick == round(tick) for tick, _ in ticks)
    assert ("1k" in {text for _, text in ticks}) == (1000.0 in {tick for tick, _ in ticks})


def test_names_have_lines_of_a_phones_width() -> None:
    name = "IQL (batch_size=256, discount=0.995, iql_tau=0.7, inverse_temperature=3.0), PyTorch"
    assert max(map(len, wrapped(name).splitlines())) <= 40
    assert wrapped(name).replace("\n", " ") == name
