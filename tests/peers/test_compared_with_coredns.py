# SPDX-License-Identifier: Apache-2.0

"""CoreDNS and topodns answer the same questions about one real cluster alike, but for a table of differences.

The table is ``tests/peers/comparison/differences.toml``; ``docs/compared-with-coredns.md`` shows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import dns.message
import dns.query
import pytest
import yaml

from tests.kit.api_objects import SERVICE_NAME, ZONE
from tests.kit.coredns import kubernetes_block, running_coredns
from tests.kit.kube import DUMPED, ControlPlane, Item, multicluster_api
from tests.kit.topodns_process import serving
from tests.kit.waiting import PATIENCE
from tests.peers.comparison import cluster
from tests.peers.comparison.asking import (
    CLUSTERSET,
    DOMAIN,
    DOMAINS,
    REVERSE,
    UPSTREAM_FAILS,
    UPSTREAM_ZONE,
    checked,
    dashed,
    names,
    questions,
    replies,
)
from tests.peers.comparison.cluster import OUTSIDE
from tests.peers.comparison.differences import DIFFERENCES, CorednsBook, Facts, knowing
from tests.peers.comparison.settings import PAIRS, Pair

SHOWN = 12  # unequal replies that a failure prints


class Outcome(NamedTuple):
    """The result of one pair of settings: the number of questions, the replies that are wrong, the rows used."""

    asked: int
    wrong: list[str]
    used: frozenset[str]


@pytest.fixture(scope="module")
def outcome_of(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Pair], Outcome]]:
    """Return a function that compares both servers with a pair of settings, once for each pair."""
    folder = tmp_path_factory.mktemp("compared")
    control_plane.settle()
    books: dict[Pair, CorednsBook] = {}
    ports: dict[Pair, int] = {}
    outcomes: dict[Pair, Outcome] = {}
    with ExitStack() as stack:
        stack.enter_context(multicluster_api(control_plane))
        cluster.fill(control_plane.api)
        stack.callback(cluster.empty, control_plane.api)
        dump = folder / "dump.yaml"
        dump.write_text(control_plane.dump(f"{DUMPED},serviceimports"))
        items: list[Item] = yaml.load(dump.read_text(), yaml.CSafeLoader)["items"]
        zone = folder / "outside.zone"
        zone.write_text(UPSTREAM_ZONE)
        upstream = stack.enter_context(
            running_coredns(folder, f"file {zone} {OUTSIDE}\n{UPSTREAM_FAILS}", name="upstream")
        )

        def book_of(pair: Pair) -> CorednsBook:
            if pair not in books:
                block = kubernetes_block(control_plane.kubeconfig, *pair.coredns, zones=(*DOMAINS, *REVERSE))
                if pair.upstream:
                    block += f"\nforward . 127.0.0.1:{upstream.port}"
                server = stack.enter_context(running_coredns(folder, block, name=f"coredns-{pair.name}"))
                ports[pair] = server.port
                books[pair] = CorednsBook(
                    pair,
                    partial(replies, "127.0.0.1", server.port),
                    upstream=partial(replies, "127.0.0.1", upstream.port),
                    zonal=None if pair is PAIRS[0] else book_of(PAIRS[0]),
                    facts=facts_of(items),
                )
            return books[pair]

        def outcome(pair: Pair) -> Outcome:
            if pair not in outcomes:
                own = tmp_path_factory.mktemp(pair.name)
                book, lookups = book_of(pair), f"127.0.0.1:{upstream.port}" if pair.upstream else "off"
                with serving(own, dump, *pair.topodns, *ns_addresses(ports[pair]), "--upstream", lookups) as server:
                    outcomes[pair] = compared(book, items, server.port)
            return outcomes[pair]

        yield outcome


def compared(book: CorednsBook, items: list[Item], port: int) -> Outcome:
    """Ask CoreDNS, by its book, and the server at *port*."""
    rng = random.Random(book.pair.name)
    found = names(items, rng, domain=book.pair.domain)
    all_asked = questions({name: found[name] for name in found if rng.randrange(100) < book.pair.share}, rng)
    theirs = book.learn(all_asked)
    book.look_up(one for name, exists in found.items() if exists for one in knowing(name))
    wrong = []
    for one, their, wire in zip(all_asked, theirs, replies("127.0.0.1", port, all_asked), strict=True):
        (ours, fault), expected = checked(wire), book.expected(one.question)
        if fault or ours != expected:
            wrong.append(f"{one.question}: {fault}\nCoreDNS {their}\nexpected {expected}\ntopodns {ours}\n")
    return Outcome(len(all_asked), wrong, frozenset(book.used))


def facts_of(items: list[Item]) -> Facts:
    """Return the facts of a dump that CoreDNS does not use."""
    pods = [item for item in items if item["kind"] == "Pod" and item["status"]["phase"] in ("Running", "Pending")]
    pods = [item for item in pods if "deletionTimestamp" not in item["metadata"]]
    slices = [item for item in items if item["kind"] == "EndpointSlice" and SERVICE_NAME in item["metadata"]["labels"]]
    services = {
        f"{item['metadata']['name']}.{item['metadata']['namespace']}.svc.{DOMAIN}": item
        for item in items
        if item["kind"] == "Service"
    }
    nodes = [item["metadata"] for item in items if item["kind"] == "Node"]
    zones = {one["name"]: one.get("labels", {}).get(ZONE, "") for one in nodes}
    return Facts(
        second_addresses={
            f"{dashed(row['ip'])}.{item['metadata']['namespace']}.pod.{domain}": row["ip"]
            for domain in DOMAINS
            for item in pods
            for row in item["status"]["podIPs"][1:]
        },
        zones={
            address: zones.get(row.get("nodeName", ""), row.get("zone", "")).lower()
            for item in slices
            for row in item["endpoints"] or ()
            for address in row["addresses"]
        },
        services=frozenset(base for base, item in services.items() if item["spec"]["type"] != "ExternalName"),
        named=frozenset(owner_of(item) for item in slices if item["addressType"] == "FQDN"),
        dotted={
            f"{target}.{owner_of(item)}": f"{dashed(row['addresses'][0])}.{owner_of(item)}"
            for item in slices
            for row in item["endpoints"] or ()
            if "." in (target := row.get("targetRef", {}).get("name", "")) and "hostname" not in row
        },
        portless={
            f"{item['metadata']['name']}.{item['metadata']['namespace']}.svc.{CLUSTERSET}": item["spec"].get("ips", ())
            for item in items
            if item["kind"] == "ServiceImport" and not item["spec"]["ports"] and item["spec"]["type"] != "Headless"
        },
    )


def owner_of(item: Item) -> str:
    """Return the name of the Service that an EndpointSlice belongs to."""
    return f"{item['metadata']['labels'][SERVICE_NAME]}.{item['metadata']['namespace']}.svc.{DOMAIN}"


def ns_addresses(port: int) -> list[str]:
    """Return flags with the name server addresses that CoreDNS uses: those of this machine at its start."""
    flags = []
    for rtype in ("A", "AAAA"):
        reply = dns.query.udp(
            dns.message.make_query(f"ns.dns.{DOMAIN}", rtype), "127.0.0.1", port=port, timeout=PATIENCE
        )
        flags += [part for rrset in reply.answer for row in rrset for part in ("--ns-address", row.to_text())]
    return flags


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_same_question_same_answer(outcome_of: Callable[[Pair], Outcome], pair: Pair) -> None:
    """Names, types, records, TTLs, rcodes, flags and sections are those of CoreDNS, unless a row says otherwise."""
    outcome = outcome_of(pair)
    shown = "\n".join(outcome.wrong[:SHOWN])
    assert not outcome.wrong, f"{len(outcome.wrong)} of {outcome.asked} replies:\n{shown}"


def test_every_difference_is_met(outcome_of: Callable[[Pair], Outcome]) -> None:
    """Each row of the table is needed by some question."""
    used = frozenset().union(*[outcome_of(pair).used for pair in PAIRS])
    assert [row.name for row in DIFFERENCES if row.name not in used] == []
