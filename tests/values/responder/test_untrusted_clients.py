# SPDX-License-Identifier: Apache-2.0

"""A source that names a client without being a trusted forwarder: what its replies, the metric and the log say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address

import dns.edns
import dns.flags
import dns.message
import pytest

from dnsserver.metrics.counters import MAX_SOURCES, OTHER, SUSPICIOUS_CLIENTS, WARN_SECONDS, SourceCounter
from dnsserver.metrics.server import ServerMetrics
from tests.kit import api_objects
from tests.kit.api_objects import ZONE
from tests.kit.dns_queries import CLIENT_OPTION, ecs, opt, option, query
from tests.kit.in_memory import CountedResponder, responder_of
from tests.kit.random_queries import Asked, replied
from tests.kit.replies import parsed
from tests.kit.this_machine import has_ipv6, lacking
from tests.kit.topodns_process import Server

SOURCE, SECOND, SOURCE_IPV6 = "127.1.0.1", "127.1.0.2", "fd00::1"  # each on a node of its own
POD = "10.1.0.7"  # in the pod CIDR of a node in zone c
FORWARDER = "127.0.0.53"
WEB, HARD = "web.shop.svc.cluster.local", "hard.shop.svc.cluster.local"
MAX_ENDPOINTS = 40  # too many records for a reply of 512 octets


def sized(count: int) -> str:
    """Return the name of a Service with *count* endpoints."""
    return f"of-{count:02}.shop.svc.cluster.local"


CLUSTER = api_objects.listed(
    [
        api_objects.namespace("shop"),
        api_objects.node("a", {ZONE: "a"}, addresses=[SOURCE, SOURCE_IPV6]),
        api_objects.node("b", {ZONE: "b"}, addresses=[SECOND]),
        api_objects.node("c", {ZONE: "c"}, cidrs=["10.1.0.0/24"]),
        api_objects.service("web", keys=f"{ZONE},*"),
        api_objects.service("hard", keys=ZONE),
        api_objects.endpoint_slice(
            "web", 0, [api_objects.endpoint(f"10.9.0.{number}", nodeName=node) for number, node in enumerate("abc", 1)]
        ),
        api_objects.endpoint_slice("hard", 0, [api_objects.endpoint("10.9.0.3", nodeName="c")]),
        *[item for count in range(1, MAX_ENDPOINTS + 1) for item in api_objects.large(f"of-{count:02}", count)],
        api_objects.service("kube-dns", where="kube-system"),
        api_objects.endpoint_slice("kube-dns", 0, [api_objects.endpoint(FORWARDER, nodeName="c")], where="kube-system"),
    ]
)


def ignored_error(source: str) -> tuple[int, str]:
    """Return the extended error that a source gets which names a client without being trusted (RFC 8914: 0, Other)."""
    return 0, f"client subnet ignored: {source} is no trusted forwarder"


def errors_in(reply: dns.message.Message) -> list[tuple[int, str]]:
    """Return each extended error of a reply: its code and its text."""
    return [(int(error.code), error.text or "") for error in reply.options if isinstance(error, dns.edns.EDEOption)]


def addresses_in(reply: dns.message.Message) -> set[str]:
    return {record.to_text() for rrset in reply.answer for record in rrset}


def ignored_by_source(responder: CountedResponder) -> dict[str, float]:
    """Return the values of ``topodns_client_subnets_ignored_total`` by their label ``source``."""
    return {
        sample.labels["source"]: sample.value
        for metric in ServerMetrics(responder.counts).collect()
        for sample in metric.samples
        if sample.name == "topodns_client_subnets_ignored_total"
    }


def packed(address: str) -> bytes:
    return ip_address(address).packed


OPTION_OF_POD = option(CLIENT_OPTION, packed(POD))
# id, where the query comes from, the options of its OPT record (None: no EDNS), whether the reply has the error
NAMED: list[tuple[str, str, tuple[bytes, ...] | None, bool]] = [
    ("no-edns", SOURCE, None, False),
    ("edns-alone", SOURCE, (), False),
    ("ecs-32", SOURCE, (ecs(POD),), True),
    ("ecs-24", SOURCE, (ecs(f"{POD}/24"),), True),
    ("ecs-0", SOURCE, (ecs("0.0.0.0/0"),), False),
    ("ecs-0-of-no-family", SOURCE, (ecs("0"),), False),
    ("ecs-of-ipv6", SOURCE, (ecs("fd00::7"),), True),
    ("ecs-own-address", SOURCE, (ecs(SOURCE),), True),
    ("ecs-beside-a-cookie", SOURCE, (option(10, b"12345678"), ecs(POD)), True),
    ("option", SOURCE, (OPTION_OF_POD,), True),
    ("option-own-address", SOURCE, (option(CLIENT_OPTION, packed(SOURCE)),), True),
    ("option-and-ecs-0", SOURCE, (OPTION_OF_POD, ecs("0.0.0.0/0")), True),
    ("option-of-five-octets", SOURCE, (option(CLIENT_OPTION, b"12345"),), False),
    ("another-option", SOURCE, (option(CLIENT_OPTION + 1, packed(POD)),), False),
    ("from-ipv6", SOURCE_IPV6, (ecs(POD),), True),
]


@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize(("source", "options", "named"), [row[1:] for row in NAMED], ids=[row[0] for row in NAMED])
def test_the_reply_says_that_the_client_was_ignored(
    source: str, options: tuple[bytes, ...] | None, named: bool, proto: str
) -> None:
    """A source that names a client without being trusted gets its own endpoints, extended error 0, and is counted.

    First, remembered and computed replies are alike.
    """
    responder = responder_of(CLUSTER, {"client-option": CLIENT_OPTION})
    asked = Asked(query(WEB, edns=b"" if options is None else opt(*options)), source, proto)
    for number, compute in enumerate((False, False, True, False), 1):
        reply = parsed(replied(responder, asked, compute=compute))
        assert addresses_in(reply) == {"10.9.0.1"}
        assert errors_in(reply) == ([ignored_error(source)] if named else [])
        assert ignored_by_source(responder) == ({source: number} if named else {})


def test_an_option_that_is_not_configured_names_nobody() -> None:
    """Without ``--client-option`` the same octets are an unknown option, which servers ignore (RFC 6891, 6.1.2)."""
    responder = responder_of(CLUSTER)
    reply = parsed(replied(responder, Asked(query(WEB, edns=opt(OPTION_OF_POD)), SOURCE, "udp")))
    assert (errors_in(reply), ignored_by_source(responder)) == ([], {})


@pytest.mark.parametrize(
    ("source", "flags"),
    [(FORWARDER, {}), (SOURCE, {"trusted-forwarder": [f"{SOURCE}/32"]}),
     (SOURCE_IPV6, {"trusted-forwarder": [f"{SOURCE_IPV6}/128"]})],
    ids=["discovered", "by-flag", "by-flag-ipv6"],
)  # fmt: skip
def test_a_trusted_forwarder_gets_no_error(source: str, flags: dict[str, Sequence[str]]) -> None:
    """With the flag that the log names, the client is heeded: its endpoints, no error, nothing counted."""
    responder = responder_of(CLUSTER, flags)
    for compute in (False, False, True):
        asked = Asked(query(WEB, edns=opt(ecs(POD))), source, "udp")
        reply = parsed(replied(responder, asked, compute=compute))
        assert (addresses_in(reply), errors_in(reply)) == ({"10.9.0.3"}, [])
    assert ignored_by_source(responder) == {}


@pytest.mark.parametrize("name", [WEB, "cluster.local", "none.shop.svc.cluster.local"], ids=["web", "apex", "nxdomain"])
def test_every_answer_carries_the_error(name: str) -> None:
    """The error does not depend on the name that is asked for."""
    reply = parsed(replied(responder_of(CLUSTER), Asked(query(name, edns=opt(ecs(POD))), SOURCE, "udp")))
    assert errors_in(reply) == [ignored_error(SOURCE)]


def test_the_answers_own_error_comes_first() -> None:
    """A reply without endpoints for the source says why, and then that the client was ignored."""
    asked = Asked(query(HARD, edns=opt(ecs(POD))), SOURCE, "udp")
    (code, text), ignored = errors_in(parsed(replied(responder_of(CLUSTER), asked)))
    assert (code, ignored) == (0, ignored_error(SOURCE))
    assert "zone=a" in text.replace(" ", "")


# A reply without room for all of it


@pytest.mark.parametrize("qtype", ["A", "SRV"])
def test_the_error_is_left_out_after_additional_records_and_before_records(qtype: str) -> None:
    """In 512 octets, a reply leaves out additional records first, then the error, which costs no other its place.

    By TCP the reply is whole.
    """
    responder = responder_of(CLUSTER)
    seen = []
    for count in range(1, MAX_ENDPOINTS + 1):
        wire = query(sized(count), qtype, edns=opt(ecs(POD), size=512))
        octets = replied(responder, Asked(wire, SOURCE, "tcp"))
        whole = parsed(octets, one_rr_per_rrset=True)
        asked = Asked(wire, SOURCE, "udp")
        answers = [
            parsed(replied(responder, asked, compute=compute), one_rr_per_rrset=True) for compute in (False, True)
        ]
        for reply in answers:
            assert errors_in(whole) == [ignored_error(SOURCE)] and len(whole.answer) == count
            missing = (
                *(["additional"] if len(reply.additional) < len(whole.additional) else []),
                *(["error"] if not errors_in(reply) else []),
                *(["records"] if len(reply.answer) < count else []),
            )
            assert bool(reply.flags & dns.flags.TC) == ("records" in missing)
            # Additional records may need fewer octets than in the whole reply.
            assert missing or len(octets) <= 512 or qtype == "SRV"
            seen.append(missing)
    additional = ("additional",) * (qtype == "SRV")
    steps = [(), additional, (*additional, "error"), (*additional, "error", "records")]
    assert list(dict.fromkeys(seen)) == list(dict.fromkeys(steps))


# The metric and the log


def test_a_metric_counts_by_source() -> None:
    """``topodns_client_subnets_ignored_total`` has the source's address as its label, as people write it."""
    responder = responder_of(CLUSTER)
    for source, number in ((SOURCE, 3), (SECOND, 2), (SOURCE_IPV6, 1), (FORWARDER, 4)):
        for _ in range(number):
            replied(responder, Asked(query(WEB, edns=opt(ecs(POD))), source, "udp"))
    assert ignored_by_source(responder) == {SOURCE: 3, SECOND: 2, SOURCE_IPV6: 1}


