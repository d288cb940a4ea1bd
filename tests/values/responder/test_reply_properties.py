# SPDX-License-Identifier: Apache-2.0

"""Properties of replies: one for each promise, for any cluster, client, query and order."""

from __future__ import annotations

import ipaddress
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.message.records import Opaque, Record
from dnsserver.message.wire import AAAA, A
from dnsserver.programs.from_settings import store_of
from dnsserver.responder.replies import AnsweredQuery
from locator.ip import address_text
from locator.places.forwarders import GRACE_SECONDS
from locator.state.snapshot import Snapshot
from locator.state.store import Store
from tests.kit import api_objects, random_cluster, random_queries
from tests.kit.api_objects import Item
from tests.kit.dns_queries import CLIENT_OPTION, ecs, opt, query
from tests.kit.in_memory import NOW, CountedResponder, dump_of, settings_of, take_in, with_and_without_native
from tests.kit.outside import alias, said
from tests.kit.proxy_headers import LOCAL, proxied, proxy_header
from tests.kit.random_cluster import SUBNETS, World
from tests.kit.random_queries import Asked, asked, replied
from tests.kit.replies import addresses_of_targets, assert_same, parsed, parts_of
from tests.kit.unshrunk import unshrunk
from tests.oracle.twin import Modes, Twin
from tests.oracle.twin_map import of_kind

steady = settings(unshrunk, max_examples=30)
FLAGS = {
    "client-option": CLIENT_OPTION,
    "ns-address": ["192.0.2.53", "2001:db8::53"],
    "subnet": [f"{network}={','.join(f'{key}={value}' for key, value in labels.items())}"
               for network, labels in SUBNETS.items()],
}  # fmt: skip
SEEDS = st.integers(0, 100_000)


def store_with(items: Iterable[Item], flags: Mapping[str, Any] | None = None) -> Store:
    store = store_of(settings_of({**FLAGS, **(flags or {})}))
    take_in(store, dump_of(api_objects.listed(items)).objects)
    return store


def responder_for(
    snapshot: Snapshot, flags: Mapping[str, Any] | None = None, *, native: bool | None = None
) -> CountedResponder:
    settings = {"client-option": CLIENT_OPTION, "nsid": "off", **FLAGS, **(flags or {})}
    responder = CountedResponder(settings, native=native)
    responder.publish(snapshot)
    return responder


def responder_on(
    items: Iterable[Item], flags: Mapping[str, Any] | None = None, *, native: bool | None = None
) -> CountedResponder:
    return responder_for(store_with(items, flags).publish(NOW), flags, native=native)


def answer(responder: CountedResponder, asked: Asked) -> bytes | None:
    return finished(responder, replied(responder, asked))


def compute(responder: CountedResponder, asked: Asked) -> bytes | None:
    return finished(responder, replied(responder, asked, compute=True))


def finished(responder: CountedResponder, reply: bytes | AnsweredQuery | None) -> bytes | None:
    """Return a reply after an upstream's answer: one more alias and two addresses, nothing for types of other data."""
    if not isinstance(reply, AnsweredQuery):
        return reply
    size = {A: 4, AAAA: 16}.get(reply.query.qtype, 0)
    found = [Record("far.example.net", reply.query.qtype, 60, Opaque(bytes((each,) * size))) for each in (1, 2)]
    octets = responder.finished(reply, said([alias(reply.target, "far.example.net"), *found] if size else []))
    assert isinstance(octets, bytes)
    return octets


# What is asked


class Conversation(NamedTuple):
    world: World
    queries: list[Asked]
    sources: Sequence[str] = ()
    flags: Mapping[str, Any] = {}

    def from_everywhere(self) -> Iterator[Asked]:
        """Yield each query as it is, from every source, and from a forwarder that names clients or nobody."""
        for sent in self.queries:
            yield sent
            for source in self.sources:
                yield sent._replace(source=source)
            for header in (*map(proxied, self.sources[:2]), proxy_header(command=LOCAL)):
                yield sent._replace(source=random_cluster.FORWARDER, header=header)


