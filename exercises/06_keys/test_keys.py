"""Draws are of PyTorch's kind: independent of each other and of those before."""

from types import ModuleType

import jax
import numpy as np

SIZES = (1000, 300, 4)


def test_shapes_and_kinds_are_pytorch_s(exercise: ModuleType, fragment: ModuleType) -> None:
    """Indices within the dataset, standard normal noise."""
    ours, theirs = exercise.draw(jax.random.key(0), 1, *SIZES), fragment.draw(*SIZES)
    assert [x.shape for x in ours] == [tuple(x.shape) for x in theirs], "shapes differ"
    assert 0 <= ours[0].min() < 10 < 290 < ours[0].max() < 300, "indices do not cover the dataset"
    for noise in ours[1:]:
        np.testing.assert_allclose([noise.mean(), noise.std()], [0.0, 1.0], atol=0.1)


def test_two_noises_are_two(exercise: ModuleType) -> None:
    """The target policy's and the policy's have nothing to do with each other."""
    _, target, actor = exercise.draw(jax.random.key(0), 1, *SIZES)
    correlation = np.corrcoef(np.ravel(target), np.ravel(actor))[0, 1]
    assert abs(correlation) < 0.1, f"the two noises have a correlation of {correlation:.2f}"


def test_every_update_draws_anew(exercise: ModuleType) -> None:
    """Batch and noise."""
    first, second = (exercise.draw(jax.random.key(0), step, *SIZES) for step in (1, 2))
    assert not any((x == y).all() for x, y in zip(first, second, strict=True)), "two updates draw the same"


def test_an_update_s_draws_depend_on_its_number_alone(exercise: ModuleType) -> None:
    """However the updates are grouped: one by one, or all at once."""
    key = jax.random.key(0)
    together = jax.vmap(lambda step: exercise.draw(key, step, *SIZES))(np.arange(3))
    alone = exercise.draw(key, 2, *SIZES)
    for x, y in zip(together, alone, strict=True):
        np.testing.assert_allclose(x[2], y, rtol=1e-12)