def test_the_metric_is_bounded() -> None:
    """1024 sources have a label of their own, and keep it; all further ones are counted as "other"."""
    assert (MAX_SOURCES, OTHER) == (1024, "other")
    responder = responder_of(CLUSTER)
    sources = [f"10.2.{number >> 8}.{number & 255}" for number in range(MAX_SOURCES + 10)]
    wires = [query(WEB, edns=opt(ecs(f"10.3.0.{number}"))) for number in range(SUSPICIOUS_CLIENTS)]
    for source in (*sources, sources[0], sources[-1]):
        for wire in wires:
            replied(responder, Asked(wire, source, "udp"))
    expected = {source: float(SUSPICIOUS_CLIENTS) for source in sources[:MAX_SOURCES]}
    expected[sources[0]] *= 2
    assert ignored_by_source(responder) == {**expected, OTHER: 11.0 * SUSPICIOUS_CLIENTS}
    # the log names the sources without a label of their own, too, and never "other"
    assert sorted(responder.counts.ignored_clients.due(0.0)) == sorted(sources)


@pytest.mark.parametrize("read_at", [19, 10, 5])
def test_a_flood_of_sources_hides_no_forwarder(read_at: int) -> None:
    """A source is logged, once, however many others name one client each, and whenever warnings and metrics are read.

    They are read after every *read_at*-th of its queries, and it is still asking when the others stop.
    """
    counter, logged = SourceCounter(clients=SUSPICIOUS_CLIENTS), list[str]()
    for number in range(20 * MAX_SOURCES):
        counter.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", b"client")
        if number % MAX_SOURCES == 0:
            counter.note(SOURCE, packed(CLIENTS[number // MAX_SOURCES % 3]))
            if number // MAX_SOURCES % read_at == 2:
                counter.suspects()
                logged += counter.due(0.0)
    assert [*logged, *counter.due(0.0)] == [SOURCE]


CLIENTS = ("10.1.0.1", "10.1.0.2", "10.1.0.3")
LOGGED: list[tuple[str, Callable[[str], bytes], Sequence[str], bool]] = [
    ("three-clients", ecs, CLIENTS, True),
    ("three-clients-by-option", lambda client: option(CLIENT_OPTION, packed(client)), CLIENTS, True),
    ("three-blocks", lambda client: ecs(f"{client}/24"), ("10.1.0.0", "10.2.0.0", "10.3.0.0"), True),
    ("two-clients", ecs, CLIENTS[:2], False),
    ("one-client-often", ecs, CLIENTS[:1] * 9, False),
    ("itself", ecs, (SOURCE,) * 9, False),
    ("itself-and-two", ecs, (SOURCE, *CLIENTS[:2], SOURCE), False),
    ("its-own-blocks", ecs, (f"{SOURCE}/8", f"{SOURCE}/16", f"{SOURCE}/24"), False),
    ("itself-and-three", ecs, (SOURCE, *CLIENTS), True),
]


@pytest.mark.parametrize(("carrier", "clients", "logged"), [row[1:] for row in LOGGED], ids=[row[0] for row in LOGGED])
def test_a_source_that_names_three_clients_is_logged(
    carrier: Callable[[str], bytes], clients: Sequence[str], logged: bool
) -> None:
    """A pod that asks with its own subnet is harmless; three different clients other than itself show a forwarder."""
    assert SUSPICIOUS_CLIENTS == 3
    responder = responder_of(CLUSTER, {"client-option": CLIENT_OPTION})
    for client in clients:
        assert responder.counts.ignored_clients.due(0.0) == []
        replied(responder, Asked(query(WEB, edns=opt(carrier(client))), SOURCE, "udp"))
    assert responder.counts.ignored_clients.due(0.0) == ([SOURCE] if logged else [])
    assert ignored_by_source(responder) == {SOURCE: len(clients)}


def test_a_source_is_logged_once_an_hour() -> None:
    """And only if it has named a client since; two sources do not share their hours or their clients."""
    assert WARN_SECONDS == 3600
    counter = SourceCounter(clients=SUSPICIOUS_CLIENTS)
    for client in CLIENTS:
        counter.note(SOURCE, packed(client))
        counter.note(SECOND, packed(CLIENTS[0]))
    assert counter.due(0.0) == [SOURCE]
    counter.note(SOURCE, packed(CLIENTS[0]))
    assert counter.due(WARN_SECONDS - 1) == []
    assert counter.due(WARN_SECONDS) == [SOURCE]
    for client in CLIENTS:
        counter.note(SECOND, packed(client))
    assert counter.due(WARN_SECONDS) == [SECOND]
    assert counter.due(3 * WARN_SECONDS) == []


def name_clients(server: Server, source: str, clients: Sequence[str]) -> None:
    """Ask a server from *source* for each client; expect the extended error in every reply."""
    for client in clients:
        subnet = dns.edns.ECSOption(client, 32)
        reply = server.ask(dns.message.make_query(WEB, "A", use_edns=0, options=[subnet]), source=source)
        assert errors_in(reply) == [ignored_error(source)]


def test_a_server_logs_a_forwarder_that_nobody_trusts(serve: Callable[..., Server]) -> None:
    """One line for each, with the flag that makes topodns trust it, and none for a source that names two clients."""
    server = serve(CLUSTER, flags={"http": "127.0.0.1:0"})
    pattern = r"WARNING.*{0}.* --trusted-forwarder {0}/32$"
    name_clients(server, SECOND, CLIENTS[:2])
    name_clients(server, SOURCE, CLIENTS)
    server.wait_for(pattern.format(SOURCE))
    assert not any("--trusted-forwarder" in line and SECOND in line for line in server.lines)
    name_clients(server, SOURCE, CLIENTS)
    name_clients(server, SECOND, CLIENTS)
    server.wait_for(pattern.format(SECOND))  # the server looks at all sources at the same time
    assert len([line for line in server.lines if f"--trusted-forwarder {SOURCE}/32" in line]) == 1
    metrics = server.metrics()
    assert [metrics["topodns_client_subnets_ignored_total", source] for source in (SOURCE, SECOND)] == [6, 5]


def test_a_server_logs_a_forwarder_of_ipv6(serve: Callable[..., Server]) -> None:
    """The flag's prefix is that of one IPv6 address."""
    if not has_ipv6():
        lacking("this machine has no IPv6")
    server = serve(CLUSTER, flags={"listen": ["[::1]:0"]})
    name_clients(server, "::1", CLIENTS)
    server.wait_for(r"WARNING.*::1.* --trusted-forwarder ::1/128$")
