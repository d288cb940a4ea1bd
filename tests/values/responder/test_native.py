# SPDX-License-Identifier: Apache-2.0

"""The native code: which answers it repeats, which it leaves to Python, and what it forgets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv6Address

import pytest

from dnsserver.cli.reading import asking
from dnsserver.message import edns, rendering
from dnsserver.message import query as parser
from dnsserver.message import wire as dns
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.metrics import counters
from dnsserver.net import udp
from dnsserver.programs.from_settings import store_of
from dnsserver.responder import answer_cache, clients, native_feed
from dnsserver.responder.native_feed import ClientGroup, NativePlace
from locator.ip import parse_address
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, large, listed, namespace, node, pod, service
from tests.kit.dns_queries import CLIENT_OPTION, ecs, opt, option, query
from tests.kit.in_memory import HAS_NATIVE, NOW, CountedResponder, dump_of, settings_of, snapshot_of, take_in
from tests.kit.proxy_headers import proxied
from tests.kit.this_machine import ROOT, lacking
from tests.kit.waiting import until

FORWARDER, POD, SIX = "192.0.2.53", "10.244.3.5", "fd00::5"
CLUSTER = [
    namespace("shop"),
    node("a1", {ZONE: "a"}, cidrs=["10.244.1.0/24"]),
    node("b1", {ZONE: "b"}, cidrs=["10.244.2.0/24"]),
    node("c1", {ZONE: "a"}, cidrs=["10.244.3.0/24"]),  # where clients are
    pod("client", [POD, SIX], "c1"),
    service("web", keys=f"{ZONE},*"),
    endpoint_slice("web", 0, [endpoint("10.244.1.9", nodeName="a1"), endpoint("10.244.2.9", nodeName="b1")]),
    service("hard", keys=ZONE),
    endpoint_slice("hard", 0, [endpoint("10.244.2.9", nodeName="b1")]),
    service("free"),
    endpoint_slice("free", 0, [endpoint("10.244.1.9"), endpoint("10.244.2.9")]),
    *large("six", 6),
    *large("many", 80),
]
FLAGS = {
    "trusted-forwarder": [f"{FORWARDER}/32"],
    "client-option": CLIENT_OPTION,
    "proxy-protocol": True,
    "upstream": ["192.0.2.1"],
}
WEB, FREE, MANY, HARD, NOBODY = (f"{name}.shop.svc.cluster.local" for name in ("web", "free", "many", "hard", "nope"))

REPEATED = [
    # id, query, its source
    ("for all clients", query(FREE), "198.51.100.7"),
    ("by zone", query(WEB), POD),
    ("over IPv6", query(WEB), SIX),
    ("by pod CIDR", query(WEB), "10.244.3.77"),
    ("unknown client", query(WEB), "198.51.100.7"),
    ("upper case", query(WEB.upper()), POD),
    ("SRV with additional records", query(f"_main._tcp.{FREE}", "SRV", edns=opt()), POD),
    ("NODATA", query(FREE, "AAAA"), POD),
    ("HTTPS", query(WEB, 65), POD),
    ("no such name", query(NOBODY), POD),
    ("EDNS", query(WEB, edns=opt()), POD),
    ("truncated", query(MANY), POD),
    ("truncated, over IPv6", query(MANY), SIX),
    ("truncated, with EDNS", query(MANY, edns=opt(size=700)), POD),
    ("a pod that a forwarder names", query(WEB, edns=opt(ecs(f"{POD}/32"))), FORWARDER),
    ("a pod by IPv6", query(WEB, edns=opt(ecs(f"{SIX}/128"))), FORWARDER),
    ("a pod by mapped IPv4", query(WEB, edns=opt(ecs(f"::ffff:{POD}/128"), size=1400)), FORWARDER),
    ("a block", query(WEB, edns=opt(ecs("10.244.3.0/24"))), FORWARDER),
    ("a PROXY header", proxied(POD) + query(WEB), FORWARDER),
    ("a PROXY header for IPv6", proxied(SIX) + query(WEB, edns=opt()), FORWARDER),
    ("a PROXY header over a subnet", proxied(POD) + query(WEB, edns=opt(ecs("10.244.2.0/24"))), FORWARDER),
]
LEFT_TO_PYTHON = [
    ("additional records that do not fit", query("_main._tcp.six.shop.svc.cluster.local", "SRV"), POD),
    ("a forwarder that names nobody", query(WEB), FORWARDER),
    ("a client that names another", query(WEB, edns=opt(ecs("10.244.2.7/32"))), POD),
    ("the client option", query(WEB, edns=opt(option(CLIENT_OPTION, parse_address(POD)))), FORWARDER),
    ("many records of any number of names", query(f"any.prefer._zone.{MANY}"), POD),
    ("an unmet constraint", query(HARD, edns=opt()), POD),
    ("a name outside the zones", query("example.com"), POD),
    ("an unknown option", query(WEB, edns=opt(option(65002, b"x"))), POD),
    ("another class", query(WEB, qclass=3), POD),
    ("octets after the end", query(WEB) + b"x", POD),
    ("a header from a client", proxied(POD) + query(WEB), POD),
    ("a header with more", proxied(POD, b"\4\0\1x") + query(WEB), FORWARDER),
    ("part of a header", proxied(POD)[:20], FORWARDER),
    ("a part of a query", query(WEB)[:20], POD),
]

# The constants of native code that Python has, too, by module and name, each as Python has it.
SHARED = {
    "address.MAPPED": int(IPv6Address("::ffff:0.0.0.0")),
    "answer.SPREAD": rendering.SPREAD,
    "datagrams.MAX_WAIT": asking.REPLY_SECONDS,  # who asks has given up by then
    "message.AD": dns.AD,
    "message.CD": dns.CD,
    "message.CLIENT_SUBNET": dns.CLIENT_SUBNET,
    "message.HEADER": dns.HEADER,
    "message.OPT_FIXED": native_feed.OPT_FIXED,
    "message.RD": dns.RD,
    "message.TC": dns.TC,
    "answer_table.MAX_ASKERS": counters.MAX_ASKERS,
    "answer_table.MAX_ANSWERS": answer_cache.MAX_ANSWERS,
    "answer_table.MAX_BLOCKS": clients.MAX_BLOCKS,
    "answer_table.MAX_FORMS": native_feed.MAX_FORMS,
    "answer_table.MAX_QUESTION": parser.MAX_NAME_OCTETS + 4,
    "answer_table.MAX_RANGES": counters.MAX_SOURCES,
    "answer_table.MAX_UNTIL_PUBLISHED": answer_cache.MAX_WITHOUT_SOURCE // native_feed.MAX_UNTIL_PUBLISHED,
    "answer_table.MIN_UDP_REPLY": edns.MIN_UDP_REPLY,
    "answer_table.RANGE_BITS": [8 * octets for octets in counters.RANGE_OCTETS.values()],
    "answer_table.SUBNET_ADDRESS_AT": native_feed.SUBNET_ADDRESS_AT,
    "answer_table.SUBNET_CONTENT_AT": native_feed.SUBNET_CONTENT_AT,
    "socket.BATCH": udp.BATCH,
    "socket.QUERY_SIZE": udp.QUERY_SIZE,
}
# Those that it has alone: what it allots of its own memory and time.
ITS_OWN = {
    "datagrams.LAST", "datagrams.MAX_WAITING", "datagrams.SLICE",
    "fair_queue.IN_ORDER", "fair_queue.KEPT", "fair_queue.LANES",
    "answer_table.MAX_CHOICES", "answer_table.MAX_VALUES", "answer_table.OTHER_RANGES",
    "socket.CONTROL_SIZE",
}  # fmt: skip

# An answer that depends on the client, and the place of all clients.
ONE_RECORD = RenderedAnswer(flags=0x8400, answers=[bytes(16)], dependent=True)
ANYWHERE = NativePlace(location=1, origin=0, forwarder=False, located=True)


def constants_of_native_code() -> Iterator[tuple[str, object]]:
    """Yield the numbers that are constants of native code, by module and name."""
    for path in (ROOT / "native" / "src").glob("*.rs"):
        for name, value in re.findall(
            r"^ *(?:pub )?const (\w+): [\w\[\]; ]+ = ([\w. <\[\],]+);", path.read_text(), re.MULTILINE
        ):
            yield f"{path.stem}.{name}", eval(value, {})


def test_both_sides_have_the_same_constants() -> None:
    """Sizes, limits and offsets of Python and of native code; who adds one says here whether Python has it, too."""
    found = dict(constants_of_native_code())
    assert {name: found.get(name) for name in SHARED} == SHARED
    assert found.keys() == SHARED.keys() | ITS_OWN


def test_both_sides_take_the_same_queries_for_plain_ones() -> None:
    """By their flags and counts; all others are parsed."""
    responder, source = native_responder(), parse_address(POD)
    asked = query(FREE)
    responder.reply(asked, source, responder.channel(source, "udp"))
    assert responder.native is not None
    heads = {flags.to_bytes(2) + asked[4:12] for flags in range(1 << 16)}
    heads |= {asked[2:at] + b"\1" + asked[at + 1 : 12] for at in range(4, 12)}
    plain = {head for head in heads if responder.native.reply(asked[:2] + head + asked[12:], source) is not None}
    flags = {head for head in heads if not int.from_bytes(head[:2]) & ~native_feed.PLAIN_FLAGS}
    assert plain == {head for head in flags if head[2:] == asked[4:12]}


@pytest.mark.parametrize(
    ("wire", "source", "repeats"),
    [(*row[1:], True) for row in REPEATED] + [(*row[1:], False) for row in LEFT_TO_PYTHON],
    ids=[row[0] for row in (*REPEATED, *LEFT_TO_PYTHON)],
)
def test_what_is_asked_again_needs_no_python(wire: bytes, source: str, repeats: bool) -> None:
    """But for what is unusual, or differs by more than the client's place. A name that does not exist counts twice."""
    responder = native_responder()
    packed = parse_address(source)
    channel = responder.channel(packed, "udp")
    for _ in range(2):
        responder.reply(wire, packed, channel)
    assert responder.native is not None
    assert (responder.native.reply(wire, packed) is not None) == repeats