@st.composite
def conversations(draw: st.DrawFn, least: int = 1, most: int = 25) -> Conversation:
    """A cluster, and queries about few of its names and types, so that they meet in every cache."""
    seed = draw(SEEDS)
    world, rng = random_cluster.world(seed), random.Random(seed)
    aliases = [name for name in world.names if name.startswith("alias")]
    names = [*rng.sample(world.names, 2), f"s{rng.randrange(2)}.shop.svc.cluster.local", *aliases[:1]]
    narrow = world._replace(names=names, addresses=rng.sample(world.addresses, 5))
    types = rng.sample(("A", "AAAA", "SRV", *random_queries.ASKED_TYPES), 2)
    sources = [*narrow.addresses, "192.168.0.1", random_cluster.FORWARDER]  # the forwarder is on the first node
    flags = {
        "pods": rng.choice(("disabled", "insecure", "verified")),
        "upstream": rng.choice(("off", "192.0.2.1")),
        "endpoint-pod-names": rng.choice((False, True)),
        "ignore-empty-service": rng.choice((False, True)),
        "proxy-protocol": rng.choice((False, True)),
    }
    return Conversation(world, draw(st.lists(asked(narrow, types), min_size=least, max_size=most)), sources, flags)


# The cluster read naively

PREFIXES = {4: (8, 16, 22, 23, 24, 25, 31), 6: (8, 32, 47, 48, 56, 63, 64, 65, 120)}


@settings(steady, max_examples=15)
@given(seed=SEEDS, later=SEEDS)
def test_every_block_of_clients_gets_what_all_of_it_agrees_on(seed: int, later: int) -> None:
    """A and AAAA for client subnets shorter than a host: what the twin chooses, asked twice, and after a change."""
    world = random_cluster.world(seed)
    items, store = world.items, store_with(world.items)
    responder = responder_for(store.publish(NOW))
    rng = random.Random(seed)
    blocks = [
        ipaddress.ip_network(f"{client}/{rng.choice(PREFIXES[6 if ':' in client else 4])}", strict=False)
        for client in rng.sample(world.addresses, min(10, len(world.addresses)))
    ]
    for number in range(3):
        twin = twin_of(items)
        places = {block: twin.map.agreed(block) for block in blocks}
        for namespace, name in twin.headless():
            for block, where in places.items():
                expected = twin.given((namespace, name), where).addresses
                for _ in range(2):
                    found = addresses(responder, name, random_cluster.FORWARDER, edns=opt(ecs(str(block))))
                    assert (name, str(block), found) == (name, str(block), expected)
        items = random_cluster.changed(items, later + number)
        take_in(store, dump_of(api_objects.listed(items)).objects)
        responder.publish(store.publish(NOW + number))


def twin_of(items: Sequence[Item]) -> Twin:
    return Twin(items, Modes(subnets=SUBNETS))


def addresses(responder: CountedResponder, name: str, client: str, *, edns: bytes = b"") -> set[str]:
    """Return a client's answers for A and AAAA together."""
    found = set()
    for qtype, size in (("A", 4), ("AAAA", 16)):
        reply = answer(responder, Asked(query(f"{name}.shop.svc.cluster.local", qtype, edns=edns), client, "tcp"))
        assert reply is not None
        found |= {address_text(record[-size:]) for record in parts_of(reply).answers}
    return found


@steady
@given(seed=SEEDS)
def test_nodes_alone_tell_as_much_as_pods_where_their_blocks_tell_the_truth(seed: int) -> None:
    """If pod CIDRs are right, clients are located as well without pods."""
    world = random_cluster.world(seed, truthful=True)
    # What a virtual node lacks, the first of its pod's addresses says, which nodes do not know.
    flags = {"subnet": [text for text in FLAGS["subnet"] if text.startswith("198.")]}
    with_pods = responder_on(world.items, flags)
    without = responder_on(world.items, {**flags, "client-source": "nodes"})
    for name in (service["metadata"]["name"] for service in of_kind(world.items, "Service")):
        for client in random.Random(seed).sample(world.addresses, min(8, len(world.addresses))):
            each = Asked(query(f"{name}.shop.svc.cluster.local", edns=opt()), client, "tcp")
            assert_same(answer(with_pods, each), answer(without, each), answer(without, each))


# The memory


@settings(steady, max_examples=50)
@given(conversation=conversations(1, 10))
@with_and_without_native
def test_remembered_replies_equal_computed_ones(native: bool, conversation: Conversation) -> None:
    """A cached reply equals the computed one, octet for octet except for the rotation."""
    responder = responder_on(conversation.world.items, conversation.flags, native=native)
    for sent in conversation.from_everywhere():
        assert_same(answer(responder, sent), compute(responder, sent), compute(responder, sent._replace(proto="tcp")))


