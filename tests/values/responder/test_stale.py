# SPDX-License-Identifier: Apache-2.0

"""Stale answers carry extended error 3 (RFC 8914, section 4.4) and are otherwise the same."""

from __future__ import annotations

import dns.edns
import dns.message
import dns.rcode
import pytest

from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, large, namespace, node, service
from tests.kit.in_memory import CountedResponder, ask_in_memory, responder_of

STALE, NOT_READY, OTHER = 3, 14, 0
A, B, UNKNOWN_CLIENT = "127.1.0.1", "127.2.0.1", "192.0.2.1"
ITEMS: list[Item] = [
    namespace("shop"),
    node("a1", {ZONE: "a"}, addresses=[A]),
    node("b1", {ZONE: "b"}, addresses=[B]),
    service("web", keys=ZONE),
    endpoint_slice("web", 1, [endpoint("10.0.0.1", nodeName="a1"), endpoint("10.0.0.2", nodeName="a1")]),
    *large("many", 80),
]


def codes(reply: dns.message.Message) -> list[int]:
    return sorted(option.code for option in reply.options if isinstance(option, dns.edns.EDEOption))


def asked(
    responder: CountedResponder,
    name: str,
    rtype: str = "A",
    *,
    client: str = A,
    edns: bool = True,
    subnet: str | None = None,
) -> dns.message.Message:
    options = [dns.edns.ECSOption.from_text(subnet)] if subnet else []
    query = dns.message.make_query(f"{name}.shop.svc.cluster.local", rtype, use_edns=0 if edns else -1, options=options)
    reply = ask_in_memory(responder, query, client)
    assert reply is not None
    return reply


CASES = [
    # id, name, type, client, codes while fresh, codes while stale
    ("nearest", "web", "A", A, [], [STALE]),
    ("srv", "web", "SRV", A, [], [STALE]),
    ("nodata", "web", "TXT", A, [], [STALE]),
    ("nxdomain", "absent", "A", A, [], [STALE]),
    ("unmet", "web", "A", B, [OTHER], [OTHER, STALE]),
    ("unmet-for-an-unknown-client", "web", "A", UNKNOWN_CLIENT, [OTHER], [OTHER, STALE]),
    ("truncated", "many", "A", A, [], [STALE]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rtype", "client", "fresh", "stale"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_every_answer_says_it_while_it_is_so(
    name: str, rtype: str, client: str, fresh: list[int], stale: list[int]
) -> None:
    """Cached or not, the last known answer has the error while it is stale, and not afterwards."""
    responder = responder_of(ITEMS)
    before = asked(responder, name, rtype, client=client)
    assert codes(before) == fresh
    responder.mark_stale(True)
    for _ in range(3):
        reply = asked(responder, name, rtype, client=client)
        assert codes(reply) == stale and reply.rcode() == before.rcode()
        assert bool(reply.answer) == bool(before.answer)
    responder.mark_stale(False)
    assert codes(asked(responder, name, rtype, client=client)) == fresh


def test_who_sent_no_opt_is_sent_none() -> None:
    """RFC 6891, section 7: without EDNS in the query, the reply has no error."""
    responder = responder_of(ITEMS)
    responder.mark_stale(True)
    reply = asked(responder, "web", edns=False)
    assert reply.edns == -1 and reply.answer


@pytest.mark.parametrize("subnet", ["127.1.0.1/32", "127.1.0.0/24", "2001:db8::1/128", "0.0.0.0/0"])
def test_a_client_subnet_is_echoed_beside_it(subnet: str) -> None:
    """Both options are whole: dnsmasq drops a reply with a different client subnet."""
    responder = responder_of(ITEMS)
    responder.mark_stale(True)
    for _ in range(2):
        reply = asked(responder, "web", subnet=subnet)
        (echoed,) = [option for option in reply.options if isinstance(option, dns.edns.ECSOption)]
        assert f"{echoed.address}/{echoed.srclen}" == subnet
        told = [] if subnet.endswith("/0") else [OTHER]  # nobody trusts whoever sends it
        assert codes(reply) == [*told, STALE]


def test_what_is_not_known_is_not_stale() -> None:
    """Before the first snapshot there is no stale answer, but SERVFAIL "Not Ready"."""
    responder = CountedResponder()
    responder.mark_stale(True)
    reply = asked(responder, "web")
    assert reply.rcode() == dns.rcode.SERVFAIL and codes(reply) == [NOT_READY]


def test_a_refusal_is_not_stale() -> None:
    """It would be the same with a current snapshot."""
    responder = responder_of(ITEMS)
    responder.mark_stale(True)
    reply = ask_in_memory(responder, dns.message.make_query("example.com", "A", use_edns=0), A)
    assert reply is not None and reply.rcode() == dns.rcode.REFUSED and codes(reply) == []