@pytest.mark.parametrize("cut", [-4, -1, 1], ids=["no address", "a short address", "a long address"])
def test_a_malformed_subnet_teaches_nothing(cut: int) -> None:
    """A query that starts as a forwarder's usual ones, but ends too early or too late, gets FORMERR as ever."""
    responder, wire = native_responder(), query(WEB, edns=opt(ecs(f"{POD}/32")))
    packed = parse_address(FORWARDER)
    malformed = wire[:cut] if cut < 0 else wire + b"x" * cut
    for sent, rcode in ((wire, 0), (malformed, 1), (malformed, 1), (wire, 0)):
        reply = responder.reply(sent, packed, responder.channel(packed, "udp"))
        assert isinstance(reply, bytes)
        assert reply[3] & 15 == rcode


CHANGES = [
    # id, what is replaced in the cluster
    ("an endpoint", endpoint_slice("web", 0, [endpoint("10.244.1.10", nodeName="a1")])),
    ("the clients' node", node("c1", {ZONE: "b"}, cidrs=["10.244.3.0/24"])),
    ("a pod CIDR", node("c1", {ZONE: "a"}, cidrs=["10.244.4.0/24"])),
    ("the client's pod", pod("client", [POD, SIX], "b1")),
    ("the client's addresses", pod("client", ["10.244.9.9"], "c1")),
]


