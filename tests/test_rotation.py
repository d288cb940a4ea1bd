"""Rotation: replies begin with each endpoint equally often, for every client by itself."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import dns.message
import pytest

from dnsserver.message.rotation import Rotation, Rotations
from tests.api_objects import endpoint, endpoint_slice, listed, namespace, service
from tests.clusters import WEB
from tests.in_memory import ask_in_memory, responder_of

ROUNDS = 600
TOLERANCE = 0.25  # of what is even for two records: five standard deviations, if each turn were drawn by itself


def cluster(endpoints: int) -> str:
    rows = [endpoint(f"10.0.0.{number}") for number in range(1, endpoints + 1)]
    six = [endpoint(f"fd00::{number}") for number in range(1, endpoints + 1)]
    return listed([namespace("shop"), service("web"), endpoint_slice("web", 0, rows),
                   endpoint_slice("web", 1, six, family="IPv6")])  # fmt: skip


PATTERNS: list[tuple[str, Sequence[tuple[str, str, str]]]] = [
    # what is asked over and over: by whom, which type, by which transport
    ("alone", [("a", "A", "udp")]),
    ("two-in-turn", [("a", "A", "udp"), ("b", "A", "udp")]),
    ("three-in-turn", [("a", "A", "udp"), ("b", "A", "udp"), ("c", "A", "udp")]),
    ("five-in-turn", [(client, "A", "udp") for client in "abcde"]),
    ("a-then-aaaa", [("a", "A", "udp"), ("a", "AAAA", "udp")]),
    ("all-a-before-all-aaaa", [*((each, "A", "udp") for each in "ab"), *((each, "AAAA", "udp") for each in "ab")]),
    ("srv", [("a", "SRV", "udp"), ("b", "SRV", "udp")]),
    ("udp-and-tcp", [("a", "A", "udp"), ("b", "A", "tcp")]),
    ("one-twice-as-often", [("a", "A", "udp"), ("a", "A", "udp"), ("b", "A", "udp")]),
]


@pytest.mark.parametrize("endpoints", [2, 5])
@pytest.mark.parametrize("pattern", [row[1] for row in PATTERNS], ids=[row[0] for row in PATTERNS])
def test_every_client_meets_every_endpoint_first(pattern: Sequence[tuple[str, str, str]], endpoints: int) -> None:
    """About equally often, whichever clients ask in between."""
    responder = responder_of(cluster(endpoints))
    first: dict[tuple[str, str], Counter[str]] = {}
    for _ in range(ROUNDS):
        for client, rtype, proto in pattern:
            reply = ask_in_memory(responder, dns.message.make_query(WEB, rtype), f"192.0.2.{ord(client)}", proto=proto)
            assert reply is not None
            first.setdefault((client, rtype), Counter())[str(reply.answer[0][0])] += 1
    for (_, rtype), met in first.items():
        records = endpoints * (2 if rtype == "SRV" else 1)  # of both families
        even = met.total() / records
        assert len(met) == records
        assert max(abs(number - even) for number in met.values()) < TOLERANCE * even * (records / 2) ** 0.5, met


def test_who_asks_alone_meets_each_once_in_a_round() -> None:
    """Six replies to one client begin with six different endpoints."""
    responder = responder_of(cluster(6))
    for _ in range(50):
        replies = [ask_in_memory(responder, dns.message.make_query(WEB, "A"), "192.0.2.1") for _ in range(6)]
        assert len({str(reply.answer[0][0]) for reply in replies if reply is not None}) == 6


@pytest.mark.parametrize("records", [0, 1, 2, 7, 250, 5000])
def test_rounds(records: int) -> None:
    """Each round has each record once; without records, there is one turn."""
    rotation = Rotation(records, random.Random(1).random)
    size = max(1, records)
    for _ in range(3):
        turns = list(rotation.first_turns())
        assert len(turns) % size == 0
        for start in range(0, len(turns), size):
            assert sorted(turns[start : start + size]) == list(range(size))


@pytest.mark.parametrize(("records", "even"), [(2, 1000), (3, 1000), (50, 100), (250, 10), (300, 10)])
def test_as_many_clients_as_records_in_step(records: int, even: int) -> None:
    """If as many clients as there are records take turns, each gets every record first about *even* times."""
    rotation = Rotation(records, random.Random(1).random)
    turns = [*rotation.first_turns()]
    while len(turns) < even * records * records:
        turns += rotation.more_turns()
    for client in (0, records // 2, records - 1):
        met = Counter(turns[client::records])
        assert max(abs(met[record] - even) for record in range(records)) < 6 * even**0.5, met


@pytest.mark.parametrize("records", [2, 50])
def test_answers_begin_anywhere(records: int) -> None:
    """An answer that is rendered again after each change begins with each record about equally often."""
    rotations, even = Rotations(random.Random(1).random), 1000
    begun = Counter(next(rotations.of(records).first_turns()) for _ in range(even * records))
    assert len(begun) == records and max(abs(number - even) for number in begun.values()) < TOLERANCE * even
