"""The map of the house matches the current imports."""

import networkx as nx
import pytest

import house


@pytest.mark.parametrize(
    ("module", "room"),
    [
        ("shared.names", house.GROUND),
        ("shared", house.GROUND),
        ("shared.__main__", "shared.commands"),
        ("shared.data.hdf5", "shared.data"),
        ("corl_jax.finetune.iql", "corl_jax"),
    ],
)
def test_a_module_stands_in_its_room(module: str, room: str) -> None:
    assert house.room_of(module) == room


def test_what_follows_from_other_arrows_is_left_out() -> None:
    graph = house.rooms()
    assert ("corl_jax", "shared.frameworks") in graph.edges
    assert ("corl_jax", "shared.runs") not in graph.edges
    assert nx.has_path(graph, "corl_jax", house.GROUND)


def test_every_room_says_what_it_is_for() -> None:
    assert all(house.described(room) for room in house.rooms())
