"""Serves a report on this machine alone, and updates it when the runs have changed."""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from shared.commands.reporting import planned
from shared.commands.reporting.runs import Gathered, gather
from shared.errors import InputError
from shared.runs.progress import say

MakePage = Callable[[Gathered, str], str]
"""Maps all runs, and the digest of their files, to HTML."""


class Watched:
    """A page about runs that may still be running."""

    def __init__(self, paths: Sequence[Path], make: MakePage) -> None:
        self._paths, self._make = paths, make
        self._lock, self._shown = Lock(), ("", "")

    def digest(self) -> str:
        """The digest of the sizes and times of the files of the runs and their sweep."""
        found = hashlib.sha256()
        for path in self._paths:
            for name in ("metrics.jsonl", "result.json", planned.FILE):
                for file in sorted([*path.glob(name), *path.glob(f"*/{name}")]):
                    state = file.stat()
                    found.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
        return found.hexdigest()[:16]

    def page(self) -> str:
        """The current page, which is made once for each digest."""
        with self._lock:
            digest = self.digest()
            if self._shown[0] != digest:
                self._shown = digest, self._make(gather(self._paths), digest)
            return self._shown[1]


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the page, and for the digest of the runs."""

    def __init__(self, watched: Watched, *arguments: Any) -> None:
        self._watched = watched
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Sends the page, or the digest."""
        answers = {"/": (self._watched.page, "text/html"), "/digest": (self._watched.digest, "text/plain")}
        if self.path not in answers:
            self.send_error(404)
            return
        make, kind = answers[self.path]
        try:
            content = make().encode()
        except (InputError, OSError) as error:
            self.send_error(503, explain=str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Logs nothing, because a page sends requests every few seconds."""


def server(paths: Sequence[Path], make: MakePage, port: int) -> ThreadingHTTPServer:
    """Creates a server on 127.0.0.1, which does not serve yet.

    Raises:
        InputError: The port is not available, or a path is not a run and contains none.
    """
    watched = Watched(paths, make)
    gather(paths)
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, watched))
    except OSError as error:
        raise InputError(
            f"cannot serve on port {port} ({error.strerror}): give another --port, or 0 for any"
        ) from error


def serve(paths: Sequence[Path], make: MakePage, port: int) -> None:
    """Serves until Ctrl-C.

    Raises:
        InputError: As for `server`.
    """
    with server(paths, make, port) as listening:
        say(f"http://127.0.0.1:{listening.server_address[1]}/ follows the runs; Ctrl-C ends it")
        listening.serve_forever()
