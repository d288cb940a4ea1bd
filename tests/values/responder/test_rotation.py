# SPDX-License-Identifier: Apache-2.0

"""Rotation: replies begin with each endpoint equally often, for every client by itself."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.kit.api_objects import endpoint, endpoint_slice, listed, namespace, service
from tests.kit.dns_queries import opt, query
from tests.kit.in_memory import CountedResponder, snapshot_of, with_and_without_native
from tests.kit.random_queries import Asked, replied
from tests.kit.replies import parts_of
from tests.kit.small_cluster import WEB

ROUNDS = 600
TOLERANCE = 0.25  # of what is even for two records: six standard deviations


def cluster(endpoints: int) -> str:
    """Return a cluster with so many endpoints of each family."""
    four, six = ([endpoint(f"{net}{number}") for number in range(1, endpoints + 1)] for net in ("10.0.0.", "fd00::"))
    return listed([
        namespace("shop"),
        service("web"),
        endpoint_slice("web", 0, four),
        endpoint_slice("web", 1, six, family="IPv6"),
    ])  # fmt: skip


PATTERNS: list[tuple[str, list[tuple[str, str, str]]]] = [
    # what is asked over and over: by whom, which type, by which transport
    ("alone", [("a", "A", "udp")]),
    ("two-in-turn", [("a", "A", "udp"), ("b", "A", "udp")]),
    ("five-in-turn", [(client, "A", "udp") for client in "abcde"]),
    ("a-then-aaaa", [("a", "A", "udp"), ("a", "AAAA", "tcp")]),
    ("all-a-before-all-aaaa", [*((each, "A", "udp") for each in "ab"), *((each, "AAAA", "udp") for each in "ab")]),
    ("srv", [("a", "SRV", "udp")]),
]


@pytest.mark.parametrize("endpoints", [2, 5])
@pytest.mark.parametrize("pattern", [row[1] for row in PATTERNS], ids=[row[0] for row in PATTERNS])
@with_and_without_native
def test_every_client_meets_every_endpoint_first(
    native: bool, pattern: list[tuple[str, str, str]], endpoints: int
) -> None:
    """About equally often, whichever clients ask in between, also if they ask in step."""
    responder = CountedResponder(native=native)
    responder.publish(snapshot_of(cluster(endpoints)))
    first: dict[tuple[str, str], Counter[bytes]] = {}
    for client, rtype, proto in pattern * ROUNDS:
        reply = replied(responder, Asked(query(WEB, rtype, edns=opt()), f"192.0.2.{ord(client)}", proto))
        assert reply is not None
        first.setdefault((client, rtype), Counter())[parts_of(reply).answers[0]] += 1
    for (_, rtype), met in first.items():
        records = endpoints * (2 if rtype == "SRV" else 1)
        even = met.total() / records
        assert len(met) == records
        assert max(abs(number - even) for number in met.values()) < TOLERANCE * even * (records / 2) ** 0.5, met
