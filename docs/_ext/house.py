"""The map of the house, drawn from its imports.

A box is a room with its package's docstring. An arrow leads from a room to one that it imports, unless other arrows
already connect them. The picture stores what it shows, so that `make derived` redraws it only after a change.
"""

import importlib
import io
import json
import textwrap
import tomllib
from pathlib import Path

import grimp
import networkx as nx
from matplotlib.figure import Figure
from PIL import Image, PngImagePlugin

from boxes import BLUE, ORANGE, arrow, box

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "figures" / "house.png"
GROUND = "the ground"
# The key under which a picture stores its rooms and arrows
TEXT = "house"
# The size of a box and of the gap between floors, in inches
WIDTH, HEIGHT, GAP = 4.0, 0.74, 0.36


def room_of(module: str) -> str:
    """The room of a module: a package, or in `shared` one of its folders; single files there are the ground."""
    package, _, rest = module.partition(".")
    if package != "shared":
        return package
    folder = rest.partition(".")[0]
    if folder == "__main__":
        return "shared.commands"
    is_folder = (ROOT / "shared" / folder).is_dir()
    return f"shared.{folder}" if folder and is_folder else GROUND


def rooms() -> nx.DiGraph:
    """The rooms and their imports, without arrows that follow from others.

    Raises:
        networkx.NetworkXError: The arrows form a cycle.
    """
    with (ROOT / "pyproject.toml").open("rb") as file:
        packages = tomllib.load(file)["tool"]["importlinter"]["root_packages"]
    imports, graph = grimp.build_graph(*packages), nx.DiGraph()
    for importer in sorted(imports.modules):
        graph.add_node(room_of(importer))
        for imported in sorted(imports.find_modules_directly_imported_by(importer)):
            if room_of(importer) != room_of(imported):
                graph.add_edge(room_of(importer), room_of(imported))
    return nx.transitive_reduction(graph)


def remembered(graph: nx.DiGraph) -> str:
    """The state of the drawing, with the rooms that it shows."""
    return json.dumps({"rooms": {room: described(room) for room in sorted(graph)}, "arrows": sorted(graph.edges)})


def described(room: str) -> str:
    """A room's purpose, from its docstring."""
    if room == GROUND:
        return "Names of datasets, writing files, checksums, errors."
    return (importlib.import_module(room).__doc__ or "").partition("\n")[0]


def draw(graph: nx.DiGraph) -> bytes:
    """Draws a PNG in which each floor imports from the floors below it."""
    # A room is as low as its imports allow.
    floors = [sorted(floor) for floor in nx.topological_generations(graph.reverse())]
    step, wide = HEIGHT + GAP, max(map(len, floors)) * (WIDTH + GAP)
    places = {
        room: ((number - (len(floor) - 1) / 2) * (WIDTH + GAP), level * step)
        for level, floor in enumerate(floors)
        for number, room in enumerate(floor)
    }
    figure = Figure(figsize=(wide, len(floors) * step), dpi=130, layout="constrained")
    axis = figure.subplots()
    for room, (x, y) in places.items():
        text = textwrap.fill(described(room).replace("`", ""), 68)
        axis.text(x, y + 0.17, room.replace("shared.", "shared/"), ha="center", va="center", fontsize=10, weight="bold")
        axis.text(x, y - 0.12, text, ha="center", va="center", fontsize=7.5)
        box(axis, (x, y), (WIDTH, HEIGHT), BLUE if room.startswith("shared.") or room == GROUND else ORANGE)
    for upper, lower in graph.edges:
        (x, y), (to_x, to_y) = places[upper], places[lower]
        arrow(axis, (x, y - HEIGHT / 2), (to_x, to_y + HEIGHT / 2))
    axis.set_xlim(-wide / 2, wide / 2)
    axis.set_ylim(-0.5 * step, (len(floors) - 0.5) * step)
    axis.set_axis_off()
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def current() -> bytes:
    """The current picture, or a new one if the current one shows outdated imports."""
    graph = rooms()
    with Image.open(PICTURE) as there:
        if there.text.get(TEXT) == remembered(graph):
            return PICTURE.read_bytes()
    texts, drawn = PngImagePlugin.PngInfo(), io.BytesIO()
    texts.add_itxt(TEXT, remembered(graph))
    image = Image.open(io.BytesIO(draw(graph))).convert("P", palette=Image.Palette.ADAPTIVE)
    image.save(drawn, "png", optimize=True, pnginfo=texts)
    return drawn.getvalue()
