# SPDX-License-Identifier: Apache-2.0

"""The tap: who listens hears of every reply what it was decided from, and changes none."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import ANY

import dns.rcode
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.message.records import Host, Opaque, Record
from dnsserver.message.wire import CNAME
from dnsserver.programs.from_settings import store_of
from dnsserver.responder.replies import AnsweredQuery
from dnsserver.tools.explain.explanation import ServiceExplained
from dnsserver.tools.tap.lines import TailLine, as_text
from dnsserver.tools.tap.listeners import MAX_WAITING, DecisionStream, Sample, Wanted
from dnsserver.tools.tap.tap import TapEvent
from locator.ip import parse_address, parse_client
from locator.printable import json_text
from tests.kit import random_cluster, small_cluster
from tests.kit.api_objects import RACK, ZONE, endpoint, endpoint_slice, external, listed, namespace, node, pod, service
from tests.kit.commands_in_process import Run
from tests.kit.dns_queries import CLIENT_OPTION, ecs, opt, query
from tests.kit.in_memory import (
    NOW,
    ClustersInMemory,
    CountedResponder,
    dump_of,
    responder_of,
    settings_of,
    snapshot_of,
    take_in,
    with_and_without_native,
)
from tests.kit.outside import FAILED, said
from tests.kit.proxy_headers import proxied
from tests.kit.random_queries import Asked, asked, replied
from tests.kit.replies import parsed
from tests.kit.tapped import Everything, tap_of
from tests.kit.unshrunk import unshrunk

FORWARDER, FRONT, BACK, ELSEWHERE = "10.9.9.9", "10.244.1.9", "10.244.2.9", "203.0.113.7"
CLUSTER = listed([
    *map(namespace, ("default", "shop")),
    node("a1", {ZONE: "a", RACK: "1"}, addresses=["10.0.0.1"], cidrs=["10.244.1.0/24"]),
    node("b1", {ZONE: "b", RACK: "2"}, addresses=["10.0.0.2"], cidrs=["10.244.2.0/24"]),
    pod("front", [FRONT], "a1"),
    service("near", keys=f"{ZONE},*"),
    endpoint_slice("near", 1, [endpoint("10.244.1.7", nodeName="a1"), endpoint("10.244.2.7", nodeName="b1")]),
    service("hard", keys=RACK),
    endpoint_slice("hard", 1, [endpoint("10.244.2.8", nodeName="b1")]),
    service("plain"),
    endpoint_slice("plain", 1, [endpoint("10.244.1.5", nodeName="a1"), endpoint("10.244.2.5", nodeName="b1")]),
    service("down"),
    external("alias", "near.shop.svc.cluster.local"),
    external("away", "www.example.org"),
])  # fmt: skip
FLAGS = {"trusted-forwarder": f"{FORWARDER}/32", "upstream": "192.0.2.1", "client-option": CLIENT_OPTION}
NEAR, HARD, PLAIN, ALIAS, AWAY = (
    f"{name}.shop.svc.cluster.local" for name in ("near", "hard", "plain", "alias", "away")
)


def responding(*, native: bool = False, **flags: Any) -> CountedResponder:
    responder = CountedResponder({**FLAGS, **flags}, native=native)
    responder.publish(snapshot_of(CLUSTER, {**FLAGS, **flags}))
    return responder


def forwarded(client: str) -> bytes:
    return opt(ecs(client))


def ask(responder: CountedResponder, wire: bytes, source: str = FORWARDER, proto: str = "udp") -> Any:
    return replied(responder, Asked(wire, source, proto))


def as_json(line: TailLine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json_text(line))
    return found


TOLD = [
    # id, query, source, what the line says
    ("nearest", query(NEAR, edns=forwarded(FRONT)), FORWARDER,
     {"outcome": "nearest", "rcode": "NOERROR", "address": FRONT, "located_by": "pod", "holder": "pod shop/front",
      "service": {"namespace": "shop", "name": "near"}, "answers": ["10.244.1.7"],
      "places": [{"address": "10.244.1.7", "holder": "pod CIDR 10.244.1.0/24 of a1", "node": "a1", "zone": "a"}]}),
    ("directly", query(NEAR), FRONT, {"outcome": "nearest", "address": FRONT, "source": FRONT}),
    ("block", query(NEAR, edns=forwarded("10.244.2.0/24")), FORWARDER,
     {"outcome": "nearest", "address": "10.244.2.0/24", "located_by": "podcidr", "answers": ["10.244.2.7"]}),
    ("unnamed", query(NEAR), FORWARDER, {"address": "", "located_by": "unknown", "outcome": "all", "holder": None}),
    ("no-family", query(NEAR, edns=opt(ecs("0"))), FORWARDER, {"address": "", "answers": ANY}),
    ("untrusted", query(NEAR, edns=forwarded(FRONT)), ELSEWHERE, {"address": ELSEWHERE, "outcome": "all"}),
    ("unmet", query(HARD, edns=forwarded(FRONT)), FORWARDER,
     {"outcome": "unmet", "rcode": "NOERROR", "answers": [], "places": []}),
    ("unconstrained", query(PLAIN), FRONT, {"outcome": "unconstrained"}),
    ("no-such-name", query("nix.shop.svc.cluster.local"), FRONT,
     {"rcode": "NXDOMAIN", "service": None, "reason": "topodns serves no Service shop/nix"}),
    ("no-such-namespace", query("nix.nix.svc.cluster.local"), FRONT, {"reason": "topodns serves no namespace nix"}),
    ("outside", query("www.example.com"), FRONT, {"rcode": "REFUSED", "service": None}),
    ("alias", query(ALIAS), FRONT,
     {"service": {"namespace": "shop", "name": "near"}, "answers": [f"{NEAR}.", "10.244.1.7"]}),
    ("any", query(PLAIN, "ANY"), FRONT, {"answers": ['"RFC8482" ""']}),
    ("odd-octets", query([b"\xff\0.", *(label.encode() for label in PLAIN.split("."))]), FRONT,
     {"name": f"\xff\0\\..{PLAIN}.", "rcode": "NXDOMAIN"}),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "source", "said"), [row[1:] for row in TOLD], ids=[row[0] for row in TOLD])
def test_a_line_says_what_was_decided(wire: bytes, source: str, said: dict[str, Any]) -> None:
    """It has the client as it was located, and the answers that were sent in their order; asked again, too."""
    responder, everything = responding(), Everything(FLAGS)
    tap_of(responder).listen(everything)
    for turn in range(2):
        reply = ask(responder, wire, source)
        line = as_json(everything.lines[turn])
        answers = line["answers"]
        found = {**line["question"], **line["client"], **line, "answers": [answer["data"] for answer in answers]}
        assert found == found | said
        sent = parsed(reply, one_rr_per_rrset=True)
        records = [(rrset.name.to_text().lower(), rrset.ttl, rrset[0].to_text()) for rrset in sent.answer]
        assert [(answer["name"], answer["ttl"], answer["data"]) for answer in answers] == records
        assert dns.rcode.to_text(sent.rcode()) == line["rcode"]
    assert line["time"] == "2023-11-14T22:13:20.500Z"
    assert len(everything.events) == 2


NOT_TOLD = [
    ("malformed", b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\xc0"),
    ("reply", query(NEAR, flags=0x8100)),
    ("opcode", query(NEAR, flags=0x1000)),
    ("class", query(NEAR, qclass=3)),
    ("version", query(NEAR, edns=opt(version=1))),
]


@pytest.mark.parametrize("wire", [row[1] for row in NOT_TOLD], ids=[row[0] for row in NOT_TOLD])
def test_what_is_refused_before_its_name_is_looked_at_is_not_told(wire: bytes) -> None:
    """There is no Decision about it."""
    responder, everything = responding(), Everything(FLAGS)
    tap_of(responder).listen(everything)
    ask(responder, wire)
    assert not everything.events


def test_nothing_is_told_before_the_first_snapshot() -> None:
    """There is no Decision about SERVFAIL, either."""
    responder, everything = CountedResponder(FLAGS, native=False), Everything(FLAGS)
    tap_of(responder).listen(everything)
    assert parsed(ask(responder, query(NEAR))).rcode() == dns.rcode.SERVFAIL
    assert not everything.events


def test_a_line_is_about_the_snapshot_of_its_answer(topodns: Run, tmp_path: Path) -> None:
    """However late it is made. Apart from what was sent, it is what ``explain`` says of that snapshot."""
    responder, everything = responding(), Everything(FLAGS)
    tap_of(responder).listen(everything)
    ask(responder, query(NEAR, edns=forwarded(FRONT)))
    responder.publish(snapshot_of(listed([namespace("shop")]), FLAGS))
    line = as_json(everything.lines[0])
    path = tmp_path / "cluster.json"
    path.write_text(CLUSTER)
    said = topodns("explain", NEAR, "--client", FRONT, "-o", "json", "--snapshot", str(path)).json
    assert {key: line[key] for key in said} == said


@settings(unshrunk, max_examples=40)
@given(st.data())
def test_a_tap_changes_no_reply(data: st.DataObject) -> None:
    """Whatever is asked, and whoever listens: the same octets, in the same order. What is told is what was sent."""
    world = random_cluster.world(data.draw(st.integers(0, 1000)))
    flags = {"client-option": CLIENT_OPTION, "proxy-protocol": True, "upstream": "off", "pods": "insecure"}
    cluster = listed(world.items)
    plain, tapped = (CountedResponder(flags, native=False) for _ in range(2))
    for responder in (plain, tapped):
        responder.publish(snapshot_of(cluster, flags))
    tap, everything = tap_of(tapped), Everything(flags)
    listeners = [
        everything,
        DecisionStream(Wanted(outcome="nearest"), lambda: None),
        Sample(2, random.Random(1).random),
    ]
    for listener in data.draw(st.permutations(listeners)):
        tap.listen(listener)
    for sent in data.draw(st.lists(asked(world), min_size=1, max_size=15)):
        told = len(everything.events)
        wanted, reply = replied(plain, sent), replied(tapped, sent)
        if isinstance(wanted, AnsweredQuery):
            wanted, reply = plain.finished(wanted, FAILED), tapped.finished(reply, FAILED)
        assert reply == wanted
        for line in everything.lines[told:]:
            message = parsed(reply, one_rr_per_rrset=True)
            assert [answer.data for answer in line.answers] == [rrset[0].to_text() for rrset in message.answer]
            assert line.rcode == dns.rcode.to_text(message.rcode())
    assert counted(tapped) == counted(plain)


def counted(responder: CountedResponder) -> list[str]:
    """Return what a responder has counted."""
    return sorted(
        f"{channel.proto} {channel.family} {origin} {tally} {replies}"
        for channel, origin, tally, replies in responder.counts.replies()
    )


# Native code


@with_and_without_native
def test_nobody_pays_while_nobody_listens(native: bool) -> None:
    """Before and after, the responder is as it was, and native code repeats answers again."""
    responder, everything = responding(native=native), Everything(FLAGS)
    tap = tap_of(responder)
    wire, source = query(NEAR, edns=forwarded(FRONT)), parse_address(FORWARDER)
    for listening in (False, True, False):
        if listening:
            tap.listen(everything)
        else:
            tap.leave(everything)
        for _ in range(3):
            ask(responder, wire)
        if responder.native is not None:
            assert (responder.native.reply(wire, source) is None) is listening
    assert len(everything.events) == 3


def test_native_code_repeats_what_no_filter_wants() -> None:
    """It leaves to Python the Service that somebody listens to, and what belongs to no Service."""
    responder = responding(native=True)
    assert responder.native is not None
    names = (NEAR, PLAIN, "nix.shop.svc.cluster.local")
    listening, source = Everything(FLAGS, service="shop/near"), parse_address(FRONT)

    def repeated() -> list[bool]:
        for name in names:
            for _ in range(3):
                ask(responder, query(name), FRONT)
        assert responder.native is not None
        return [responder.native.reply(query(name), source) is not None for name in names]

    assert repeated() == [True, True, True]
    tap = tap_of(responder)
    tap.listen(listening)
    assert repeated() == [False, True, False]
    responder.publish(snapshot_of(CLUSTER.replace("10.244.2.5", "10.244.2.6"), FLAGS))
    assert repeated() == [False, True, False]
    other = Everything(FLAGS, service="shop/plain")
    tap.listen(other)
    assert repeated() == [False, False, False]
    tap.leave(listening)
    assert repeated() == [True, False, False]
    tap.leave(other)
    assert repeated() == [True, True, True]
    assert {line.question.name for line in listening.lines} >= {f"{NEAR}."}


@with_and_without_native
def test_federated_names_have_a_service(native: bool) -> None:
    """Also to filters, and to native code, which keeps them apart from the Service of one cluster."""
    items = [
        namespace("shop"), node("a1", {ZONE: "a"}),
        service("web", annotations={"topodns.io/federated": "true"}),
        endpoint_slice("web", 1, [endpoint("10.244.1.7", nodeName="a1")]),
    ]  # fmt: skip
    flags = {"federation": ["fed.example"], "upstream": "off", "native": "auto" if native else "off"}
    responder = ClustersInMemory(listed(items), {}, flags).responder()
    listening, other = Everything(flags, service="shop/web"), DecisionStream(Wanted(service="shop/near"), lambda: None)
    stream, tap = DecisionStream(Wanted(service="shop/web"), lambda: None), tap_of(responder)
    for name in ("web.shop.fed.example", "web.shop.svc.cluster.local"):
        for _ in range(3):
            ask(responder, query(name), "10.244.1.7")
    for listener in (listening, other, stream):
        tap.listen(listener)
    for name in ("web.shop.fed.example", "web.shop.svc.cluster.local"):
        ask(responder, query(name), "10.244.1.7")
        if responder.native is not None:
            assert responder.native.reply(query(name), parse_address("10.244.1.7")) is None
    assert [line.service for line in listening.lines] == [ServiceExplained("shop", "web")] * 2
    assert (len(stream.take()[0]), len(other.take()[0])) == (2, 0)


# Replies that wait


def test_a_reply_that_waits_is_told_when_it_is_sent() -> None:
    """With what the upstream answered, and as the client was located when it asked."""
    responder, everything = responding(), Everything(FLAGS)
    tap_of(responder).listen(everything)
    pending = ask(responder, query(AWAY, edns=forwarded(FRONT)))
    assert isinstance(pending, AnsweredQuery) and not everything.events
    responder.publish(snapshot_of(listed([namespace("shop"), external("away", "www.example.org")]), FLAGS))
    found = [Record("www.example.org", CNAME, 60, Host("far.example.net")),
             Record("far.example.net", 1, 60, Opaque(bytes((10, 9, 8, 7))))]  # fmt: skip
    responder.finished(pending, said(found))
    (line,) = everything.lines
    assert [answer.data for answer in line.answers] == ["www.example.org.", "far.example.net.", "10.9.8.7"]
    assert line.client.holder == "pod shop/front"


def test_an_error_in_a_listener_costs_no_reply() -> None:
    """It is told to whoever runs the tap."""

    class Broken:
        service = None

        def on_event(self, event: TapEvent) -> None:
            raise RuntimeError("broken")

    responder, errors = responding(), list[Exception]()
    tap_of(responder, failed=errors.append).listen(Broken())
    assert isinstance(ask(responder, query(NEAR)), bytes)
    responder.finished(ask(responder, query(AWAY)), FAILED)
    assert [str(error) for error in errors] == ["broken", "broken"]


def test_each_datagram_is_an_event_once() -> None:
    """Also one behind a PROXY header; so a sample that has room for all replies has them all."""
    flags = {**FLAGS, "proxy-protocol": True}
    responder, everything, sample = responding(**{"proxy-protocol": True}), Everything(flags), Sample(6, lambda: 0.0)
    tap = tap_of(responder)
    tap.listen(everything)
    tap.listen(sample)
    for number in range(6):
        ask(responder, (proxied(FRONT) if number % 2 else b"") + query(NEAR, number=number))
    assert [event.answered.query.octets[1] for event in everything.events] == [*range(6)]
    assert len(sample.take()) == 6


# Who listens

WANTED = [
    # id, what is wanted, which of the questions below
    ("everything", Wanted(), "near-front near-back hard-front plain-unnamed nix-front down-front"),
    ("service", Wanted(service="shop/near"), "near-front near-back"),
    ("other-service", Wanted(service="shop/nix"), ""),
    ("client", Wanted(client=parse_client(FRONT)), "near-front hard-front nix-front down-front"),
    ("network", Wanted(client=parse_client("10.244.0.0/16")), "near-front near-back hard-front nix-front down-front"),
    ("outside-the-network", Wanted(client=parse_client("10.244.1.16/28")), ""),
    ("ipv6", Wanted(client=parse_client("::/0")), ""),
    ("larger-than-the-client", Wanted(client=parse_client("10.244.2.0/25")), ""),
    ("nearest", Wanted(outcome="nearest"), "near-front near-back"),
    ("unmet", Wanted(outcome="unmet"), "hard-front down-front"),
    ("unconstrained", Wanted(outcome="unconstrained"), "plain-unnamed nix-front down-front"),
    ("two-filters", Wanted(client=parse_client(FRONT), outcome="nearest"), "near-front"),
]
QUESTIONS = {
    "near-front": query(NEAR, number=1, edns=forwarded(FRONT)),
    "near-back": query(NEAR, number=2, edns=forwarded("10.244.2.0/24")),
    "hard-front": query(HARD, number=3, edns=forwarded(FRONT)),
    "plain-unnamed": query(PLAIN, number=4),
    "nix-front": query("nix.shop.svc.cluster.local", number=5, edns=forwarded(FRONT)),
    "down-front": query("down.shop.svc.cluster.local", number=6, edns=forwarded(FRONT)),
}


@pytest.mark.parametrize(("wanted", "names"), [row[1:] for row in WANTED], ids=[row[0] for row in WANTED])
def test_a_stream_has_what_is_wanted(wanted: Wanted, names: str) -> None:
    """Of Service, client and outcome; what is not given leaves nothing out."""
    responder, woken = responding(), list[bool]()
    stream = DecisionStream(wanted, lambda: woken.append(True))
    tap_of(responder).listen(stream)
    for _ in range(2):
        for wire in QUESTIONS.values():
            ask(responder, wire)
        told, lost = stream.take()
        numbers = [int.from_bytes(event.answered.reply[:2]) for event in told]
        assert [list(QUESTIONS)[number - 1] for number in numbers] == names.split()
        assert (lost, len(woken)) == (0, len(told))
        woken.clear()


def test_a_filter_follows_the_cluster() -> None:
    """What was nearest, or a Service's, may be something else in the next snapshot."""
    responder = responding()
    stream = DecisionStream(Wanted(outcome="nearest"), lambda: None)
    tap_of(responder).listen(stream)
    listening, store = [], store_of(settings_of(FLAGS))
    for cluster in (CLUSTER, CLUSTER.replace(f"{ZONE},*", ""), CLUSTER):
        take_in(store, dump_of(cluster).objects)
        responder.publish(store.publish(NOW))
        ask(responder, query(NEAR), BACK)
        listening.append(len(stream.take()[0]))
    assert listening == [1, 0, 1]


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(outcome="nearest")], ids=["everything", "filtered"])
def test_a_slow_reader_is_told_how_much_it_lost(wanted: Wanted) -> None:
    """There is room for some; what the filter leaves out is not lost."""
    responder = responding()
    stream = DecisionStream(wanted, lambda: None)
    tap_of(responder).listen(stream)
    for _ in range(MAX_WAITING + 7):
        ask(responder, query(NEAR), FRONT)
        if wanted != Wanted():
            ask(responder, query(PLAIN), FRONT)
    told, lost = stream.take()
    assert (len(told), lost) == (MAX_WAITING, 7)
    ask(responder, query(NEAR), FRONT)
    told, lost = stream.take()
    assert (len(told), lost) == (1, 0)