@pytest.mark.parametrize("changed", [row[1] for row in CHANGES], ids=[row[0] for row in CHANGES])
@pytest.mark.parametrize("flags", [{}, {"client-source": "nodes"}], ids=["by pods", "by nodes"])
def test_after_a_change_nothing_old_is_repeated(changed: Item, flags: dict[str, str]) -> None:
    """Replies are those of a server that starts now, and the numbers of the metrics are those of Python alone."""
    flags = {**FLAGS, **flags}
    after = [changed if _name(item) == _name(changed) else item for item in CLUSTER]
    store = store_of(settings_of(flags))
    take_in(store, dump_of(listed(CLUSTER)).objects)
    before = store.publish(NOW)
    take_in(store, dump_of(listed(after)).objects)
    later = store.publish(NOW + 1)  # shares with the snapshot before what is the same
    responder, alone, fresh = (CountedResponder(flags, native=native) for native in (True, False, False))
    fresh.publish(later)
    asked = [(wire, parse_address(source)) for _, wire, source in REPEATED]
    for snapshot in (before, later):
        for each in (responder, alone):
            each.publish(snapshot)
            for wire, source in 3 * asked:
                each.reply(wire, source, each.channel(source, "udp"))
    for wire, source in asked:
        reply = responder.reply(wire, source, responder.channel(source, "udp"))
        computed = fresh.computed(wire, source, fresh.channel(source, "udp"))
        assert isinstance(reply, bytes) and isinstance(computed, bytes)
        assert sorted(reply) == sorted(computed) or reply[2] & computed[2] & 2  # but for the rotation
        alone.reply(wire, source, alone.channel(source, "udp"))
    assert replies_of(responder) == replies_of(alone)


