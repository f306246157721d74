"""Downloads D4RL's files into D4RL's own cache folder, once.

Pooch stores a file under its name only if it is complete and its SHA-256 is right. An interrupted download is kept next
to it as `<name>.part`, and the next start only requests the missing rest.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import numpy as np
import pooch
import requests
from filelock import FileLock, Timeout
from requests.auth import HTTPBasicAuth
from tqdm import tqdm

from shared.data.checksums import known
from shared.data.transitions import read_hdf5
from shared.errors import InputError
from shared.names import D4RL_FACTS, NAMES, dataset_location

HOSTS = ("https://rail.eecs.berkeley.edu", "http://rail.eecs.berkeley.edu")
"""Addresses of D4RL's host, tried in this order; the second is the one that D4RL itself uses."""

_BLOCK = 2**16  # bytes
_TIMEOUT = (10, 60)  # seconds to connect, and between two blocks

_Login = HTTPBasicAuth | None


def fetch(name: str) -> Path:
    """Downloads a D4RL dataset unless its file exists; an existing file is used unchanged.

    `$D4RL_DATASET_URL` names another host with the same paths; a user and a password in it are never shown. If two
    processes want the same file, the second waits.

    Args:
        name: A D4RL id such as `hopper-medium-v2`.

    Returns:
        The file's path.

    Raises:
        InputError: The host cannot be reached or refuses, or its file is not the dataset. Or the folder cannot be
            written, `$D4RL_DATASET_URL` is not an address, or the user's table of SHA-256 has the wrong format.
    """
    path = dataset_location(name)
    if path.is_file():
        return path
    digest = known(path.name)
    hosts, login = _hosts()
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path):
            _retrieve(path, D4RL_FACTS[name], digest, hosts, login)
    except (OSError, ValueError) as error:  # the network's and pooch's errors have these types
        _refuse(name, path, hosts[-1] + D4RL_FACTS[name]["url_path"], error)
    return path


