# SPDX-License-Identifier: Apache-2.0

"""Stale answers carry extended error 3 (RFC 8914, section 4.4) and are otherwise the same."""

from __future__ import annotations

import dns.edns
import dns.message
import dns.rcode
import pytest

from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, large, namespace, node, service
from tests.kit.in_memory import CountedResponder, ask_in_memory, responder_of
from tests.kit.small_cluster import WEB

STALE, NOT_READY, OTHER = 3, 14, 0
A, B, UNKNOWN_CLIENT = "127.1.0.1", "127.2.0.1", "192.0.2.1"
SHOP = "shop.svc.cluster.local"
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
    responder: CountedResponder, name: str, rtype: str = "A", client: str = A, subnet: str | None = None, edns: int = 0
) -> dns.message.Message:
    options = [dns.edns.ECSOption.from_text(subnet)] if subnet else []
    query = dns.message.make_query(name, rtype, use_edns=edns, options=options)
    reply = ask_in_memory(responder, query, client)
    assert reply is not None
    return reply


CASES = [
    # id, name, type, client, its subnet, codes while fresh, codes while stale
    ("nearest", WEB, "A", A, None, [], [STALE]),
    ("srv", WEB, "SRV", A, None, [], [STALE]),
    ("nodata", WEB, "TXT", A, None, [], [STALE]),
    ("nxdomain", f"absent.{SHOP}", "A", A, None, [], [STALE]),
    ("unmet", WEB, "A", B, None, [OTHER], [OTHER, STALE]),
    ("unmet-for-an-unknown-client", WEB, "A", UNKNOWN_CLIENT, None, [OTHER], [OTHER, STALE]),
    ("truncated", f"many.{SHOP}", "A", A, None, [], [STALE]),
    ("a-refusal-is-the-same", "example.com", "A", A, None, [], []),
    # dnsmasq drops a reply with a different client subnet; nobody trusts whoever sends it.
    ("subnet", WEB, "A", A, "127.1.0.1/32", [OTHER], [OTHER, STALE]),
    ("subnet-of-ipv6", WEB, "A", A, "2001:db8::1/128", [OTHER], [OTHER, STALE]),
    ("subnet-of-nobody", WEB, "A", A, "0.0.0.0/0", [], [STALE]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rtype", "client", "subnet", "fresh", "stale"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_every_answer_says_it_while_it_is_so(
    name: str, rtype: str, client: str, subnet: str | None, fresh: list[int], stale: list[int]
) -> None:
    """Cached or not, the last known answer has the error while it is stale, and not afterwards."""
    responder = responder_of(ITEMS)
    before = asked(responder, name, rtype, client, subnet)
    assert codes(before) == fresh
    responder.mark_stale(True)
    for _ in range(3):
        reply = asked(responder, name, rtype, client, subnet)
        assert codes(reply) == stale and reply.rcode() == before.rcode()
        assert bool(reply.answer) == bool(before.answer)
        subnets = [f"{option.address}/{option.srclen}" for option in reply.options if option.otype == 8]
        assert subnets == ([subnet] if subnet else [])
    responder.mark_stale(False)
    assert codes(asked(responder, name, rtype, client, subnet)) == fresh


def test_who_sent_no_opt_is_sent_none() -> None:
    """RFC 6891, section 7: without EDNS in the query, the reply has no error."""
    responder = responder_of(ITEMS)
    responder.mark_stale(True)
    reply = asked(responder, WEB, edns=-1)
    assert reply.edns == -1 and reply.answer


def test_what_is_not_known_is_not_stale() -> None:
    """Before the first snapshot there is no stale answer, but SERVFAIL "Not Ready"."""
    responder = CountedResponder()
    responder.mark_stale(True)
    reply = asked(responder, WEB)
    assert reply.rcode() == dns.rcode.SERVFAIL and codes(reply) == [NOT_READY]