@pytest.mark.parametrize(("endpoints", "at_least", "at_most"), [(2, 60, 70), (80, 5, 20)], ids=["small", "large"])
def test_a_publication_refreshes_few_endpoints(endpoints: int, at_least: int, at_most: int) -> None:
    """If many Services change that clients ask for, their answers are made anew at once, but not for long."""
    names, source, known = [f"web-{number}" for number in range(70)], parse_address(POD), 0
    responder = CountedResponder(native=True)
    for count in (endpoints, endpoints - 1):
        responder.publish(snapshot_of(listed([item for name in names for item in large(name, count)])))
        for name in names:
            wire = query(f"{name}.shop.svc.cluster.local")
            assert responder.native is not None
            known += responder.native.reply(wire, source) is not None
        for name in 2 * names:
            responder.reply(query(f"{name}.shop.svc.cluster.local"), source, responder.channel(source, "udp"))
    assert at_least <= known <= at_most


def test_a_publication_refreshes_what_others_ask_beside_one_client() -> None:
    """Python answers a client whose replies have no room for additional records. That crowds out nobody elsewhere."""
    name = "_main._tcp.web.shop.svc.cluster.local"
    responder, store = CountedResponder(native=True), store_of(settings_of())
    assert responder.native is not None
    for count in (7, 6):
        rows = [
            endpoint(f"10.244.{zone}.{number}", nodeName=on)
            for zone, on in ((1, "a1"), (2, "b1"))
            for number in range(count)
        ]
        web = [service("web", keys=ZONE), endpoint_slice("web", 0, rows)]
        take_in(store, dump_of(listed([*CLUSTER[:5], *web])).objects)
        responder.publish(store.publish(NOW))
        if count == 7:
            for _ in range(40):
                responder.reply(query(name, "SRV"), parse_address(POD), responder.channel(b"four", "udp"))
            for _ in range(2):
                asked = query(name, "SRV", edns=opt()), parse_address("10.244.2.77")
                responder.reply(*asked, responder.channel(b"four", "udp"))
    assert responder.native.reply(*asked) is not None


def _name(item: Item) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def replies_of(responder: CountedResponder) -> dict[object, tuple[int, Counter[object]]]:
    """Return for each channel how many replies were truncated, and how many there were of each origin and tally."""
    counts = responder.counts
    replies: dict[object, Counter[object]] = {channel: Counter() for channel in counts.channels.values()}
    for channel, origin, tally, number in counts.replies():
        replies[channel][origin, tally] += number
    return {name: (channel.truncated, replies[channel]) for name, channel in counts.channels.items()}


def native_responder(flags: dict[str, str] | None = None) -> CountedResponder:
    responder = CountedResponder({**FLAGS, **(flags or {})}, native=True)
    responder.publish(snapshot_of(listed(CLUSTER), {**FLAGS, **(flags or {})}))
    return responder


