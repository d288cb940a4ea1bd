# SPDX-License-Identifier: Apache-2.0

"""The answer cache: entries go when their sources change, stay when they do not, and are bounded in number."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import product
from typing import Any
from weakref import ReferenceType, ref

import dns.message
import dns.rcode
import pytest

from dnsserver.answers.decision import Decision
from dnsserver.message.query import read_query
from dnsserver.message.records import AddressData, Record
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.message.wire import A
from dnsserver.metrics.counters import Counts
from dnsserver.programs.from_settings import authority_of, store_of
from dnsserver.responder.answer_cache import MAX_WITHOUT_SOURCE, AnswerCache
from dnsserver.responder.clients import Clients
from dnsserver.responder.rendered import DecisionRenderer
from locator.ip import Network, address_text
from locator.places.book import AddressBook, Place
from tests.kit.api_objects import (
    HOSTNAME,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    external,
    listed,
    namespace,
    node,
    pod,
    service,
)
from tests.kit.dns_queries import ecs, opt
from tests.kit.dns_queries import query as asking
from tests.kit.in_memory import NOW, CountedResponder, ask_in_memory, dump_of, settings_of, take_in
from tests.kit.random_queries import Asked, replied
from tests.kit.replies import parts_of

WEB = "web.shop.svc.cluster.local"
BASE = [namespace("shop"), node("a1", {ZONE: "a"}, addresses=["127.1.0.1"]), node("b1", {ZONE: "b"})]


def headless(name: str, *addresses: str, keys: str | None = None, on: str = "a1") -> list[Item]:
    rows = [endpoint(address, nodeName=on) for address in addresses]
    return [service(name, keys=keys), endpoint_slice(name, 1, rows)]


class Changing:
    """A responder whose cluster is replaced, as when a server publishes a new snapshot."""

    def __init__(self, **settings: Any) -> None:
        flags = {key.replace("_", "-"): value for key, value in settings.items()}
        self.responder = CountedResponder(flags)
        self.counts = self.responder.counts
        self._store = store_of(settings_of(flags))
        self._now = NOW

    def become(self, items: Sequence[Item]) -> None:
        take_in(self._store, dump_of(listed([*BASE, *items])).objects)
        self._now += 1
        self.responder.publish(self._store.publish(self._now))

    def addresses(self, name: str, client: str) -> list[str]:
        """Return the IPv4 addresses in the answer, quickly."""
        reply = replied(self.responder, Asked(asking(name), client, "udp"))
        return [address_text(record[-4:]) for record in parts_of(reply).answers]

    def ask(self, name: str, rtype: str, client: str = "127.1.0.1") -> list[str]:
        """Return the data of the answer, or the rcode if there is no answer."""
        reply = ask_in_memory(self.responder, dns.message.make_query(name, rtype), client)
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
    ("nobody-has-the-address-any-more", "1.0.0.10.in-addr.arpa", "PTR",
     headless("web", "10.0.0.1"), [f"10-0-0-1.{WEB}."], headless("web", "10.0.0.2"), ["NXDOMAIN"]),
    ("somebody-has-an-address-within", "0.10.in-addr.arpa", "PTR",
     headless("web", "10.1.0.1"), ["NXDOMAIN"], headless("web", "10.0.0.1"), ["NOERROR"]),
    ("the-alias-leads-to-other-endpoints", "near.shop.svc.cluster.local", "A",
     [external("near", WEB), *headless("web", "10.0.0.1", keys=ZONE)], ["10.0.0.1", f"{WEB}."],
     [external("near", WEB), *headless("web", "10.0.0.2", keys=ZONE)], ["10.0.0.2", f"{WEB}."]),
    ("the-alias-leads-to-something-now", "near.shop.svc.cluster.local", "A",
     [external("near", WEB)], [f"{WEB}."],
     [external("near", WEB), *headless("web", "10.0.0.1")], ["10.0.0.1", f"{WEB}."]),
    ("the-alias-leads-elsewhere", "near.shop.svc.cluster.local", "A",
     [external("near", "a.example.")], ["a.example."], [external("near", "b.example.")], ["b.example."]),
    ("the-endpoint-moved", f"a.pin._zone.{WEB}", "A",
     headless("web", "10.0.0.1"), ["10.0.0.1"], headless("web", "10.0.0.1", on="b1"), ["NOERROR"]),
    ("the-zone-has-one-now", f"b.pin._zone.{WEB}", "A",
     headless("web", "10.0.0.1"), ["NOERROR"], headless("web", "10.0.0.1", on="b1"), ["10.0.0.1"]),
    ("the-pod-is-gone", "10-0-0-1.shop.pod.cluster.local", "A", [pod("x", ["10.0.0.1"], "a1")], ["10.0.0.1"],
     [pod("x", ["10.0.0.1"], "a1", phase="Failed")], ["NXDOMAIN"]),
    ("the-pod-is-there", "10-0-0-1.shop.pod.cluster.local", "A", [], ["NXDOMAIN"],
     [pod("x", ["10.0.0.1"], "a1")], ["10.0.0.1"]),
    ("the-service-is-there", WEB, "A", [], ["NXDOMAIN"], headless("web", "10.0.0.1"), ["10.0.0.1"]),
    ("the-namespace-is-there", "lab.svc.cluster.local", "A", [], ["NXDOMAIN"], [namespace("lab")], ["NOERROR"]),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=[row[0] for row in CHANGES])
def test_a_change_is_seen(change: tuple[str, str, str, list[Item], list[str], list[Item], list[str]]) -> None:
    """After each change, and after its reversal, answers are those of the current cluster."""
    cluster, (_, name, rtype, before, first, after, second) = Changing(pods="verified"), change
    for items, expected in ((before, first), (after, second), (before, first)):
        cluster.become(items)
        for _ in range(2):
            assert cluster.ask(name, rtype) == expected


def test_what_did_not_change_is_not_computed_again() -> None:
    """While other Services come and go, a cached answer stays; only the SOA's serial changes."""
    cluster = Changing()
    hot = [*headless("web", "10.0.0.1", keys=f"{ZONE},*"), external("out", "a.example.")]
    asked = ((WEB, "A"), (WEB, "AAAA"), (f"_main._tcp.{WEB}", "SRV"), (f"a.pin._zone.{WEB}", "A"),
             ("out.shop.svc.cluster.local", "A"))  # fmt: skip
    for number in range(4):
        cluster.become([*hot, *headless(f"other-{number}", "10.9.0.1")])
        if number == 1:
            computed = cluster.counts.computed
        for name, rtype in asked:
            cluster.ask(name, rtype)
    assert cluster.counts.computed == computed