@settings(steady, max_examples=40)
@given(conversation=conversations(5, 12), seed=SEEDS)
@with_and_without_native
def test_what_is_remembered_outlives_a_change_only_where_it_is_still_true(
    native: bool, conversation: Conversation, seed: int
) -> None:
    """After a change, answers are those of a server that starts now."""
    before = after = conversation.world.items
    for number in range(3):
        after = random_cluster.changed(after, seed + number)
    store, flags = store_with(before, conversation.flags), conversation.flags
    responder = responder_for(store.publish(NOW), flags, native=native)
    for sent in conversation.from_everywhere():
        answer(responder, sent)
    take_in(store, dump_of(api_objects.listed(after)).objects)
    store.publish(NOW + 60)  # a forwarder that is gone is trusted for some seconds more
    snapshot = store.publish(NOW + 60 + GRACE_SECONDS)
    responder.publish(snapshot)
    fresh = responder_for(store_with(after, flags).publish(snapshot.serial), flags)
    for each in [*conversation.queries, *conversation.from_everywhere()]:
        whole = compute(fresh, each._replace(proto="tcp"))
        assert_same(answer(responder, each), compute(fresh, each), whole)


# Replies


@steady
@given(conversation=conversations())
def test_every_record_stands_under_its_right_name(conversation: Conversation) -> None:
    """Records are owned by the question's name, additional records by a target, the SOA by its zone."""
    responder = responder_on(conversation.world.items, conversation.flags)
    for sent in conversation.queries:
        reply = parsed(answer(responder, sent._replace(header=b"")))
        asked_for = reply.question[0].name
        if reply.answer and reply.answer[0].rdtype == dns.rdatatype.CNAME:
            assert_chain(reply)
            continue
        targets = {row.target for rrset in reply.answer if rrset.rdtype == dns.rdatatype.SRV for row in rrset}
        hosts = {row.target for rrset in reply.answer if rrset.rdtype == dns.rdatatype.NS for row in rrset}
        assert all(rrset.name == asked_for for rrset in reply.answer)
        zones = ("cluster.local.", "in-addr.arpa.", "ip6.arpa.")
        assert all(rrset.name.to_text().lower() in zones for rrset in reply.authority)
        assert all(rrset.name in targets | hosts for rrset in reply.additional)
        base = b".".join(asked_for.labels[2 if asked_for.labels[0].startswith(b"_") else 0 :]).lower().decode()
        for target in targets:
            assert target.to_text().endswith(base)


def assert_chain(reply: dns.message.Message) -> None:
    """Each alias comes before its target (RFC 1034, 3.6.2), and all other records have one owner."""
    expected = reply.question[0].name
    for rrset in reply.answer:
        assert rrset.name == expected
        if rrset.rdtype == dns.rdatatype.CNAME:
            (row,) = rrset
            expected = row.target


@settings(steady, max_examples=20)
@given(seed=SEEDS, client=st.integers(0, 99), proto=st.sampled_from(("tcp", "udp")))
def test_a_aaaa_and_srv_agree_on_the_endpoints(seed: int, client: int, proto: str) -> None:
    """A, AAAA and SRV are made of one choice of endpoints."""
    world = random_cluster.world(seed)
    responder, source = responder_on(world.items), world.addresses[client % len(world.addresses)]
    for name in (name for name in world.names if re.fullmatch(r"s\d\.shop\..*", name)):
        reply = answer(responder, Asked(query(name, "SRV", edns=opt(size=4096)), source, proto))
        srv = parsed(reply)
        if srv.answer and ("shop", name.split(".")[0]) in twin_of(world.items).headless():
            targets = addresses_of_targets(
                srv,
                lambda target, qtype: parsed(answer(responder, Asked(query(target.to_text(), qtype), source, "tcp"))),
            )
            chosen = set().union(*targets.values())
            both = addresses(responder, name.split(".")[0], source)
            families = {":" in text for text in chosen}  # A soft choice without a family is made again for that one.
            found = {text for text in both if (":" in text) in families}
            assert chosen == found or (proto == "udp" and chosen < found)  # as much as fits
        for qtype in ("A", "AAAA"):
            if srv.rcode() == dns.rcode.NXDOMAIN:
                reply = answer(responder, Asked(query(name, qtype), source, proto))
                assert parsed(reply).rcode() == dns.rcode.NXDOMAIN
