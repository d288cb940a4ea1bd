# SPDX-License-Identifier: Apache-2.0

"""Who is told of queries whose client is nobody, or is not believed: the log, the metrics, and the reply itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address

import dns.edns
import dns.flags
import dns.message
import pytest

from dnsserver.metrics.counters import MAX_SOURCES, OTHER, SUSPICIOUS_CLIENTS, WARN_SECONDS, SourceCounter
from dnsserver.metrics.server import ServerMetrics
from tests.kit import api_objects
from tests.kit.api_objects import ZONE, endpoint
from tests.kit.dns_queries import CLIENT_OPTION, ecs, opt, option, query
from tests.kit.in_memory import CountedResponder, responder_of
from tests.kit.random_queries import Asked, replied
from tests.kit.replies import parsed
from tests.kit.this_machine import has_ipv6, lacking
from tests.kit.topodns_process import Server, serving

SOURCE, THIRD, SIX = "127.1.0.1", "127.1.0.2", "fd00::1"
FORWARDER, SECOND, FORWARDER_6 = "127.0.0.53", "127.0.0.54", "fd00::53"
CLIENTS = ("10.1.0.1", "10.1.0.2", "10.1.0.3")
WEB = "web.shop.svc.cluster.local"
MAX_ENDPOINTS = 40  # too many records for a reply of 512 octets
CLUSTER = api_objects.listed(
    [
        api_objects.namespace("shop"),
        api_objects.node("a", {ZONE: "a"}, addresses=[SOURCE, SIX]),
        api_objects.service("web"),
        api_objects.endpoint_slice("web", 0, [endpoint("10.9.0.1", nodeName="a")]),
        *[item for count in range(1, MAX_ENDPOINTS + 1) for item in api_objects.large(f"of-{count:02}", count)],
        api_objects.service("kube-dns", where="kube-system"),
        api_objects.endpoint_slice("kube-dns", 0, [endpoint(FORWARDER, nodeName="a")], where="kube-system"),
    ]
)
FLAGS = {"client-option": CLIENT_OPTION, "trusted-forwarder": [f"{SECOND}/32", f"{FORWARDER_6}/128"]}


def by_option(client: str) -> bytes:
    return option(CLIENT_OPTION, ip_address(client).packed)


def ignored_error(source: str) -> tuple[int, str]:
    """Return the extended error that a source gets which names a client without being trusted (RFC 8914: 0, Other)."""
    return 0, f"client subnet ignored: {source} is no trusted forwarder"


def errors_in(reply: dns.message.Message) -> list[tuple[int, str]]:
    """Return each extended error of a reply: its code and its text."""
    return [(int(error.code), error.text or "") for error in reply.options if isinstance(error, dns.edns.EDEOption)]


def by_source(responder: CountedResponder, metric: str) -> dict[str, float]:
    """Return the values of a metric by its only label."""
    return {
        label: sample.value
        for family in ServerMetrics(responder.counts).collect()
        for sample in family.samples
        if sample.name == metric
        for label in sample.labels.values()
    }


def warned_of(responder: CountedResponder) -> list[str]:
    return responder.counts.ignored_clients.due(0.0)


# When a source is due: at these times, after these queries, the log names these sources.
DUE = {
    "nobody": [(0.0, "", "")],
    "once": [(0.0, "x", "x"), (1.0, "", "")],
    "again-within-the-hour": [(0.0, "x", "x"), (1.0, "x", ""), (WARN_SECONDS - 1, "xx", "")],
    "again-after-an-hour": [(0.0, "x", "x"), (10.0, "x", ""), (WARN_SECONDS, "", "x"), (WARN_SECONDS + 1, "x", "")],
    "not-again-after-an-hour": [(0.0, "xxx", "x"), (WARN_SECONDS, "", ""), (2 * WARN_SECONDS, "", "")],
    "again-much-later": [(0.0, "x", "x"), (9 * WARN_SECONDS, "", ""), (9 * WARN_SECONDS + 1, "x", "x")],
    "the-hour-begins-when-it-is-told": [(0.0, "x", "x"), (5000.0, "x", "x"), (7200.0, "x", ""), (8600.0, "", "x")],
    "each-for-itself": [(0.0, "x", "x"), (1800.0, "y", "y"), (3600.0, "xy", "x"), (5400.0, "", "y")],
    "two-at-once": [(0.0, "xyx", "xy"), (3600.0, "y", "y")],
    "late-after-the-start": [(1e9, "x", "x"), (1e9 + 1, "x", "")],
}


@pytest.mark.parametrize("clients", [0, SUSPICIOUS_CLIENTS])
@pytest.mark.parametrize("steps", DUE.values(), ids=DUE)
def test_each_source_is_told_of_once_an_hour(steps: list[tuple[float, str, str]], clients: int) -> None:
    """A source is logged at most once an hour, and only if it has asked again since.

    If clients matter, it must have named enough different ones, ever; sources do not share theirs.
    """
    counter = SourceCounter(clients=clients)
    for source in "xy":
        for number in range(clients - 1):
            counter.note(source, bytes((number,)))
    for now, noted, told in steps:
        for source in noted:
            counter.note(source, b"the last")
        assert "".join(counter.due(now)) == told, now
        assert counter.due(now) == []
    assert (WARN_SECONDS, SUSPICIOUS_CLIENTS) == (3600, 3)


def test_sources_without_end_are_counted_together() -> None:
    """The number of labels is bounded, and known sources keep theirs; the log names the others, too."""
    assert (MAX_SOURCES, OTHER) == (1024, "other")
    counter, sources = SourceCounter(), [str(number) for number in range(MAX_SOURCES + 500)]
    for source in (*sources, *sources, "0"):
        counter.note(source)
    assert len(counter.numbers) == MAX_SOURCES + 1
    assert (counter.numbers["0"], counter.numbers["1"], counter.numbers[OTHER]) == (3, 2, 1000)
    assert counter.due(0.0) == sorted(sources)


@pytest.mark.parametrize("read_at", [19, 10, 5])
def test_a_flood_of_sources_hides_no_forwarder(read_at: int) -> None:
    """A source is logged, once, however many others name one client each, and whenever warnings and metrics are read.

    They are read after every *read_at*-th of its queries, and it is still asking when the others stop.
    """
    counter, logged = SourceCounter(clients=SUSPICIOUS_CLIENTS), list[str]()
    for number in range(20 * MAX_SOURCES):
        counter.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", b"client")
        if number % MAX_SOURCES == 0:
            turn = number // MAX_SOURCES
            counter.note(SOURCE, bytes((turn % 3,)))
            if turn % read_at == 2:
                counter.suspects()
                logged += counter.due(0.0)
    assert [*logged, *counter.due(0.0)] == [SOURCE]


@pytest.mark.parametrize("rtype", ["SOA", "NS", "A"])
def test_health_checks_name_nobody_and_do_no_harm(rtype: str) -> None:
    """Queries for a zone's own name are not counted: dnsdist sends one each second, for no client."""
    responder = responder_of(CLUSTER, FLAGS)
    for name, number in (("cluster.local", 0), (WEB, 1)):
        for compute in (False, True):
            assert replied(responder, Asked(query(name, rtype), FORWARDER, "udp"), compute=compute) is not None
        assert responder.counts.unnamed_clients.numbers == ({FORWARDER: 2} if number else {})