def test_a_publication_that_changes_no_answer_forgets_none() -> None:
    """An endpoint that is not ready makes another snapshot: even names that do not exist stay remembered."""
    store, responder = store_of(settings_of()), CountedResponder()
    starting = {**endpoint("10.0.0.2", nodeName="b1"), "conditions": {"ready": False}}
    seen = []
    for rows in ([], [starting]):
        cluster = [*BASE, *headless("web", "10.0.0.1"), endpoint_slice("web", 2, rows), pod("x", ["10.0.0.2"], "b1")]
        take_in(store, dump_of(listed(cluster)).objects)
        seen.append(store.publish(NOW + len(seen)))
        responder.publish(seen[-1])
        for name in (WEB, "nobody.shop.svc.cluster.local"):
            ask_in_memory(responder, dns.message.make_query(name, "A"), "127.1.0.1")
    assert seen[0] is not seen[1] and responder.counts.computed == 2


def test_services_that_are_gone_leave_nothing() -> None:
    """Whatever is remembered of deleted and changed Services is freed, though nobody asks for their names again."""
    cluster = Changing()

    def remembered() -> int:
        gc.collect()
        return sum(type(each) is RenderedAnswer for each in gc.get_objects())

    before = remembered()
    for number in range(200):
        cluster.become([*headless(f"job-{number}", "10.0.0.1"), *headless("web", f"10.1.0.{number + 1}")])
        cluster.ask(f"job-{number}.shop.svc.cluster.local", "A")
        cluster.ask(WEB, "A")
    assert remembered() - before < 150


