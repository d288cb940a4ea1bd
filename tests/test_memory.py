"""What is remembered: gone when what it was made from changes, kept when it does not, and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dns.message
import dns.rcode
import pytest

from dnsserver.app import authority_of, store_of
from dnsserver.metrics.counters import Counts
from dnsserver.responder.responder import MAX_PASSING, Responder
from locator.cluster import dump_files
from tests.clusters import ZONE, Item, endpoint, endpoint_slice, listed, namespace, node, pod, service
from tests.support import NOW, ask_in_memory, settings_of, take_in

WEB = "web.shop.svc.cluster.local"
BASE = [namespace("shop"), node("a1", {ZONE: "a"}, addresses=["127.1.0.1"]), node("b1", {ZONE: "b"})]


def alias(name: str, target: str) -> Item:
    own = service(name, ports=())
    own["spec"] = {"type": "ExternalName", "externalName": target}
    return own


def headless(name: str, *addresses: str, keys: str | None = None, on: str = "a1") -> list[Item]:
    rows = [endpoint(address, nodeName=on) for address in addresses]
    return [service(name, keys=keys), endpoint_slice(name, 1, rows)]


class Changing:
    """A responder whose cluster is replaced, as a server replaces it when its snapshot changes."""

    def __init__(self, **flags: Any) -> None:
        settings = settings_of({key.replace("_", "-"): value for key, value in flags.items()})
        self.counts = Counts()
        self.responder = Responder(authority_of(settings), self.counts)
        self._store = store_of(settings)
        self._now = NOW

    def become(self, items: Sequence[Item]) -> None:
        take_in(self._store, dump_files.read([("cluster.json", listed([*BASE, *items]).encode())]).objects)
        self._now += 1
        self.responder.publish(self._store.publish(self._now))

    def ask(self, name: str, rtype: str) -> list[str]:
        """Return the data of the answer, the rcode if there is none."""
        reply = ask_in_memory(self.responder, dns.message.make_query(name, rtype), "127.1.0.1")
        assert reply is not None
        if reply.authority:
            assert reply.authority[0][0].serial == self._now
        return sorted(str(row) for rrset in reply.answer for row in rrset) or [dns.rcode.to_text(reply.rcode())]


CHANGES = [
    # id, name, type, cluster before, answer before, cluster after, answer after
    ("another-service-has-the-address", "1.0.0.10.in-addr.arpa", "PTR",
     headless("web", "10.0.0.1"), [f"10-0-0-1.{WEB}."],
     [*headless("web", "10.0.0.1"), *headless("api", "10.0.0.1")],
     ["10-0-0-1.api.shop.svc.cluster.local.", f"10-0-0-1.{WEB}."]),
    ("the-address-is-a-services-own-now", "1.0.0.10.in-addr.arpa", "PTR",
     headless("web", "10.0.0.1"), [f"10-0-0-1.{WEB}."],
     [*headless("web", "10.0.0.1"), service("api", cluster_ips=("10.0.0.1",))], ["api.shop.svc.cluster.local."]),
    ("nobody-has-the-address-any-more", "1.0.0.10.in-addr.arpa", "PTR",
     headless("web", "10.0.0.1"), [f"10-0-0-1.{WEB}."], headless("web", "10.0.0.2"), ["NXDOMAIN"]),
    ("somebody-has-an-address-within", "0.10.in-addr.arpa", "PTR",
     headless("web", "10.1.0.1"), ["NXDOMAIN"], headless("web", "10.0.0.1"), ["NOERROR"]),
    ("the-alias-leads-to-other-endpoints", "near.shop.svc.cluster.local", "A",
     [alias("near", WEB), *headless("web", "10.0.0.1", keys=ZONE)], ["10.0.0.1", f"{WEB}."],
     [alias("near", WEB), *headless("web", "10.0.0.2", keys=ZONE)], ["10.0.0.2", f"{WEB}."]),
    ("the-alias-leads-to-another-service", "near.shop.svc.cluster.local", "A",
     [alias("near", WEB), *headless("web", "10.0.0.1"), *headless("api", "10.0.0.2")], ["10.0.0.1", f"{WEB}."],
     [alias("near", "api.shop.svc.cluster.local"), *headless("web", "10.0.0.1"), *headless("api", "10.0.0.2")],
     ["10.0.0.2", "api.shop.svc.cluster.local."]),
    ("the-alias-leads-to-something-now", "near.shop.svc.cluster.local", "A",
     [alias("near", WEB)], [f"{WEB}."],
     [alias("near", WEB), *headless("web", "10.0.0.1")], ["10.0.0.1", f"{WEB}."]),
    ("the-alias-leads-elsewhere", "near.shop.svc.cluster.local", "A",
     [alias("near", "a.example.")], ["a.example."], [alias("near", "b.example.")], ["b.example."]),
    ("the-endpoint-moved", f"a.pin._zone.{WEB}", "A",
     headless("web", "10.0.0.1"), ["10.0.0.1"], headless("web", "10.0.0.1", on="b1"), ["NOERROR"]),
    ("the-zone-has-one-now", f"b.pin._zone.{WEB}", "A",
     headless("web", "10.0.0.1"), ["NOERROR"], headless("web", "10.0.0.1", on="b1"), ["10.0.0.1"]),
    ("the-pod-is-gone", "10-0-0-1.shop.pod.cluster.local", "A", [pod("x", ["10.0.0.1"], "a1")], ["10.0.0.1"],
     [pod("x", ["10.0.0.1"], "a1", phase="Failed")], ["NXDOMAIN"]),
    ("the-pod-is-there", "10-0-0-1.shop.pod.cluster.local", "A", [], ["NXDOMAIN"],
     [pod("x", ["10.0.0.1"], "a1")], ["10.0.0.1"]),
    ("the-service-is-there", WEB, "A", [], ["NXDOMAIN"], headless("web", "10.0.0.1"), ["10.0.0.1"]),
    ("the-service-is-gone", WEB, "A", headless("web", "10.0.0.1"), ["10.0.0.1"], [], ["NXDOMAIN"]),
    ("the-last-endpoint-is-gone", WEB, "A", headless("web", "10.0.0.1"), ["10.0.0.1"], headless("web"), ["NXDOMAIN"]),
    ("the-namespace-is-there", "lab.svc.cluster.local", "A", [], ["NXDOMAIN"], [namespace("lab")], ["NOERROR"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rtype", "before", "first", "after", "second"),
    [row[1:] for row in CHANGES],
    ids=[row[0] for row in CHANGES],
)
def test_a_change_is_seen(
    name: str, rtype: str, before: list[Item], first: list[str], after: list[Item], second: list[str]
) -> None:
    """Whatever was remembered, the answer is that of the cluster as it is; and as it was, once it is so again."""
    cluster = Changing(pods="verified")
    for items, expected in ((before, first), (after, second), (before, first)):
        cluster.become(items)
        for _ in range(2):
            assert cluster.ask(name, rtype) == expected


def test_what_did_not_change_is_not_computed_again() -> None:
    """A hot name costs nothing while other Services come and go; only the SOA's serial is new."""
    cluster = Changing()
    hot = [*headless("web", "10.0.0.1", keys=f"{ZONE},*"), alias("out", "a.example.")]
    asked = ((WEB, "A"), (WEB, "AAAA"), (f"_main._tcp.{WEB}", "SRV"), (f"a.pin._zone.{WEB}", "A"),
             ("out.shop.svc.cluster.local", "A"))  # fmt: skip
    for number in range(4):
        cluster.become([*hot, *headless(f"other-{number}", "10.9.0.1")])
        if number == 1:
            computed = cluster.counts.computed
        for name, rtype in asked:
            cluster.ask(name, rtype)
    assert cluster.counts.computed == computed