LOGGED: dict[str, tuple[Callable[[str], bytes], Sequence[str], bool]] = {
    "three-clients": (ecs, CLIENTS, True),
    "three-clients-by-option": (by_option, CLIENTS, True),
    "three-blocks": (lambda client: ecs(f"{client}/24"), ("10.1.0.0", "10.2.0.0", "10.3.0.0"), True),
    "two-clients": (ecs, CLIENTS[:2], False),
    "one-client-often": (ecs, CLIENTS[:1] * 9, False),
    "itself": (ecs, (SOURCE,) * 9, False),
    "itself-and-two": (ecs, (SOURCE, *CLIENTS[:2], SOURCE), False),
    "its-own-blocks": (ecs, (f"{SOURCE}/8", f"{SOURCE}/16", f"{SOURCE}/24"), False),
    "itself-and-three": (ecs, (SOURCE, *CLIENTS), True),
}


@pytest.mark.parametrize(("carrier", "clients", "logged"), LOGGED.values(), ids=LOGGED)
def test_a_source_that_names_three_clients_is_logged(
    carrier: Callable[[str], bytes], clients: Sequence[str], logged: bool
) -> None:
    """A pod that asks with its own subnet is harmless; three different clients other than itself show a forwarder."""
    responder = responder_of(CLUSTER, FLAGS)
    for client in clients:
        assert warned_of(responder) == []
        replied(responder, Asked(query(WEB, edns=opt(carrier(client))), SOURCE, "udp"))
    assert warned_of(responder) == ([SOURCE] if logged else [])
    assert by_source(responder, "topodns_untrusted_forwarders") == ({SOURCE: 1} if logged else {})
    assert by_source(responder, "topodns_client_subnets_ignored_total") == {SOURCE: len(clients)}