@pytest.mark.parametrize(("name", "rtype"), [("web-{}.shop.svc.cluster.local", "A"), ("{}.0.0.10.in-addr.arpa", "PTR")])
def test_a_name_that_is_asked_for_once_keeps_no_old_cluster(name: str, rtype: str) -> None:
    """An answer that still holds, or holds no more, keeps nothing of the snapshot in which it was asked for."""
    cluster, count = Changing(), 40
    services = [item for number in range(count) for item in headless(f"web-{number}", f"10.0.0.{number}")]
    books: list[ReferenceType[Any]] = []
    for number in range(count):
        cluster.become([*services, pod("other", [f"10.9.0.{number}"], "a1")])
        snapshot = cluster.responder.snapshot
        assert snapshot is not None
        books.append(ref(snapshot.addresses))
        del snapshot
        assert cluster.ask(name.format(number), rtype)[0] != "NXDOMAIN"
    gc.collect()
    assert sum(book() is not None for book in books) <= 2


def test_the_serial_is_current_in_a_shared_answer() -> None:
    """An answer from before a publication gets the new serial, also if only a further client that shares it asks."""
    cluster, clients = Changing(), {"c": "127.1.0.3", "d": "127.1.0.4"}
    nodes = [node(f"{zone}1", {ZONE: zone}, addresses=[address]) for zone, address in clients.items()]
    for zone, client in clients.items():
        cluster.become([*nodes, *headless("web", "10.0.0.1", keys=f"{ZONE},*"), namespace(zone)])
        assert cluster.ask(WEB, "AAAA", client) == ["NOERROR"]
    assert cluster.counts.computed == 1


MADE_UP = [
    # of such names there is no end; {} is a number
    "n{}.cluster.local",
    "n{}.shop.svc.cluster.local",
    f"n{{}}.{WEB}",
    f"n{{}}.pin._zone.{WEB}",
    "{}-0-0-10.shop.pod.cluster.local",
    "fd00--{}.shop.pod.cluster.local",
    "{}.0.0.11.in-addr.arpa",
]


def test_made_up_names_push_out_nothing_hot() -> None:
    """A flood of random names, some with records, does not displace names that exist."""
    cluster = Changing(pods="insecure")
    cluster.become(headless("web", *(f"10.0.0.{number}" for number in range(1, 101))))
    cluster.ask(WEB, "A")
    computed = cluster.counts.computed
    for number in range(200):
        for name in MADE_UP:
            wire = asking(name.format(number), ("A", "AAAA", "SRV", "PTR")[number % 4])
            replied(cluster.responder, Asked(wire, "127.1.0.1", "udp"))
    assert cluster.counts.computed == computed + 200 * len(MADE_UP)
    cluster.ask(WEB, "A")
    assert cluster.counts.computed == computed + 200 * len(MADE_UP)


def test_names_that_prefer_a_zone_without_endpoints_share_an_answer() -> None:
    """Whoever makes such names up costs no computation for each, however many endpoints the Service has."""
    cluster = Changing()
    cluster.become(headless("web", "10.0.0.1"))
    answers, before = [], cluster.counts.computed
    for zone in ("nowhere", "elsewhere", "x" * 63, "b"):
        name = f"{zone}.prefer._zone.{WEB}"
        asked = Asked(asking(name), "127.1.0.1", "udp")
        answers.append(cluster.ask(name, "A"))
        assert replied(cluster.responder, asked, compute=True) == replied(cluster.responder, asked)
        before += 1  # that of the line before
    assert answers == [answers[0]] * 4 and answers[0] != ["NXDOMAIN"]
    assert cluster.counts.computed == before + 1
    cluster.become(headless("web", "10.0.0.2", on="b1"))
    assert cluster.ask(f"nowhere.prefer._zone.{WEB}", "A") != answers[0]
    assert cluster.ask(f"a.prefer._zone.{WEB}", "A") == cluster.ask(f"b.prefer._zone.{WEB}", "A")


