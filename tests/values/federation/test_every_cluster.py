# SPDX-License-Identifier: Apache-2.0

"""Random clusters that export Services to each other: clients get what the rules say when read from kubectl's JSON.

``tests/oracle/twin_clusters.py`` reads the rules a second time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import dns.flags
import dns.message
import dns.rcode
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.ip import parse_address
from tests.kit.api_objects import listed
from tests.kit.dns_queries import opt, query
from tests.kit.in_memory import ClustersInMemory, CountedResponder, resolved
from tests.kit.random_federations import Case, case_of, changed
from tests.kit.replies import addresses_of_targets, parsed
from tests.kit.unshrunk import unshrunk
from tests.oracle.twin_clusters import (
    ANSWER,
    FAMILIES,
    NODATA,
    NXDOMAIN,
    UNKEPT,
    ClusterWorld,
    Expected,
    TwinClusters,
    version,
)

SEEDS = st.integers(0, 100_000)
MOST = 24  # questions between two changes
TC = 0x02  # in the third octet of a reply


class Question(NamedTuple):
    """What one client asks."""

    name: str
    qtype: str
    client: str


def questions(case: Case) -> list[Question]:
    """Return some of all questions; those for federated names are as many as those for plain ones, or more."""
    rows = [
        Question(f"{port}{name}", qtype, client)
        for name in case.names
        for client in case.clients
        for port, qtype in (("", "A"), ("", "AAAA"), ("", "SRV"), ("_main._tcp.", "SRV"))
    ]
    return random.Random(len(rows)).sample(rows, min(MOST, len(rows)))


def clusters_of(world: ClusterWorld) -> ClustersInMemory:
    texts = {name: listed(items) for name, items in world.clusters.items()}
    return ClustersInMemory(texts.pop(world.own), texts, world.flags(), hosts=resolved(world.hosts))


def message_for(responder: CountedResponder, question: Question) -> dns.message.Message:
    """Ask over UDP, where native code repeats answers, and over TCP if that cuts the reply."""
    source, wire = parse_address(question.client), query(question.name, question.qtype, edns=opt())
    reply = responder.reply(wire, source, responder.channel(source, "udp"))
    assert isinstance(reply, bytes)
    if reply[2] & TC:
        reply = responder.reply(wire, source, responder.channel(source, "tcp"))
    assert isinstance(reply, bytes)
    return parsed(reply)


def answer(responder: CountedResponder, question: Question, selected: int) -> Expected:
    """Ask, and read the reply: its first *selected* addresses are the selection, the others spares.

    In SRV the priorities tell them apart.
    """
    message = message_for(responder, question)
    if message.rcode() == dns.rcode.NXDOMAIN:
        return Expected(NXDOMAIN)
    assert message.rcode() == dns.rcode.NOERROR
    if not message.answer:
        return Expected(NODATA if message.authority[0][0].minimum else UNKEPT)
    if question.qtype == "SRV":
        return targets(responder, question, message)
    addresses = [data.address for data in chain(*message.answer)]
    assert len(set(addresses)) == len(addresses)
    return told(addresses[:selected], addresses[selected:], FAMILIES[question.qtype])


def targets(responder: CountedResponder, question: Question, message: dns.message.Message) -> Expected:
    """Return the addresses of SRV targets: those of priority 0 are selected, those of 10, 20 and so on are spares."""
    of_target = addresses_of_targets(
        message, lambda target, qtype: message_for(responder, Question(target.to_text(), qtype, question.client))
    )
    by_priority: dict[int, list[str]] = {}
    for priority, target in dict.fromkeys((data.priority, data.target) for data in chain(*message.answer)):
        by_priority.setdefault(priority, []).extend(of_target[target])
    assert list(by_priority) == [10 * number for number in range(len(by_priority))]
    first, *others = by_priority.values()
    return told(first, list(chain(*others)), FAMILIES["SRV"])


def assert_targets_are_entries(twin: TwinClusters, responder: CountedResponder, question: Question) -> None:
    """Each target resolves to addresses of one entry, those that the reply has for it among them."""
    key = ("shop", question.name.split(".")[-5])
    contexts = (*twin.world.clusters, None)
    entries = [entry.addresses for context in contexts for entry in twin.entries(key, context, "SRV")]
    additional: dict[str, set[str]] = {}
    for rrset in message_for(responder, question).additional:
        additional.setdefault(str(rrset.name), set()).update(data.address for data in rrset)
    for target, beside in additional.items():
        replies = [message_for(responder, Question(target, qtype, question.client)) for qtype in ("A", "AAAA")]
        addresses = {data.address for reply in replies for rrset in reply.answer for data in rrset}
        assert beside <= addresses
        assert any(addresses <= entry for entry in entries), (question, target, addresses)


def told(selection: Sequence[str], spares: Sequence[str], families: Sequence[int]) -> Expected:
    in_order = {family: tuple(text for text in spares if version(text) == family) for family in families}
    return Expected(ANSWER, frozenset(selection), in_order)


def by_tier(twin: TwinClusters, question: Question, reply: Expected) -> Expected:
    """Return a reply with the spares of one tier in the order of their texts.

    A target of SRV has one priority for both families, so those that are equally near may stand in either order.
    """
    service = next(label for label in question.name.split(".") if not label.startswith("_"))
    tiers = twin.tiers(("shop", service), question.client, question.qtype)
    nearest: dict[str, int] = {}
    for number, tier in enumerate(tiers):
        for text in (text for entry in tier for text in entry.addresses):
            nearest.setdefault(text, number)
    spares = {}
    for family, texts in reply.spares.items():
        in_order = sorted(texts, key=lambda text: (nearest[text], text))
        assert [nearest[text] for text in texts] == [nearest[text] for text in in_order], (question, texts)
        spares[family] = tuple(in_order)
    return reply._replace(spares=spares)


def assert_as_expected(case: Case, responder: CountedResponder, asked: Sequence[Question]) -> None:
    twin = TwinClusters(case.world)
    for question in asked:
        expected = twin.expected(*question)
        found = answer(responder, question, len(expected.addresses))
        if expected.kind == NODATA and found.kind == UNKEPT:  # costs queries only
            found = expected
        if question.qtype == "SRV" and found.kind == ANSWER and expected.spares:
            assert_targets_are_entries(twin, responder, question)
            expected, found = (by_tier(twin, question, reply) for reply in (expected, found))
        if not expected.spares:  # of a plain name
            assert not any(found.spares.values())
            found = found._replace(spares={})
        assert (question, found) == (question, expected)


@settings(unshrunk, max_examples=20)
@given(seed=SEEDS, changes=st.lists(SEEDS, min_size=1, max_size=2))
def test_every_client_gets_what_its_cluster_and_the_others_offer(seed: int, changes: Sequence[int]) -> None:
    """Federated and plain names, by every type: computed, and remembered among all others' answers.

    After something changed in one cluster, clients get what the rules say of all now, whatever is remembered.
    """
    case = case_of(seed)
    clusters = clusters_of(case.world)
    responder = clusters.responder()
    assert_as_expected(case, responder, questions(case))
    for change in changes:
        later = changed(case, change)
        for name, items in later.world.clusters.items():
            if items is not case.world.clusters[name]:
                clusters.take_in(listed(items), "" if name == case.world.own else name)
        clusters.clusters.resolve(resolved(later.world.hosts))
        responder.publish(clusters.snapshot())
        case = later
        assert_as_expected(case, responder, [*questions(case), *questions(case)[::-1]])