@pytest.mark.parametrize("qtype", ["A", "SRV"])
def test_the_error_is_left_out_after_additional_records_and_before_records(qtype: str) -> None:
    """In 512 octets, a reply leaves out additional records first, then the error, which costs no other its place.

    By TCP the reply is whole.
    """
    responder, seen = responder_of(CLUSTER), []
    for count in range(1, MAX_ENDPOINTS + 1):
        wire = query(f"of-{count:02}.shop.svc.cluster.local", qtype, edns=opt(ecs(CLIENTS[0]), size=512))
        octets = replied(responder, Asked(wire, SOURCE, "tcp"))
        whole = parsed(octets, one_rr_per_rrset=True)
        assert errors_in(whole) == [ignored_error(SOURCE)] and len(whole.answer) == count
        for compute in (False, True):
            reply = parsed(replied(responder, Asked(wire, SOURCE, "udp"), compute=compute), one_rr_per_rrset=True)
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


# A server, whose log says what to do


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    listen = ["[::]:0"] if has_ipv6() else ["127.0.0.1:0"]
    flags = {**FLAGS, "listen": listen, "http": "127.0.0.1:0"}
    with serving(tmp_path_factory.mktemp("warnings"), CLUSTER, flags=flags) as server:
        yield server


def name_clients(server: Server, source: str, clients: Sequence[str | None]) -> list[list[tuple[int, str]]]:
    """Ask a server from *source* for each client, None for nobody; return the extended errors in each reply."""
    found, to = [], "::1" if ":" in source else "127.0.0.1"
    for client in clients:
        options = [dns.edns.ECSOption(client, 32)] if client is not None else []
        asked = dns.message.make_query(WEB, "A", use_edns=0, options=options)
        found.append(errors_in(server.ask(asked, source=source, to=to)))
    return found


def test_a_server_says_which_forwarder_to_fix_and_how(server: Server) -> None:
    """The log has one line for each forwarder, with the line for its Corefile; the metric counts all queries."""

    def lines(forwarder: str) -> list[str]:
        return [line for line in server.lines if f"forwarder {forwarder} " in line]

    name_clients(server, FORWARDER, [None])
    server.wait_for(f"forwarder {FORWARDER} names no client")
    for source in (FORWARDER, SECOND, SOURCE):
        name_clients(server, source, [None])
    server.wait_for(f"forwarder {SECOND} names no client")  # the look that saw it saw all
    assert [len(lines(each)) for each in (FORWARDER, SECOND, SOURCE)] == [1, 1, 0]
    assert "rewrite edns0 subnet set 32 128 revert" in lines(FORWARDER)[0]
    metrics = server.metrics()
    assert [metrics["topodns_forwarded_without_client_total", each] for each in (FORWARDER, SECOND)] == [2, 1]


def test_a_server_logs_a_forwarder_that_nobody_trusts(server: Server) -> None:
    """One line for each, with the flag that makes topodns trust it, and none for a source that names two clients."""
    pattern = r"WARNING.*{0}.* --trusted-forwarder {0}/32$"
    assert name_clients(server, THIRD, CLIENTS[:2]) == [[ignored_error(THIRD)]] * 2
    assert name_clients(server, SOURCE, CLIENTS) == [[ignored_error(SOURCE)]] * 3
    server.wait_for(pattern.format(SOURCE))
    assert not any("--trusted-forwarder" in line and THIRD in line for line in server.lines)
    name_clients(server, SOURCE, CLIENTS)
    name_clients(server, THIRD, CLIENTS)
    server.wait_for(pattern.format(THIRD))  # the server looks at all sources at the same time
    assert len([line for line in server.lines if f"--trusted-forwarder {SOURCE}/32" in line]) == 1
    metrics = server.metrics()
    assert [metrics["topodns_client_subnets_ignored_total", source] for source in (SOURCE, THIRD)] == [6, 5]


def test_a_server_logs_a_forwarder_of_ipv6(server: Server) -> None:
    """The flag's prefix is that of one IPv6 address."""
    if not has_ipv6():
        lacking("this machine has no IPv6")
    name_clients(server, "::1", CLIENTS)
    server.wait_for(r"WARNING.*::1.* --trusted-forwarder ::1/128$")