def test_a_question_is_forgotten_with_its_service_alone() -> None:
    """However often its clients depend on other label keys, and however many Services there were before."""
    if not HAS_NATIVE:
        lacking("the native code is not built")
    from dnsserver.net import native

    source, wire = parse_address(POD), query(WEB)
    table = native.AnswerTable((), (1.0,), 1)
    table.configure((), (), ANYWHERE)
    first, second = 1 << 32, (1 << 32) + 1
    for keys in (1, 2, 1, 2):
        table.answer(wire[12:], ONE_RECORD, first, ClientGroup(keys, values=1, location=1))
    assert table.reply(wire, source) is not None and table.asked([first]) == [wire[12:]]
    table.answer(wire[12:], ONE_RECORD, second, ClientGroup(keys=1, values=1, location=1))
    table.publish(1, [first])
    assert table.reply(wire, source) is not None
    table.publish(1, [second])
    assert table.reply(wire, source) is None


def test_clients_elsewhere_who_get_the_same_need_no_answer_of_their_own() -> None:
    """Where a plan splits a zone, there are as many values as slots, and few answers."""
    if not HAS_NATIVE:
        lacking("the native code is not built")
    from dnsserver.net import native

    source, wire, other = parse_address(POD), query(WEB), query(WEB, "AAAA")
    table = native.AnswerTable((), (1.0,), 1)
    table.configure((), (), ANYWHERE)
    table.answer(other[12:], ONE_RECORD, 1, ClientGroup(keys=1, values=1, location=1))  # where the client is
    table.answer(wire[12:], ONE_RECORD, 1, ClientGroup(keys=1, values=2, location=2))
    assert table.reply(wire, source) is None
    table.answer(wire[12:], ONE_RECORD, 1, ClientGroup(keys=1, values=2, location=2, alike=[1]))
    assert table.reply(wire, source) is not None


def test_an_internal_error_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """What Rust would print to standard error itself: where in the code, and what."""
    if not HAS_NATIVE:
        lacking("the native code is not built")
    from dnsserver.net import native

    table, source = native.AnswerTable((), (1.0,), 1), parse_address(POD)
    wrong = RenderedAnswer(flags=0x8400, answers=[bytes(16)] * 60)
    wrong.offsets = (0, *[60_000] * 59, wrong.length)  # wherever the rotation begins, but for one place
    table.answer(query(WEB)[12:], wrong, None, None)
    with pytest.raises(BaseException, match="out of range"):
        table.reply(query(WEB), source)
    (record,) = until(lambda: caplog.records, "a line")
    assert (record.name, record.levelname) == ("topodns", "ERROR")
    assert re.search(r"native code: panicked at src/\w+\.rs:\d+:\d+:\n.*out of range", record.getMessage())


def test_what_is_asked_for_once_is_not_worth_learning() -> None:
    """Python need not tell the native code of it. What a Service answers is, and so is what was asked before."""
    responder = native_responder()
    source, lasting = parse_address(POD), []
    channel = responder.channel(source, "udp")
    for wire in (query(WEB), query(NOBODY), query(NOBODY), query(WEB), query("example.com"), query("example.com")):
        answered = responder.answer(wire, source, channel)
        assert answered is not None
        lasting.append(answered.lasting)
    assert lasting == [True, False, True, True, False, False]
    responder.publish(snapshot_of(listed(CLUSTER), FLAGS, now=1_800_000_000))
    answered = responder.answer(query(NOBODY), source, channel)
    assert answered is not None and answered.lasting


def test_an_error_in_one_service_keeps_no_old_answer_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked before is answered again at a publication; if that fails, the others are still right."""
    responder = native_responder()
    source = parse_address(POD)
    for wire in 2 * [query(WEB), query(FREE)]:
        responder.reply(wire, source, responder.channel(source, "udp"))
    responder.reply(query(FREE), source, responder.channel(source, "udp"))
    monkeypatch.setattr("dnsserver.responder.responder.resolve", _broken)
    changed = [item for item in CLUSTER if item["metadata"]["name"] not in ("web-0", "free-0")]
    responder.publish(snapshot_of(listed(changed), FLAGS, now=1_800_000_000))
    assert responder.native is not None
    assert [responder.native.reply(query(name), source) for name in (WEB, FREE)] == [None, None]


def _broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError
