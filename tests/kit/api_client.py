# SPDX-License-Identifier: Apache-2.0

"""Asks the HTTP API of a running server, and reads its events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

import urllib3

from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE

API = "/api/v1"


class Answered(NamedTuple):
    """A response: status, headers, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(
    server: Server, path: str, method: str = "GET", *, headers: Mapping[str, str] | None = None, **query: str
) -> Answered:
    """Send a request; *query* is the query string."""
    url = f"http://{server.http}{path}{'?' if query else ''}{urlencode(query)}"
    response = urllib3.request(method, url, headers=dict(headers or {}), timeout=PATIENCE, retries=False)
    return Answered(response.status, response.headers, response.data)


class Events:
    """The events of a stream."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self.response = response
        self._lines = (line for part in response.stream(None) for line in part.decode().splitlines())

    def next(self) -> tuple[str, Any]:
        """Return the name and the data of the next event."""
        name = "message"
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))
        raise EOFError


@contextmanager
def events(server: Server, **query: str) -> Iterator[Events]:
    """Read the events of ``/api/v1/tail`` until the block ends; the server tells of decisions only within it."""
    url = f"http://{server.http}{API}/tail?{urlencode(query)}"
    response = urllib3.request("GET", url, timeout=PATIENCE, retries=False, preload_content=False)
    assert response.status == 200
    try:
        yield Events(response)
    finally:
        before = len(server.lines)
        response.close()
        server.wait_for("a reader of decisions has gone", after=before)
