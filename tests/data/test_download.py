"""Downloads of D4RL's files from a host that works, cuts, lies or refuses: a real server on this machine."""

import hashlib
import multiprocessing
import os
import re
import threading
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.synchronize import Barrier
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from corl_torch import any_percent_bc
from shared import names
from shared.data import checksums, download, sources
from shared.errors import InputError

NAME = "hopper-medium-expert-v2"
FILE = "hopper_medium_expert-v2.hdf5"


class Host(ThreadingHTTPServer):
    """Serves one file under every path; tests set how it misbehaves."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.requests: list[tuple[str, str | None]] = []
        self.logins: list[str | None] = []
        self.status = 200
        self.knows_ranges = True
        self.cut_after: list[int] = []  # bytes sent in response to each of the next requests
        self.states_length = True
        self.date = "Sun, 06 Nov 1994 08:49:37 GMT"  # the file's
        self.shift = 0  # bytes by which the response to a range is wrong


class Handler(BaseHTTPRequestHandler):
    """Answers as its server is configured to."""

    server: Host

    def do_GET(self) -> None:
        """Sends the file, or the requested range of it."""
        host, asked = self.server, self.headers["Range"]
        host.requests.append((self.path, asked))
        host.logins.append(self.headers["Authorization"])
        if host.status != 200:
            self.send_error(host.status)
            return
        of_this_file = host.knows_ranges and self.headers["If-Range"] == host.date
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and of_this_file else 0
        if start and start >= len(host.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(host.content)}")
            self.end_headers()
            return
        body = host.content[start:]
        self.send_response(206 if start else 200)
        if start:
            place = f"bytes {start + host.shift}-{len(host.content) - 1}/{len(host.content)}"
            self.send_header("Content-Range", place)
        self.send_header("Last-Modified", host.date)
        if host.states_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: host.cut_after.pop(0)] if host.cut_after else body)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def host(write_hdf5: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A running host with a small dataset, whose size and hash are known, as are D4RL's."""
    content = write_hdf5().read_bytes()
    monkeypatch.setitem(names.D4RL_FACTS, NAME, names.D4RL_FACTS[NAME] | {"size_bytes": len(content)})
    monkeypatch.setitem(checksums.KNOWN, FILE, hashlib.sha256(content).hexdigest())
    server = Host(content)
    monkeypatch.setenv("D4RL_DATASET_URL", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl" / "datasets"))
    monkeypatch.setattr(download, "_BLOCK", 1000)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def forget_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets size and hash, as for the hundred datasets of which only the address is known."""
    facts = {key: value for key, value in names.D4RL_FACTS[NAME].items() if key != "size_bytes"}
    monkeypatch.setitem(names.D4RL_FACTS, NAME, facts)
    monkeypatch.delitem(checksums.KNOWN, FILE)


def folder() -> list[str]:
    """Names of the files in D4RL's folder, without locks."""
    return sorted(path.name for path in names.dataset_location(NAME).parent.glob("*") if path.suffix != ".lock")


def test_a_dataset_is_downloaded_once_into_d4rls_folder(host: Host) -> None:
    read = sources.read(NAME)
    assert read.sha256 == hashlib.sha256(host.content).hexdigest()
    assert read.max_episode_steps == 1000
    assert names.dataset_path(NAME).read_bytes() == host.content
    assert host.requests == [(f"/datasets/offline_rl/gym_mujoco_v2/{FILE}", None)]
    sources.read(NAME)
    assert len(host.requests) == 1
    assert folder() == [FILE]


def test_a_file_that_is_there_is_used_as_it_is(
    host: Host, write_hdf5: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = names.dataset_location(NAME)
    path.parent.mkdir(parents=True)
    other = write_hdf5(timeouts=None).read_bytes()
    path.write_bytes(other)
    assert "timeouts" not in sources.read(NAME).raw
    sources.read(NAME)
    assert host.requests == []
    told = capsys.readouterr().err
    assert told == f"{path} is not the known file of {NAME}: `corl-twins datasets verify {NAME}` says more\n", "once"
    assert path.read_bytes() == other
    assert list(path.parent.iterdir()) == [path], "a folder of someone else's needs no lock to be read"


def test_a_cut_download_goes_on_where_it_was_cut(host: Host) -> None:
    host.cut_after = [3000, 2000]
    download.fetch(NAME)
    assert [asked for _, asked in host.requests] == [None, "bytes=3000-", "bytes=5000-"]
    assert names.dataset_path(NAME).read_bytes() == host.content


def test_the_next_start_goes_on_where_the_last_was_cut(host: Host) -> None:
    host.cut_after = [3000, 0]
    with pytest.raises(InputError, match="a new start goes on after the 3,000 bytes that came"):
        download.fetch(NAME)
    assert folder() == [f"{FILE}.part"]
    download.fetch(NAME)
    assert host.requests[-1][1] == "bytes=3000-"
    assert folder() == [FILE]
    assert names.dataset_path(NAME).read_bytes() == host.content


def test_the_rest_of_another_file_is_not_appended(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_hash(monkeypatch)
    host.cut_after = [3000, 0]
    with pytest.raises(InputError, match=r"3,000 bytes that came"):
        download.fetch(NAME)
    host.content, host.date = changed(host.content, at=1000), "Mon, 07 Nov 1994 08:49:37 GMT"
    download.fetch(NAME)
    assert names.dataset_path(NAME).read_bytes() == host.content


def changed(content: bytes, at: int) -> bytes:
    """The content with one byte changed."""
    return content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]


def put_part(host: Host, content: bytes) -> None:
    """Writes the partial file that an earlier download left."""
    part = names.dataset_location(NAME).with_name(f"{FILE}.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(content)
    seconds = parsedate_to_datetime(host.date).timestamp()
    os.utime(part, (seconds, seconds))


@pytest.mark.parametrize("known", [True, False])
def test_what_is_whole_already_is_not_fetched_again(host: Host, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not known:
        forget_hash(monkeypatch)
    put_part(host, host.content)
    download.fetch(NAME)
    assert [asked for _, asked in host.requests] == ([] if known else [f"bytes={len(host.content)}-"])
    assert names.dataset_path(NAME).read_bytes() == host.content


def test_what_is_longer_than_the_file_is_thrown_away(host: Host) -> None:
    put_part(host, host.content + b"more")
    download.fetch(NAME)
    assert names.dataset_path(NAME).read_bytes() == host.content


def test_a_host_that_ignores_ranges_sends_it_all_again(host: Host) -> None:
    host.knows_ranges = False
    host.cut_after = [3000]
    download.fetch(NAME)
    assert names.dataset_path(NAME).read_bytes() == host.content


def test_a_host_that_sends_another_range_is_refused(host: Host) -> None:
    host.cut_after, host.shift = [3000], 1
    with pytest.raises(InputError, match="another part than it was asked for"):
        download.fetch(NAME)
    assert FILE not in folder()


def test_a_host_that_states_no_length_is_believed_only_with_the_hash(host: Host) -> None:
    host.states_length = False
    host.cut_after = [3000]  # looks like the end
    download.fetch(NAME)
    assert names.dataset_path(NAME).read_bytes() == host.content


@pytest.mark.parametrize("known", [True, False])
def test_a_short_file_is_refused(host: Host, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    host.content = host.content[:-100]
    if not known:
        forget_hash(monkeypatch)
    with pytest.raises(InputError, match="bytes, D4RL's" if known else "truncated or not an HDF5 file") as caught:
        download.fetch(NAME)
    assert "\n" not in str(caught.value)
    assert folder() == []


@pytest.mark.parametrize("known", [True, False])
def test_wrong_bytes_are_refused_and_not_kept(host: Host, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(host.content)
    host.content = b"<html>moved</html>".ljust(size)
    if not known:
        forget_hash(monkeypatch)
    with pytest.raises(InputError, match="a page of a web site"):
        download.fetch(NAME)
    assert folder() == []


def test_a_dataset_of_another_robot_is_refused(
    host: Host, write_hdf5: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_hash(monkeypatch)
    host.content = write_hdf5(actions=np.zeros((60, 6))).read_bytes()
    with pytest.raises(InputError, match=r"states and actions of sizes \(11, 6\), D4RL's \(11, 3\)"):
        download.fetch(NAME)
    assert folder() == []


def test_another_dataset_is_refused_by_its_hash(host: Host) -> None:
    host.content = changed(host.content, at=len(host.content) - 1)
    with pytest.raises(InputError, match="SHA256 hash") as caught:
        download.fetch(NAME)
    assert "\n" not in str(caught.value)
    assert folder() == []


def test_a_refusal_says_what_to_put_where_and_what_to_make_instead(host: Host) -> None:
    host.status = 404
    with pytest.raises(InputError, match=f"cannot download '{NAME}' \\(404 ") as caught:
        download.fetch(NAME)
    message = str(caught.value)
    assert "\n" not in message
    assert f"at {names.dataset_location(NAME)}, or a mirror into D4RL_DATASET_URL, or make a set like it" in message
    assert folder() == []


def test_a_host_that_is_down_is_one_line(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D4RL_DATASET_URL", "http://127.0.0.1:9")
    for name, makes in ((NAME, True), ("antmaze-umaze-v2", False)):
        with pytest.raises(InputError, match="its host cannot be reached") as caught:
            download.fetch(name)
        assert "\n" not in str(caught.value)
        assert ("corl-twins collect" in str(caught.value)) == makes
    assert host.requests == []


SECRET = "pa$$/w@rd?#"


@pytest.fixture
def login(host: Host, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the host require a login, which `$D4RL_DATASET_URL` contains; returns the header that carries it."""
    address = f"http://some%40one:{quote(SECRET, safe='')}@127.0.0.1:{host.server_port}/"
    monkeypatch.setenv("D4RL_DATASET_URL", address)
    return f"Basic {b64encode(f'some@one:{SECRET}'.encode()).decode()}"


def check_no_secret(text: str) -> None:
    """Checks for the user and any part of the password, escaped or not."""
    assert not re.search(r"some@one|some%40one|pa\$\$|pa%24|w@rd|w%40rd", text, re.IGNORECASE), text


def test_a_login_reaches_the_host_and_nothing_else(
    host: Host, login: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    host.cut_after = [3000]
    download.fetch(NAME)
    assert host.logins == [login, login]
    out, err = capfd.readouterr()
    check_no_secret(out + err + caplog.text)


@pytest.mark.parametrize("status", [401, None])
def test_no_error_shows_a_login(host: Host, login: str, status: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    host.status = status or 200
    if status is None:
        monkeypatch.setenv("D4RL_DATASET_URL", os.environ["D4RL_DATASET_URL"].replace(str(host.server_port), "9"))
    with pytest.raises(InputError, match="cannot download") as caught:
        download.fetch(NAME)
    assert "http://127.0.0.1:" in str(caught.value)
    check_no_secret("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize(
    "address",
    [
        "someone:pa$$w@rd",
        "ftp://someone:pa$$@127.0.0.1",
        "http://someone:pa$$/w@rd@127.0.0.1",
        "http://someone:pa$$?w@rd@127.0.0.1",
        "http://someone:9#pa$$w@rd@127.0.0.1",
        "http://someone:pa$$w@rd@127.0.0.1:port",
        "http://someone:pa$$w@rd@[127.0.0.1",
        "http://someone:pa$$w@rd@",
    ],
)
def test_what_is_no_address_is_refused_and_not_shown(address: str, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D4RL_DATASET_URL", address)
    with pytest.raises(InputError, match="D4RL_DATASET_URL is no address: write https://") as caught:
        download.fetch(NAME)
    assert "127.0.0.1" not in str(caught.value)
    assert "pa$$" not in str(caught.value)


def test_a_malformed_proxy_is_not_shown(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D4RL_DATASET_URL", "http://example.invalid")
    monkeypatch.setenv("HTTP_PROXY", "http://someone:pa$$/w@rd@127.0.0.1:9")
    with pytest.raises(InputError, match="address or a proxy's is malformed") as caught:
        download.fetch(NAME)
    assert "pa$$" not in str(caught.value)


def test_a_run_records_no_login(host: Host, login: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    config = any_percent_bc.TrainConfig(env=NAME, max_timesteps=2, eval_freq=2, n_episodes=1, runs_path=str(runs))
    any_percent_bc.train(config)
    files = [path for path in runs.rglob("*") if path.is_file()]
    assert {"config.yaml", "result.json"} <= {path.name for path in files}
    for path in files:
        check_no_secret(path.read_bytes().decode("latin-1"))
    assert host.logins == [login]


def test_d4rls_host_is_asked_over_https_first(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("D4RL_DATASET_URL")
    assert download.HOSTS[0].startswith("https://")
    secure, plain = (f"{scheme}://127.0.0.1:{host.server_port}" for scheme in ("https", "http"))
    monkeypatch.setattr(download, "HOSTS", (secure, plain))  # a host with only http
    download.fetch(NAME)
    assert capsys.readouterr().err == f"{secure} cannot be had: trying {plain}\n"
    names.dataset_path(NAME).unlink()
    monkeypatch.setattr(download, "HOSTS", (plain, "http://127.0.0.1:9"))
    download.fetch(NAME)
    assert capsys.readouterr().err == ""


def test_a_download_is_held_to_what_the_user_has_recorded(
    host: Host, write_hdf5: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_hash(monkeypatch)
    checksums.record({FILE: hashlib.sha256(host.content).hexdigest()})
    content, host.content = host.content, write_hdf5(timeouts=None).read_bytes()
    with pytest.raises(InputError, match="SHA256 hash"):
        download.fetch(NAME)
    assert folder() == ["SHA256SUMS"]
    host.content = content
    download.fetch(NAME)


def test_a_table_that_cannot_be_understood_is_one_line(host: Host) -> None:
    table = checksums.user_table()
    table.parent.mkdir(parents=True)
    for content, message in (
        (b"# mine\n\nabc  x.hdf5\n", "line 3 of .* is no line of sha256sum"),
        (b"\xff", "no text"),
    ):
        table.write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            checksums.recorded()
        assert str(table) in str(caught.value)


def test_the_table_reads_what_sha256sum_writes(tmp_path: Path) -> None:
    digest = "ab" * 32
    (tmp_path / "sums").write_text(f"{digest}  a b.hdf5\n{digest} *c.hdf5\n")
    assert checksums.parse(tmp_path / "sums") == {"a b.hdf5": digest, "c.hdf5": digest}


def test_the_projects_table_is_of_d4rls_files() -> None:
    files = {names.d4rl_file(name) for name in names.D4RL_FACTS}
    assert checksums.KNOWN.keys() <= files
    assert len(files) == len({facts["url_path"] for facts in names.D4RL_FACTS.values()}), "two files of one name"


def test_a_folder_that_cannot_be_made_is_one_line(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot download"):
        download.fetch(NAME)


def fetch_together(everyone_is_here: Barrier) -> None:
    """Runs in a process of its own, which knows only the address of this dataset."""
    everyone_is_here.wait(60)
    download.fetch("hopper-medium-expert-v1")


@pytest.mark.thorough
def test_of_two_processes_one_downloads(host: Host) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=fetch_together, args=(barrier,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(host.requests) == 1
    assert names.dataset_path("hopper-medium-expert-v1").read_bytes() == host.content
    assert folder() == ["hopper_medium_expert-v1.hdf5"]
