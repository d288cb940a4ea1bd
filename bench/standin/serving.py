# SPDX-License-Identifier: Apache-2.0

"""The stand-in for an API server: streams lists and watches of objects over HTTP/1.1, and makes its changes.

It serves what servers of DNS ask a real one for, as that one answers with its default settings: a watch that begins
with all objects (``sendInitialEvents``), or with what follows the newest version. It has no TLS, no other verbs, and no
history: a watch from any other version expires. Requests below ``/standin/`` control it.
"""

from __future__ import annotations

import http
import json
import queue
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench.standin import wire
from bench.standin.objects import StandinObjects, expired
from bench.standin.recording import PATHS

KINDS = {path: kind for kind, path in PATHS.items()}
SENT = 64  # chunks for each system call
BEHIND = 2_000  # events that a watch may lie behind before all changes wait for it
CAUGHT_UP = 0.05  # seconds of changes, at most, that come at once after a pause of this process
BOOKMARKS = 60.0  # seconds between bookmarks, as a real API server sends them


class Standin:
    """The objects and the watches of them; every method may be called from any thread."""

    def __init__(self, objects: StandinObjects) -> None:
        self.form = objects.form
        self._objects = objects
        self._lock = threading.Lock()  # of the objects, and of the order of events
        self._watches: set[OpenWatch] = set()
        self._rate = 0.0
        self._paced = threading.Event()

    def watch(self, kind: str, version: str) -> OpenWatch | None:
        """Begin a watch of a kind: with all objects if *version* is empty. None if *version* has expired."""
        with self._lock:
            if version and version != str(self._objects.version):
                return None
            first: Sequence[bytes] = ()
            if not version:
                first = [*self._objects.chunks[kind], self._objects.bookmark(kind, ends_list=True)]
            watch = OpenWatch(kind, first)
            self._watches.add(watch)
            return watch

    def leave(self, watch: OpenWatch) -> None:
        """Forget a watch that has ended."""
        watch.over = True
        self._watches.discard(watch)

    def step(self, number: int) -> None:
        """Change *number* pods and as many slices, as fast as all watches take the events."""
        for _ in range(number):
            with self._lock:
                for change in self._objects.step():
                    for watch in tuple(self._watches):
                        if watch.kind == change.kind:
                            watch.put(change.chunk)

    def expire(self, kind: str) -> int:
        """End all watches of a kind as if their versions had expired (410); return how many."""
        with self._lock:
            ended = [watch for watch in self._watches if watch.kind == kind]
            for watch in ended:
                watch.put(expired(self.form), last=True)
            return len(ended)

    def set_rate(self, steps: float) -> None:
        """Make *steps* changes of a pod and a slice in each second from now on."""
        self._rate = steps
        self._paced.set()

    def drained(self) -> bool:
        """Return whether every watch has been sent all its events."""
        return all(watch.idle for watch in tuple(self._watches))

    def status(self) -> dict[str, Any]:
        """Return what is watched."""
        kinds = sorted(watch.kind for watch in tuple(self._watches))
        return {"watches": kinds, "version": self._objects.version, "rate": self._rate, "drained": self.drained()}

    def change_for_ever(self) -> None:
        """Make the changes of ``set_rate``, each in its time."""
        while True:
            self._paced.wait()
            self._paced.clear()
            rate, due = self._rate, time.monotonic()
            while rate and not self._paced.is_set():
                self.step(1)
                due = max(due + 1 / rate, time.monotonic() - CAUGHT_UP)
                time.sleep(max(0.0, due - time.monotonic()))

    def bookmark_for_ever(self) -> None:
        """Send every watch a bookmark from time to time."""
        while True:
            time.sleep(BOOKMARKS)
            with self._lock:
                for watch in tuple(self._watches):
                    watch.put(self._objects.bookmark(watch.kind))


class OpenWatch:
    """The events for one response that have not been sent."""

    def __init__(self, kind: str, first: Sequence[bytes]) -> None:
        self.kind = kind
        self.first = first
        """What the response begins with."""
        self.over = False
        self._events: queue.Queue[bytes] = queue.Queue(BEHIND)
        self._last = False
        self.idle = False
        """Whether all has been sent."""

    def put(self, event: bytes, *, last: bool = False) -> None:
        """Add an event; wait while there are many. After the *last*, the response ends."""
        self.idle = False
        while not self.over:
            try:
                self._events.put(event, timeout=0.5)
                break
            except queue.Full:
                continue
        self._last = self._last or last

    def send(self, send: Callable[[bytes], Any]) -> None:
        """Send everything, for ever or until the last event."""
        for at in range(0, len(self.first), SENT):
            send(b"".join(self.first[at : at + SENT]))
        self.first = ()
        while not (self._last and self._events.empty()):
            if self._events.empty():
                self.idle = True
            events = [self._events.get()]
            while len(events) < SENT and not self._events.empty():
                events.append(self._events.get())
            send(b"".join(events))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    standin: Standin

    def do_GET(self) -> None:
        """Answer a watch."""
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/standin/status":
            self._answer(http.HTTPStatus.OK, self.standin.status())
        elif url.path not in KINDS:
            self._refuse(http.HTTPStatus.NOT_FOUND, "NotFound")
        elif "watch" not in query:
            self._refuse(http.HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed")
        else:
            version = "" if query.get("sendInitialEvents") == "true" else query.get("resourceVersion", "")
            self._stream(KINDS[url.path], version)

    def do_POST(self) -> None:
        """Do what the benchmark asks for."""
        url = urllib.parse.urlsplit(self.path)
        match url.path.removeprefix("/standin/").split("/"):
            case ["rate", steps]:
                self.standin.set_rate(float(steps))
            case ["step", number]:
                self.standin.step(int(number))
                while not self.standin.drained():
                    time.sleep(0.01)
            case ["expire", kind]:
                self.standin.expire(kind)
            case _:
                self._refuse(http.HTTPStatus.NOT_FOUND, "NotFound")
                return
        self._answer(http.HTTPStatus.OK, self.standin.status())

    def _stream(self, kind: str, version: str) -> None:
        form = self.standin.form
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", form if form == wire.JSON else f"{form};stream=watch")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        watch = self.standin.watch(kind, version)
        try:
            if watch is None:
                self.wfile.write(expired(form))
            else:
                watch.send(self.wfile.write)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # the client has gone
        finally:
            if watch is not None:
                self.standin.leave(watch)

    def _answer(self, status: http.HTTPStatus, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _refuse(self, status: http.HTTPStatus, reason: str) -> None:
        self._answer(status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
                              "message": f"{self.path}: the stand-in has no such thing", "code": status})  # fmt: skip

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a client that has gone."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def serve(objects: StandinObjects, port: int) -> Iterator[tuple[Standin, int]]:
    """Serve *objects* on a port of loopback, or on a free one for 0; yield what controls it, and the port."""
    standin = Standin(objects)
    with _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"standin": standin})) as server:
        for run in (standin.change_for_ever, standin.bookmark_for_ever, server.serve_forever):
            threading.Thread(target=run, daemon=True).start()
        yield standin, server.server_port
        server.shutdown()