def _hosts() -> tuple[Sequence[str], _Login]:
    """The hosts' addresses, in order, and the login for them, which is not part of the addresses."""
    given = os.environ.get("D4RL_DATASET_URL", "").strip()
    if not given:
        return HOSTS, None
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        # After an unescaped character, the rest of a password would count as one of these, and be shown.
        usable = usable and not ("@" in parts.path or parts.query or parts.fragment)
    except ValueError:
        usable = False
    if not usable:
        raise InputError(
            "D4RL_DATASET_URL is no address: write https://host/folder or https://user:password@host/folder, and "
            "special characters of a password as %XX"
        )
    login = None
    if parts.username is not None:
        login = HTTPBasicAuth(unquote(parts.username).encode(), unquote(parts.password or "").encode())
    return [f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"], login


def _retrieve(path: Path, facts: dict[str, Any], digest: str | None, hosts: Sequence[str], login: _Login) -> None:
    """Tries one host after the other, for the missing part of the file; raises the last host's error."""
    sha256 = digest and f"sha256:{digest}"
    downloader = _downloader(path, facts, login)
    for number, host in enumerate(hosts, 1):
        try:
            # Pooch finds a file that another process has downloaded while this one waited.
            pooch.retrieve(host + facts["url_path"], sha256, path.name, path.parent, downloader=downloader)
            return
        except requests.RequestException:
            if number == len(hosts):
                raise
            print(f"{host} cannot be had: trying {hosts[number]}", file=sys.stderr)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """A lock that only one process at a time can hold for each file."""
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print(f"waiting for another process that downloads {path.name}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _refuse(name: str, path: Path, url: str, error: Exception) -> NoReturn:
    make = next((made for made in NAMES if name.startswith(f"{made}-v")), None)
    hint = f", or make a set like it with `corl-twins collect {make}` and name its file, {make}.hdf5"
    instead = "" if make is None else hint
    part = _part(path)
    rest = f"; a new start goes on after the {part.stat().st_size:,} bytes that came" if part.is_file() else ""
    raise InputError(
        f"cannot download {name!r} ({_reason(error)}{rest}): put its file, {url}, at {path}, or a mirror into "
        f"D4RL_DATASET_URL{instead}"
    ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, requests.ConnectionError) and error.request is not None:
        return "its host cannot be reached"
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.exceptions.InvalidURL):  # its text may contain a part of a password
        return "its address or a proxy's is malformed: check D4RL_DATASET_URL, HTTP_PROXY and HTTPS_PROXY"
    return " ".join(str(error).split())[:200]


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _downloader(path: Path, facts: dict[str, Any], login: _Login) -> Callable[[str, str, Any], None]:
    """A downloader for pooch, which moves `output_file` to `path` if its hash is right."""
    part = _part(path)

    def download(url: str, output_file: str, _: Any) -> None:
        _complete(url, part, facts.get("size_bytes"), login)
        # Not every file has a known hash, but an error page must never be stored as a dataset.
        try:
            check_sizes(read_hdf5(part), facts)
        except InputError:
            part.unlink()
            raise
        os.replace(part, output_file)

    return download


def check_sizes(raw: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Checks that `observations` (N, S) and `actions` (N, A) have D4RL's sizes, `obs_dim` and `act_dim`.

    Raises:
        InputError: They have other sizes.
    """
    sizes = (raw["observations"].shape[1], raw["actions"].shape[1])
    if sizes != (wanted := (facts["obs_dim"], facts["act_dim"])):
        raise InputError(f"the file has states and actions of sizes {sizes}, D4RL's {wanted}")


def _complete(url: str, part: Path, size: int | None, login: _Login) -> None:
    """Downloads the missing rest of `part`, and retries after a cut as long as every attempt makes progress.

    Args:
        url: The address of the whole file.
        part: The partial file, which need not exist.
        size: Size of the whole file in bytes, if it is known; otherwise the host's statement is used.
        login: The login for the host, if it needs one.
    """
    while True:
        before = part.stat().st_size if part.exists() else 0
        if before and before == size:
            return
        try:
            _fetch_rest(url, part, before, size, login)
            return
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            if not part.exists() or part.stat().st_size <= before:
                raise


def _fetch_rest(url: str, part: Path, start: int, size: int | None, login: _Login) -> None:
    """Appends to `part` the bytes after the first `start`, or rewrites it if the host sends the whole file."""
    headers = {"Accept-Encoding": "identity"}
    if start:  # the rest if the file is unchanged, otherwise all of the new one
        headers |= {"Range": f"bytes={start}-", "If-Range": formatdate(part.stat().st_mtime, usegmt=True)}
    with requests.get(url, headers=headers, auth=login, stream=True, timeout=_TIMEOUT) as response:
        if start and response.status_code == requests.codes.requested_range_not_satisfiable:
            if response.headers.get("Content-Range") != f"bytes */{start}":  # the file is shorter than the part
                _fetch_rest(url, part, 0, size, login)
            return
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:
            start = 0
        total = _total(response, start)
        if size is not None and total is not None and total != size:
            raise InputError(f"the host's file has {total:,} bytes, D4RL's {size:,}")
        with (
            _dated(part, response.headers.get("Last-Modified")),
            part.open("ab" if start else "wb") as file,
            # A bar that is redrawn would flood a log file, so only terminals get one.
            tqdm(total=total, initial=start, unit="B", unit_scale=True, desc=part.stem, disable=None) as bar,
        ):
            for block in response.iter_content(_BLOCK):
                file.write(block)
                bar.update(len(block))
    if (got := part.stat().st_size) != (total or size or got):
        raise requests.ConnectionError(f"{got:,} of {total or size:,} bytes came")


@contextmanager
def _dated(part: Path, date: str | None) -> Iterator[None]:
    """Sets the file's date to the host's, even after an error, so that the host can tell if its file has changed."""
    try:
        yield
    finally:
        if date is not None and part.exists():
            seconds = parsedate_to_datetime(date).timestamp()
            os.utime(part, (seconds, seconds))


def _total(response: requests.Response, start: int) -> int | None:
    """The size of the whole file in bytes, as the host states it."""
    if not start:
        length = response.headers.get("Content-Length")
        return None if length is None else int(length)
    place = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if place is None or int(place[1]) != start:
        raise InputError("the host sends another part than it was asked for")
    return int(place[2])