def test_srv_records_without_additional_records_are_shared_within_a_dns_zone() -> None:
    """Their targets end in it."""
    cluster = Changing(zone=["cluster.local", "topo.local"])
    cluster.become(headless("web", *(f"10.0.0.{number}" for number in range(1, 101))))
    for zone in ("topo.local", "cluster.local"):
        before = cluster.counts.computed
        for value in ("nowhere", "elsewhere"):
            targets = cluster.ask(f"{value}.prefer._zone.web.shop.svc.{zone}", "SRV")
            assert len(targets) > 1 and all(target.endswith(f".svc.{zone}.") for target in targets)
        assert cluster.counts.computed == before + 1


# Names that do not exist, in groups whose names have the same length: answers about such names may be shared.
NONEXISTENT = [
    ["aaa.shop.svc.cluster.local", "a.shop2.svc.cluster.local", "a.b.c.de.svc.cluster.local", "aa.abcde.cluster.local"],
    ["xyz.dns.cluster.local", "xyz.svc.cluster.local", "x.y.dns.cluster.local", "dns.svc.cluster.local"],
    ["a.ns.dns.cluster.local", "abcd.dns.cluster.local", "abcd.svc.cluster.local", "dns.ns.x.cluster.local"],
    ["x.hostmaster.cluster.local", "hostmaster.x.cluster.local", "a.dns.x.svc.cluster.local"],
    ["hostmaster.in-addr.arpa", "abcdefg.dns.in-addr.arpa", "300.1.1.1.in-addr.arpa"],
]  # fmt: skip


@pytest.mark.parametrize("group", NONEXISTENT, ids=lambda group: group[0])
def test_names_that_do_not_exist_get_their_own_bytes(group: list[str]) -> None:
    """A name that does not exist gets the reply that it would get alone, whatever was asked before."""
    cluster = Changing()
    for items in ([], headless("web", "10.0.0.1")):
        cluster.become(items)
        for name, rtype in product(group, ("A", "AAAA", "SRV", "TXT")):
            asked = Asked(asking(name, rtype), "127.1.0.1", "udp")
            assert cluster.ask(name, rtype) == ["NXDOMAIN"]
            assert replied(cluster.responder, asked) == replied(cluster.responder, asked, compute=True)


