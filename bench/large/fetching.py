# SPDX-License-Identifier: Apache-2.0

"""Reads what a server has over HTTP, while its replies are timed."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from bench.servers import Server

EACH = 1.0  # seconds between two requests: Prometheus asks less often by default
TIMEOUT = 10.0  # seconds


@contextmanager
def fetching(server: Server, path: str) -> Iterator[list[float]]:
    """Read a path once a second until the block ends; the list grows by the seconds that each request took."""
    over = threading.Event()
    took: list[float] = []

    def fetch() -> None:
        while not over.wait(EACH):
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{server.http}{path}", timeout=TIMEOUT) as response:
                response.read()
            took.append(time.perf_counter() - began)

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()
