"""Both frameworks' search for the nearest rows, compared with all distances in double precision."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from shared.frameworks import jax_neighbours, torch_neighbours
from shared.frameworks.neighbours import search_on

Search = Callable[[np.ndarray, np.ndarray, str], np.ndarray]


def by_torch(rows: np.ndarray, keys: np.ndarray, how: str) -> np.ndarray:
    """Searches in PyTorch."""
    return torch_neighbours.search_among(torch.as_tensor(rows), how).nearest(torch.as_tensor(keys)).numpy()


def by_jax(rows: np.ndarray, keys: np.ndarray, how: str) -> np.ndarray:
    """Searches in JAX, as part of a compiled program."""
    search = jax_neighbours.search_among(jnp.asarray(rows), how)
    return np.asarray(jax.jit(lambda search, keys: search.nearest(keys))(search, jnp.asarray(keys)))


def made_up(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows far from zero, where a difference of squares would lose all digits, and keys among them; float32."""
    rng = np.random.default_rng(seed)
    centre = np.array([1000.0, -500.0, 0.0, 30.0])
    return tuple((centre + rng.normal(size=(n, 4))).astype(np.float32) for n in (rows, 50))  # type: ignore[return-value]


@pytest.mark.parametrize("how", ["tree", "brute"])
@pytest.mark.parametrize("search", [by_torch, by_jax])
# Less than a block of brute force, exactly one block, and two blocks and a few rows
@pytest.mark.parametrize("rows", [7, 16384, 32768 + 5])
def test_the_nearest_row_is_found(search: Search, how: str, rows: int) -> None:
    """Whichever block it is in."""
    table, keys = made_up(rows)
    distances = ((table[None].astype(float) - keys[:, None]) ** 2).sum(axis=-1)
    found = search(table, keys, how)
    assert found.shape == (len(keys),)
    nearest = np.take_along_axis(distances, found[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(nearest, distances.min(axis=1), rtol=1e-3, atol=1e-6)
    assert (found == distances.argmin(axis=1)).mean() > 0.95
    assert rows < 20_000 or found.max() >= 32768 or len(set(found // 16384)) == 2


@pytest.mark.parametrize("how", ["tree", "brute"])
@pytest.mark.parametrize("search", [by_torch, by_jax])
def test_a_row_is_nearest_to_itself(search: Search, how: str) -> None:
    """Including the last one, which is next to the padding of its block."""
    table, _ = made_up(20_001)
    chosen = np.array([0, 16383, 16384, 20_000])
    np.testing.assert_array_equal(search(table, table[chosen], how), chosen)


@pytest.mark.parametrize("how", ["tree", "brute"])
def test_several_seeds_search_in_one_program(how: str) -> None:
    """Their keys are stacked, and the rows are the same."""
    table, keys = made_up(300)
    stacked = jnp.asarray(keys.reshape(5, 10, 4))
    search = jax_neighbours.search_among(jnp.asarray(table), how)
    found = jax.jit(jax.vmap(search.nearest))(stacked)
    np.testing.assert_array_equal(found.reshape(-1), by_jax(table, keys, how))


def test_the_device_chooses() -> None:
    """The tree is on the host, so rows on another device are compared there, unless the user chooses otherwise."""
    table, _ = made_up(300)
    assert isinstance(jax_neighbours.search_among(jnp.asarray(table), "auto"), jax_neighbours.Tree)
    assert isinstance(torch_neighbours.search_among(torch.as_tensor(table), "auto"), torch_neighbours.Tree)
    elsewhere = torch.as_tensor(table).to("meta")
    assert isinstance(torch_neighbours.search_among(elsewhere, "auto"), torch_neighbours.BruteForce)
    assert [search_on("gpu", how) for how in ("auto", "tree", "brute")] == ["brute", "tree", "brute"]