ENDLESS = [
    # of such names there is no end; {} is a number
    "n{}.cluster.local",
    "n{}.shop.svc.cluster.local",
    f"n{{}}.{WEB}",
    f"n{{}}.pin._zone.{WEB}",
    f"n{{}}.prefer._zone.{WEB}",
    "{}-0-0-10.shop.pod.cluster.local",
    "fd00--{}.shop.pod.cluster.local",
    "{}.0.0.11.in-addr.arpa",
]


def test_endless_names_share_a_small_memory() -> None:
    """A flood of random names, some of which even have records, pushes no hot name out and does not grow the memory."""
    cluster = Changing(pods="insecure")
    cluster.become(headless("web", *(f"10.0.0.{number}" for number in range(1, 101))))
    cluster.ask(WEB, "A")
    cluster.ask(f"none.{WEB}", "A")  # from now on endpoints are known by name
    compiled = cluster.responder._services["shop/web"]
    sizes = len(compiled.memory), len(cluster.responder._index), len(cluster.responder._owners)
    octets = cluster.responder._passing.currsize
    for number in range(600):  # some 40 MB of answers, most of them a hundred addresses for names that nobody gave
        for name in ENDLESS:
            cluster.ask(name.format(number), ("A", "AAAA", "SRV", "PTR")[number % 4])
    assert octets < cluster.responder._passing.currsize <= MAX_PASSING
    assert (len(compiled.memory), len(cluster.responder._index), len(cluster.responder._owners)) == sizes
    before = cluster.counts.computed
    cluster.ask(WEB, "A")
    assert cluster.counts.computed == before
