# SPDX-License-Identifier: Apache-2.0

"""Queries for the stand-in's cluster: pods of all nodes ask for the same 1,000 of its Services, by a forwarder."""

from __future__ import annotations

import random
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from bench.loads import EDNS, FORWARDER, WIDTHS
from bench.queries import Load, PreparedQuery
from bench.servers import Server
from bench.standin.numbering import NODES, SERVICES, pod_address, service_name
from tests.kit.dns_queries import ecs, opt, query

NAMES = 1_000
STRIDE = SERVICES // NAMES  # the Services asked for are spread over all
QUERIES = 6_000  # of each socket
EVERY = 1.0  # seconds between two requests: Prometheus asks less often by default
TIMEOUT = 10.0  # seconds


def forwarded() -> Load:
    """Return a load of a forwarder that names a pod on a node at random in each query; the first pod on it."""
    pick, (sockets, window) = random.Random(7), WIDTHS[EDNS]

    def ask(number: int) -> PreparedQuery:
        client = pod_address(pick.randrange(NODES), 0)
        name = service_name(pick.randrange(NAMES) * STRIDE)
        return PreparedQuery(query(name, number=number, edns=opt(ecs(client))))

    queries = [[ask(number) for number in range(QUERIES)] for _ in range(sockets)]
    return Load("forwarded, 1,000 names", EDNS, (FORWARDER,) * sockets, queries, window)


@contextmanager
def fetching(server: Server, path: str) -> Iterator[None]:
    """Read a path of the server's HTTP port once a second until the block ends."""
    over = threading.Event()

    def fetch() -> None:
        while not over.wait(EVERY):
            with urllib.request.urlopen(f"http://127.0.0.1:{server.http}{path}", timeout=TIMEOUT) as response:
                response.read()

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