def test_made_up_names_share_a_small_memory() -> None:
    """Answers for random names take a bounded number of octets, however many are asked for."""
    cache, renderer = AnswerCache(), DecisionRenderer(authority_of(settings_of()), Counts())
    records = [Record("x", A, 5, AddressData(bytes((10, 0, 0, number)))) for number in range(100)]
    questions: list[bytes] = []
    for number in range(2 * MAX_WITHOUT_SOURCE // 5000):
        questions.append(b"\x06%06d\0\0\x01\0\x01" % number)
        decision = Decision(None, A, 0, tuple(records))
        cache.keep_without_source(questions[-1], renderer.render((b"%06d" % number,), decision))
    found = list(filter(None, map(cache.find, questions)))
    assert MAX_WITHOUT_SOURCE / 4 < sum(entry.weight for entry in found) <= MAX_WITHOUT_SOURCE
    assert cache.find(questions[-1]) is not None


ON_NODES = [f"127.2.{number // 250}.{number % 250 + 1}" for number in range(1500)]  # more than MAX_ANSWERS


def test_a_flood_of_places_leaves_a_hot_one() -> None:
    """If clients with thousands of values of a key ask for one name, a frequent client is computed once."""
    cluster = Changing()
    racks = [node(f"n{number}", {"rack": f"r{number}"}, addresses=[text]) for number, text in enumerate(ON_NODES)]
    cluster.become([*headless("web", "10.0.0.1", keys="rack,*"), *racks])
    cluster.ask(WEB, "A")
    for client in ON_NODES * 2:
        before = cluster.counts.computed
        assert cluster.addresses(WEB, "127.1.0.1") == ["10.0.0.1"]
        assert cluster.counts.computed == before, client
        cluster.addresses(WEB, client)


@pytest.mark.parametrize(
    "hints", [None, {"forNodes": [{"name": "a1"}], "forZones": [{"name": "a"}]}], ids=["keys", "hints"]
)
def test_nodes_without_an_endpoint_share_an_answer(hints: Item | None) -> None:
    """A key that differs on every node costs one answer for each node with an endpoint, and one for each zone."""
    cluster, clients = Changing(), ON_NODES[:500]
    own = service("web", keys=None if hints else f"{HOSTNAME},{ZONE},*")
    row = endpoint("10.0.0.1", nodeName="a1", **({"hints": hints} if hints else {}))
    nodes = [node(f"n{number}", {ZONE: "ab"[number % 2]}, addresses=[text]) for number, text in enumerate(clients)]
    cluster.become([own, endpoint_slice("web", 1, [row]), *nodes])
    before = cluster.counts.computed
    for client in clients * 2:
        assert cluster.addresses(WEB, client) == ["10.0.0.1"]
    assert cluster.counts.computed - before <= 4


def test_a_daemon_on_every_node() -> None:
    """Each client of a node-local agent gets the agent on its node, and each answer is computed once."""
    cluster = Changing()
    agents = [endpoint(f"10{text[3:]}", nodeName=f"n{number}") for number, text in enumerate(ON_NODES)]
    slices = [endpoint_slice("web", start, agents[start : start + 100]) for start in range(0, len(agents), 100)]
    nodes = [node(f"n{number}", addresses=[text]) for number, text in enumerate(ON_NODES)]
    cluster.become([service("web", keys=HOSTNAME), *slices, *nodes])
    for turn in range(3):
        before = cluster.counts.computed
        for client in ON_NODES:
            assert cluster.addresses(WEB, client) == [f"10{client[3:]}"]
        assert turn == 0 or cluster.counts.computed == before


@pytest.mark.parametrize("order", [("127.1.0.1", "127.1.0.2"), ("127.1.0.2", "127.1.0.1")], ids=["value", "no-label"])
def test_an_error_names_the_clients_own_value(order: Sequence[str]) -> None:
    """A value without an endpoint and no value at all get the same endpoints, none, but not the same text."""
    cluster = Changing()
    bare = node("bare", addresses=["127.1.0.2"])
    cluster.become([*headless("web", "10.0.0.1", keys=ZONE, on="b1"), bare])
    texts = {}
    for client in (*order, *order):
        reply = ask_in_memory(cluster.responder, dns.message.make_query(WEB, "A", use_edns=0), client)
        assert reply is not None
        texts[client] = str(reply.options[0])
    assert f"{ZONE}=a" in texts["127.1.0.1"] and "no label" in texts["127.1.0.2"]


def test_a_flood_of_subnets_leaves_a_hot_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many subnets a forwarder names, a frequent one stays cached, and a bounded number of the others does."""
    monkeypatch.setattr("dnsserver.responder.clients.MAX_BLOCKS", 1024)
    clients, forwarder = Clients(), bytes((10, 0, 0, 53))
    clients.follow(AddressBook(forwarders=[Network(forwarder, 32)], subnets={Network(bytes((10, 0, 0, 0)), 7): {}}))

    def place_of(*address: int) -> Place:
        query = read_query(asking(WEB, edns=opt(ecs(f"{'.'.join(map(str, address))}.0/24"))))
        assert query is not None
        return clients.client_of(query, forwarder).place

    hot = place_of(10, 1, 1)
    before = sum(type(each) is Place for each in gc.get_objects())
    for number in range(4 * 1024):
        place_of(11, number // 256, number % 256)
        if number % 100 == 0:
            assert place_of(10, 1, 1) is hot
    assert sum(type(each) is Place for each in gc.get_objects()) - before <= 1024