def test_a_sample_is_drawn_evenly() -> None:
    """Each reply of a second with the same probability, the last as the first; in the order of time."""
    sample, drawn, rounds, of = Sample(3, random.Random(7).random), Counter[int](), 2_000, 12
    for _ in range(rounds):
        for number in range(of):
            sample.on_event(cast(TapEvent, SimpleNamespace(time=number)))
        times = [event.time for event in sample.take()]
        assert len(times) == 3 and times == sorted(times)
        drawn.update(map(int, times))
    expected = rounds * 3 / of
    assert all(abs(drawn[number] - expected) < 5 * expected**0.5 for number in range(of)), drawn
    assert not sample.take()


TEXTS = [
    ("nearest", query(NEAR, edns=forwarded(FRONT)),
     f"22:13:20.500  {FRONT} (pod shop/front)  {NEAR}. A  nearest zone=a  10.244.1.7\n"),
    ("unnamed", query("nix.shop.svc.cluster.local", "AAAA"),
     f"22:13:20.500  unnamed by {FORWARDER}  nix.shop.svc.cluster.local. AAAA  unconstrained  NXDOMAIN\n"),
    ("unmet", query(HARD, edns=forwarded(FRONT)),
     f"22:13:20.500  {FRONT} (pod shop/front)  {HARD}. A  unmet  no records\n"),
    ("unlocated", query(HARD, edns=forwarded(ELSEWHERE)),
     f"22:13:20.500  {ELSEWHERE} (unknown)  {HARD}. A  unmet  no records\n"),
    ("commands-to-a-terminal", query([b"\x1b[2J\n\x9b", b"cluster", b"local"], edns=forwarded(FRONT)),
     f"22:13:20.500  {FRONT} (pod shop/front)  \\x1b[2j\\n\\x9b.cluster.local. A  unconstrained  NXDOMAIN\n"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "text"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_a_line_for_people(wire: bytes, text: str) -> None:
    """Time, client, question, outcome with the key that decided, and the answers; nothing that commands a terminal."""
    responder, everything = responding(), Everything(FLAGS)
    tap_of(responder).listen(everything)
    ask(responder, wire)
    (line,) = everything.lines
    assert as_text(line) == text


def test_a_line_for_people_is_short() -> None:
    """Of many answers it has some, and it says that the reply was cut."""
    responder, everything = responder_of(small_cluster.WEB_AND_MANY), Everything()
    tap_of(responder).listen(everything)
    ask(responder, query(small_cluster.MANY), FRONT)
    (line,) = everything.lines
    shown = as_text(line).split("  ")[-1]
    assert len(line.answers) > 20 and shown.endswith(f"and {len(line.answers) - 4} more, truncated\n")
