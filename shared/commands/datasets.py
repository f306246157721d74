"""`corl-twins datasets` lists, describes, verifies, imports, downloads, thins and draws datasets."""

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from matplotlib.figure import Figure

from shared import names
from shared.commands.collecting import thinning
from shared.commands.collecting.writing import write_arrays
from shared.commands.common import Parser
from shared.data import (
    atari_sets,
    checksums,
    download,
    forms,
    minari_sets,
    ogbench_sets,
    remarks,
    sources,
    transitions,
)
from shared.data.cache import Source, nothing_kept, sha256_of
from shared.data.episodes import Episodes, of_rows
from shared.data.hdf5 import declared_shapes
from shared.envs import silhouettes
from shared.envs.registry import make_env, time_limit
from shared.envs.scores import score
from shared.errors import InputError
from shared.files import write_atomically
from shared.runs.curves import drawable, png
from shared.runs.opening import own_env

_DAMAGED = "damaged"
_BINS = 50


def list_datasets(_: argparse.Namespace) -> None:
    """Prints a line for each of D4RL's and the bundled datasets, and for Minari's and OGBench's on this machine."""
    lines = [("id", "family", "rows", "dims", "cached")]
    lines += [_d4rl_line(name) for name in names.D4RL_FACTS]
    lines += [(name, _family(name), *_shape_of_file(names.dataset_path(name)), "bundled") for name in names.bundled()]
    here = minari_sets.local() | ogbench_sets.local()
    lines += [(name, _family(name), *shape, "yes") for name, shape in here.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _d4rl_line(name: str) -> tuple[str, str, str, str, str]:
    path, facts = names.dataset_location(name), names.D4RL_FACTS[name]
    rows = _shape_of_file(path)[0] if path.is_file() else "-"
    return name, _family(name), rows, f"{facts['obs_dim']}+{facts['act_dim']}", "yes" if path.is_file() else "no"


def _family(name: str) -> str:
    """The family in a dataset's name: `hopper` for `hopper-medium-v2`, `mini/hopper-medium-expert` and the like."""
    if name.startswith(names.MINARI):
        return name.removeprefix(names.MINARI).split("/")[-2:][0].partition("-")[0]
    return name.removeprefix(names.OGBENCH).rpartition("/")[2].partition("-")[0]


def _shape_of_file(path: Path) -> tuple[str, str]:
    """The number of rows, and the sizes of states and actions, as a file declares them."""
    try:
        (rows, *states), (_, *actions) = declared_shapes(path, ("observations", "actions")).values()
    except ValueError:  # an InputError, or unexpected shapes
        return _DAMAGED, _DAMAGED
    return f"{rows:,}", f"{_sizes(states)}+{_size(actions)}"


def _sizes(states: Sequence[int]) -> str:
    """The size of a vector, or the channels, height and width of an image."""
    return "x".join(map(str, states))


def _size(actions: Sequence[int]) -> str:
    """The size of an action, from its shape."""
    return "+".join(map(str, actions)) or "finite"


def show(options: argparse.Namespace) -> None:
    """Describes a dataset, what its extraction drops and what looks wrong; may draw its returns.

    Raises:
        InputError: The dataset cannot be read, or its ends of episodes are unknown.
    """
    with nothing_kept():
        source = sources.read(options.id)
    if options.eval_env:
        make_env(options.eval_env).close()  # raises an error for an unknown one
        source.attributes["env_id"] = options.eval_env
    limit = source.max_episode_steps or time_limit(source.attributes.get("env_id", ""))
    episodes = of_rows(source.raw, limit)
    picture = None if options.png is None else _drawn(options.id, options.png, episodes)
    print(f"{options.id}, SHA-256 {source.sha256[:16]}...")
    for topic, words in _description(options.id, source, limit, episodes):
        print(f"{topic + ':':<12}{words}")
    if picture is not None:
        print(f"histogram of returns: {picture}")


def _drawn(name: str, path: Path, episodes: Episodes) -> Path:
    """Draws the returns of a dataset; returns the path of the picture, by default named after the dataset.

    Raises:
        InputError: No episode is complete.
    """
    if not episodes.size:
        raise InputError("no terminal and no time limit ends an episode, so no returns can be drawn: leave out --png")
    path = path if path.name else Path(f"{name.replace('/', '-').replace(':', '-')}-returns.png")
    write_atomically(path, _histogram(episodes.returns, name))
    return path


def _description(name: str, source: Source, limit: int | None, episodes: Episodes) -> Iterator[tuple[str, str]]:
    """Yields a description of a dataset, by topic."""
    raw, lengths = source.raw, episodes.lengths
    rows, states, rewards = len(raw["rewards"]), raw["observations"], raw["rewards"]
    terminals, timeouts = raw["terminals"].astype(bool), transitions.ended_by_time(raw, limit)
    yield "rows", f"{rows:,} of {_sizes(states.shape[1:])} + {_numbers(raw, source.attributes)} ({states.dtype})"
    if episodes.size:
        unfinished = f"after the last, {rows - episodes.size:,} rows of an unfinished one"
        yield "episodes", f"{len(lengths):,} of {lengths.min():,} to {lengths.max():,} rows; {unfinished}"
        returns = episodes.returns
        spread = f"mean {returns.mean():.4g}, std {returns.std():.4g}"
        yield "returns", f"{_range(returns)}, {spread}{_score(name, returns)}"
    else:
        yield "episodes", "none is complete"
    yield "rewards", _range(rewards)
    # The components of images are their channels.
    kind = "component" if states.ndim == 2 else "channel"
    yield "states", f"{_range(states)}; least and greatest of each {kind}:"
    yield from _components(states)
    if raw["actions"].ndim == 2:
        yield "actions", f"{_range(raw['actions'])}; least and greatest of each component:"
        yield from _components(raw["actions"])
    else:
        yield "actions", _chosen(raw["actions"])
    if box := _box(name, source.attributes):
        yield "box", box
    how = "marked" if "timeouts" in raw else f"counted, {limit} steps each"
    yield "terminals", f"{terminals.sum():,} ({terminals.mean():.3%})"
    both = (terminals & timeouts).sum()
    yield "timeouts", f"{timeouts.sum():,} ({timeouts.mean():.3%}), {how}; {both:,} of them on terminals"
    yield "extraction", _dropped(raw, timeouts, limit)
    if not names.has_published_results(name):
        for line in remarks.on_dataset(raw, limit):
            yield "note", line


def _box(name: str, attributes: dict[str, Any]) -> str:
    """The action space of a dataset's environment; empty if it is unknown or not available here."""
    try:
        env_id = own_env(name, attributes)
        env = make_env(env_id)
    except InputError:
        return ""
    space = env.action_space
    env.close()
    if isinstance(space, Discrete):
        return f"{space.n} actions in {env_id}"
    if not isinstance(space, Box):
        return ""
    return f"{_numbers_of(space.low)} to {_numbers_of(space.high)} in {env_id}"


def _numbers_of(bounds: np.ndarray) -> str:
    """A number for each component, or a single number if all are equal."""
    different = np.unique(bounds)
    return f"{different[0]:g}" if len(different) == 1 else f"({', '.join(f'{bound:g}' for bound in bounds.ravel())})"


def _components(values: np.ndarray) -> Iterator[tuple[str, str]]:
    """The smallest and the largest value of each component of a vector, or of each channel of an image."""
    least, greatest = (of(values, axis=(0, *range(2, values.ndim))) for of in (np.min, np.max))
    for index, ends in enumerate(zip(least, greatest, strict=True)):
        yield f"  {index}", "{:.4g} to {:.4g}".format(*ends)


def _chosen(actions: np.ndarray) -> str:
    """How often each finite action was taken."""
    counts = np.bincount(actions)
    shares = [f"{action}: {count / len(actions):.1%}" for action, count in enumerate(counts)]
    most = 20
    others = f", and {len(shares) - most:,} more" if len(shares) > most else ""
    return f"0 to {actions.max()}; {', '.join(shares[:most])}{others}"


def _range(values: np.ndarray) -> str:
    return f"{values.min():.4g} to {values.max():.4g}"


def _score(name: str, returns: np.ndarray) -> str:
    if name not in names.D4RL_FACTS:
        return ""
    return f", D4RL score of the mean {score(returns.mean(), name):.1f}"


def _dropped(raw: dict[str, np.ndarray], timeouts: np.ndarray, limit: int | None) -> str:
    kept, rows = len(transitions.extract_transitions(raw, limit).rewards), len(raw["rewards"])
    if kept == rows:
        return f"keeps all {rows:,} rows: the dataset says what came after each"
    return (
        f"keeps {kept:,} of {rows:,} rows; without a next row of their own: {timeouts[:-1].sum():,} that a time limit "
        "ended, and the last"
    )


def _histogram(returns: np.ndarray, title: str) -> bytes:
    """A histogram of episodes' returns (E,), as a PNG image."""
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.hist(returns, bins=_edges(returns), color="C0")
    axes.set(title=drawable(title), xlabel="return", ylabel="episodes")
    axes.spines[["top", "right"]].set_visible(False)
    return png(figure)


def _edges(returns: np.ndarray) -> list[float]:
    """The rising edges of a histogram's bins: at most as many as returns (E,), and none too narrow for floats."""
    low, high = returns.min(), returns.max()
    if low == high:
        # Half a unit on both sides, or as much as a picture can show for a large number
        margin = max(0.5, 1e-3 * abs(low))
        low, high = low - margin, high + margin
    return np.unique(np.linspace(low, high, min(_BINS, len(returns)) + 1)).tolist()


def verify(options: argparse.Namespace) -> None:
    """Checks files' structure, and their SHA-256 if D4RL's is known; may record unknown ones.

    Raises:
        InputError: A file with a D4RL name has other contents, is not a dataset, or cannot be recorded.
        OSError: The table cannot be written.
    """
    foreign = [word for word in options.files if word.startswith((names.MINARI, names.OGBENCH))]
    paths = [_file(word) for word in options.files if word not in foreign]
    if not options.files:
        paths = _files_here()
    for name in foreign:
        with nothing_kept():
            source = sources.read(name)
        print(f"{name}: {_shape(source.raw, source.attributes)}, SHA-256 {source.sha256}, whole and usable")
    if options.record and (others := foreign + [str(path) for path in paths if not _ids_of(path)]):
        raise InputError(f"cannot record {', '.join(others)}: name files as D4RL names its own")
    good: dict[str, str] = {}
    complaints = []
    for path in paths:
        try:
            good[path.name], line = _verified(path)
            print(line)
        except InputError as error:
            complaints.append(str(error))
    if options.record:
        _record(good)
    if complaints:
        raise InputError("; ".join(complaints))


def _file(word: str) -> Path:
    """The file that a word names: a D4RL id, or a path."""
    return names.dataset_path(word) if word in names.D4RL_FACTS else Path(word)


def _files_here() -> list[Path]:
    """D4RL's files on this machine."""
    here = sorted({path for name in names.D4RL_FACTS if (path := names.dataset_location(name)).is_file()})
    if not here:
        raise InputError(f"none of D4RL's files is in {names.d4rl_folder()}: name a file, or set D4RL_DATASET_DIR")
    return here


def _numbers(raw: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> str:
    """The size of an action; for finite actions, their number as the file states it, or else as it uses them."""
    if (actions := raw["actions"]).ndim == 2:
        return f"{actions.shape[1]} numbers"
    return f"1 of {attributes.get('n_actions', int(actions.max()) + 1)} actions"


def _shape(raw: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> str:
    """The number of rows, and the sizes of states and actions."""
    return f"{len(raw['rewards']):,} rows of {_sizes(raw['observations'].shape[1:])} + {_numbers(raw, attributes)}"


def _ids_of(path: Path) -> list[str]:
    """The D4RL ids whose file has this name."""
    return [name for name in names.D4RL_FACTS if names.d4rl_file(name) == path.name]


def _verified(path: Path) -> tuple[str, str]:
    """A file's SHA-256, and a line that describes the file."""
    raw, attributes = sources.read_file(path)[:2]
    digest = sha256_of([path])
    return digest, f"{path}: {_shape(raw, attributes)}, SHA-256 {digest}, {_verdict(path, raw, digest)}"


def _verdict(path: Path, raw: dict[str, np.ndarray], digest: str) -> str:
    """Says which of D4RL's files it is, or might be.

    Raises:
        InputError: It has the name of a D4RL file, but other contents.
    """
    for file_name, known in checksums.KNOWN.items():
        if known == digest:
            return f"which is D4RL's {_ids_of(Path(file_name))[0]}"
    meant = _ids_of(path)
    if not meant:
        return "not one of D4RL's"
    if path.name in checksums.KNOWN:
        raise InputError(f"{path} is not D4RL's {meant[0]}: its SHA-256 is {digest}; delete it and download it again")
    try:
        download.check_sizes(raw, names.D4RL_FACTS[meant[0]])
    except InputError as error:
        raise InputError(f"{path} is not D4RL's {meant[0]}: {error}; delete it and download it again") from None
    recorded = checksums.recorded().get(path.name)
    if recorded not in (None, digest):
        raise InputError(
            f"{path} is not the recorded file of {meant[0]}: its SHA-256 is {digest}; download it again, or delete its "
            f"line in {checksums.user_table()}"
        )
    return (
        f"as recorded for D4RL's {meant[0]}" if recorded else f"named like D4RL's {meant[0]}, whose bytes are not known"
    )


def _record(digests: dict[str, str]) -> None:
    """Adds digests that are not known yet to the user's table."""
    new = {file_name: digest for file_name, digest in digests.items() if checksums.known(file_name) is None}
    if new:
        checksums.record(new)
    print(f"{len(new)} recorded in {checksums.user_table()}, {len(digests) - len(new)} known before")


def download_dataset(options: argparse.Namespace) -> None:
    """Downloads a D4RL or Minari dataset unless it is here, and prints its path; other datasets must be here.

    Raises:
        InputError: There is no such dataset, or it cannot be downloaded.
    """
    if options.id.startswith(names.MINARI):
        print(minari_sets.path(options.id))
    elif options.id in names.D4RL_FACTS:
        print(download.fetch(options.id))
    elif names.is_atari(options.id):
        print(atari_sets.paths(options.id)["observations"].parent)
    elif options.id.startswith(names.OGBENCH):
        print(ogbench_sets.path(options.id))
    else:
        raise InputError(f"{options.id!r} is not hosted anywhere; {names.nearest(options.id, names.D4RL_FACTS)}")


def import_dataset(options: argparse.Namespace) -> None:
    """Converts data in another form to a file in D4RL's layout, and says how they were interpreted.

    Raises:
        InputError: The data cannot be read or do not say what they are, or the file exists.
        OSError: The file cannot be written.
    """
    _check_new(options.output)
    parts = options.observations.split(",") if options.observations else []
    found = forms.read(options.file, options.trust_pickle, parts, options.dones)
    env_id = {"env_id": options.env_id} if options.env_id else {}
    digest = sha256_of([options.file] if options.file.is_file() else sorted(options.file.glob("*.npz")))
    source = Source(found.arrays, found.attributes, sha256=digest)
    _write(options.output, found.arrays, found.attributes | env_id, source, ["import", str(options.file)])
    for line in found.remarks:
        print(f"note: {line}")
    for line in remarks.on_episodes(found.arrays, None):
        print(f"note: {line}")
    episodes = len(of_rows(found.arrays).starts)
    print(f"{options.output}: {_shape(found.arrays, found.attributes)}, {episodes:,} episodes")
    if not options.env_id and "env_id" not in found.attributes:
        print("note: no environment for evaluation is known: give --env_id here, or set eval_env in a run")


def thin_dataset(options: argparse.Namespace) -> None:
    """Writes a collected dataset with fewer episodes of some policies, as D4RL's reader uses it.

    Raises:
        InputError: The dataset cannot be read or has no such episodes, or the file exists.
        OSError: The file cannot be written.
    """
    _check_new(options.output)
    source = sources.read(options.id)
    arrays, attributes = thinning.thin(source.raw, source.attributes, dict(options.keep))
    shares = [f"{name}={number}" for name, number in options.keep]
    _write(options.output, arrays, attributes, source, ["thin", options.id, *shares])
    print(f"{options.output}: {len(arrays['rewards']):,} of {len(source.raw['rewards']):,} rows")


def draw_dataset(options: argparse.Namespace) -> None:
    """Converts a dataset of a planar robot's states to a dataset of images of these states.

    Raises:
        InputError: The dataset cannot be read, its states cannot be drawn, or the file exists.
        OSError: The file cannot be written.
    """
    _check_new(options.output)
    source = sources.read(options.id)
    env_id = own_env(options.id, source.attributes)
    camera = silhouettes.camera(env_id)
    states = [name for name in ("observations", "next_observations") if name in source.raw]
    arrays = source.raw | {name: camera(source.raw[name]) for name in states}
    attributes = {**source.attributes, "env_id": silhouettes.shown(env_id)}
    _write(options.output, arrays, attributes, source, ["draw", options.id])
    print(f"{options.output}: {len(arrays['rewards']):,} rows of {_sizes(arrays['observations'].shape[1:])}")


def _check_new(path: Path) -> None:
    """Checks that a file can be written without replacing another.

    Raises:
        InputError: It exists.
    """
    if path.exists():
        raise InputError(f"{path} exists: name another file for the output")


def _write(
    path: Path, arrays: Mapping[str, np.ndarray], attributes: dict[str, Any], source: Source, words: Sequence[str]
) -> None:
    """Writes a dataset that was made from another one; the file states the command and the source's SHA-256."""
    attributes["command"] = shlex.join(["corl-twins", "datasets", *words])
    attributes["source_command"], attributes["source_sha256"] = source.attributes.get("command", ""), source.sha256
    write_arrays(path, arrays, attributes)


def _share(word: str) -> tuple[str, int]:
    """Parses `medium=8` to `medium` and 8."""
    name, _, number = word.partition("=")
    if not (name and number.isdecimal() and int(number)):
        raise argparse.ArgumentTypeError(f"{word!r} is not of the form medium=8")
    return name, int(number)


def _parser() -> Parser:
    parser = Parser(prog="corl-twins datasets", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], meaning: str, **argument: Any) -> Any:
        added = commands.add_parser(name, help=meaning, description=meaning)
        added.set_defaults(run=run)
        if argument:
            added.add_argument(**argument)
        return added

    an_id = {"dest": "id", "metavar": "ID", "help": "a name as --env takes it, such as hopper-medium-v2"}
    command("list", list_datasets, "list every dataset with its rows and sizes, and whether it is here")
    shown = command("show", show, "describe a dataset, and say what looks wrong with it", **an_id)
    shown.add_argument(
        "--eval_env", default="", metavar="ID", help="the environment that sets time limit and box (default: its own)"
    )
    shown.add_argument(
        "--png", nargs="?", type=Path, const=Path(), metavar="FILE", help="draw its returns (default: ID-returns.png)"
    )
    files = {
        "dest": "files",
        "nargs": "*",
        "metavar": "FILE",
        "help": "a path, a D4RL id or minari:NAME (default: all of D4RL's that are here)",
    }
    verified = command("verify", verify, "check files' structure, and their SHA-256 where it is known", **files)
    verified.add_argument("--record", action="store_true", help="enter SHA-256 not known yet into D4RL's folder")
    imported = command("import", import_dataset, "turn data of another form into a file in D4RL's layout")
    imported.add_argument(
        "file", type=Path, metavar="FILE", help="an HDF5 file, .npz, .npy, a pickle, a folder of .npz"
    )
    imported.add_argument("output", type=Path, metavar="OUT.hdf5", help="file to write")
    imported.add_argument("--env_id", default="", metavar="ID", help="the environment to evaluate in")
    imported.add_argument(
        "--dones",
        choices=("terminals", "timeouts"),
        default="terminals",
        help="how to read flags that mark only the end of an episode (default: terminals)",
    )
    imported.add_argument(
        "--observations", default="", metavar="PART,...", help="parts of an observation that count (default: vectors)"
    )
    imported.add_argument(
        "--trust-pickle", action="store_true", help="read pickled objects: arrays in lists and dictionaries alone"
    )
    command("download", download_dataset, "fetch a dataset of D4RL's or Minari's", **an_id)
    thinned = command("thin", thin_dataset, "write a collected dataset with fewer episodes of a policy", **an_id)
    thinned.add_argument(
        "keep", nargs="+", type=_share, metavar="PART=N", help="episodes to keep, evenly spread: medium=8, say"
    )
    drawn = command("draw", draw_dataset, "write a dataset of a flat robot's states as one of images", **an_id)
    for added in (thinned, drawn):
        added.add_argument("--output", type=Path, required=True, metavar="FILE", help="file to write")
    return parser


def main(arguments: Sequence[str]) -> None:
    """Runs the command.

    Raises:
        InputError: The command line or a dataset cannot be used.
        OSError: A file cannot be read or written.
    """
    options = _parser().parse_args(arguments)
    options.run(options)
