# SPDX-License-Identifier: Apache-2.0

"""Queries for the stand-in's cluster: pods of all nodes ask for the same 1,000 of its Services, by a forwarder."""

from __future__ import annotations

import random
import socket

from bench.loads import EDNS, FORWARDER
from bench.queries import Load, Query, question
from bench.queries import query as wire
from bench.standin.numbering import NODES, SERVICES, pod_address, service_name
from locator.ip import Network

CLIENTS = 8  # sockets
NAMES = 1_000
STRIDE = SERVICES // NAMES  # the Services asked for are spread over all
QUERIES = 6_000  # of each socket


def asked(number: int) -> str:
    """Return one of the names asked for."""
    return service_name(number % NAMES * STRIDE)


def forwarded() -> Load:
    """Return a load of a forwarder that names a pod on a node at random in each query; the first pod on it."""
    pick = random.Random(7)

    def ask(number: int) -> Query:
        client = Network(socket.inet_aton(pod_address(pick.randrange(NODES), 0)), 32)
        asked_for = question(asked(pick.randrange(NAMES)), "A")
        return Query(wire(number, asked_for, EDNS, client=client), frozenset(), frozenset())

    queries = [[ask(number) for number in range(QUERIES)] for _ in range(CLIENTS)]
    return Load("forwarded, 1,000 names", EDNS, (FORWARDER,) * CLIENTS, queries, 0, 0)
