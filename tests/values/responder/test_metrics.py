# SPDX-License-Identifier: Apache-2.0

"""The metrics: what they count, that they are all described, and that they cost a replica little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import dns.message
import pytest

from dnsserver.message.wire import PROBE, PROBE_TEXT
from dnsserver.metrics import counters, families
from dnsserver.metrics import server as server_metrics
from dnsserver.metrics.controller import OF_CONTROLLERS, ControllerMetrics
from dnsserver.metrics.counters import MAX_TALLIES, Counts, Tally
from dnsserver.metrics.families import ANY_VALUE, COUNTER, HISTOGRAM, Family, TopodnsCollector, labelled
from dnsserver.metrics.relations import RELATIONS
from dnsserver.metrics.server import ServerMetrics
from dnsserver.metrics.webhook import OF_WEBHOOKS, WebhookCounts
from dnsserver.programs import controller as controller_program
from dnsserver.programs import webhook as webhook_program
from dnsserver.programs.controller import Parts
from dnsserver.programs.federation import Federation
from locator.cluster.api_client import ApiClient
from locator.cluster.certificates.secret import CertificateSecret
from locator.cluster.certificates.serving import ServingCertificate
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector
from locator.cluster.leading.federator import Federator
from locator.cluster.leading.prober import LeaderProber
from locator.control.lease import LeaderElection
from locator.control.reconciler import Rules
from locator.health.rules import HealthRules
from locator.hints.rules import HintRules
from locator.ip import parse_address
from locator.podlocators.rules import LocatorRules
from locator.policies.rules import PolicyRules
from locator.printable import cut
from locator.publishing.rules import PublishingRules
from tests.kit import api_objects
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, listed, node
from tests.kit.crowded_zone import ADDRESSES, balanced, crowded
from tests.kit.dns_queries import ecs, opt, option, query
from tests.kit.in_memory import NOW, CountedResponder, snapshot_of, with_and_without_native
from tests.kit.proxy_headers import proxied
from tests.kit.tapped import Everything, tap_of

FORWARDER = "10.9.0.1"
IN_A, IN_B, IN_C, NO_ZONE, NOWHERE = "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14", "192.0.2.1"


def web(name: str, *nodes: str, keys: str | None = None) -> list[Item]:
    """Return a headless Service with an endpoint on each of these nodes."""
    rows = [endpoint(f"10.1.{number}.{len(name)}", nodeName=where) for number, where in enumerate(nodes)]
    return [api_objects.service(name, keys=keys), endpoint_slice(name, 0, rows)]


CLUSTER: list[Item] = [
    *(node(f"n-{zone}", {ZONE: zone}, addresses=[f"10.0.0.{number}"]) for number, zone in enumerate("abc", start=11)),
    node("n", addresses=[NO_ZONE]),
    *web("all", "n-a", "n-b"),
    *web("near", "n-a", "n-b", "n-b", keys=f"{ZONE},*"),
    *web("hard", "n-a", keys=ZONE),
    *web("lost", "n-a", "n"),
    api_objects.service("virtual", cluster_ips=["10.96.0.1"]),
    api_objects.external("away", "all.shop.svc.cluster.local"),
]
FLAGS = {"trusted-forwarder": [f"{FORWARDER}/32"]}


def responder_of(counts: Counts | None = None, *, native: bool | None = False) -> CountedResponder:
    responder = CountedResponder(FLAGS, counts=counts, native=native)
    responder.publish(snapshot_of(listed(CLUSTER), FLAGS))
    return responder


def ask(responder: CountedResponder, name: str, client: str, *, rtype: str = "A", proto: str = "udp") -> None:
    wire = query(f"{name}.shop.svc.cluster.local", rtype, edns=opt(ecs(client)))
    source = parse_address(FORWARDER)
    assert responder.reply(wire, source, responder.channel(source, proto)) is not None


def samples(collector: TopodnsCollector, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by the values of its labels, in the order of the labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for metric in collector.collect()
        for sample in metric.samples
        if sample.name == name
    }


ANSWERED = [
    ("same", "near", IN_A, "A", "same"),
    ("same, several", "near", IN_B, "A", "same"),
    ("all zones, as none is the client's", "near", IN_C, "A", "other"),
    ("unconstrained", "all", IN_A, "A", "some"),
    ("unconstrained, no endpoint near", "all", IN_C, "A", "other"),
    ("SRV", "near", IN_A, "SRV", "same"),
    ("an alias", "away", IN_B, "A", "some"),
    ("an endpoint without a zone, one near", "lost", IN_A, "A", "some"),
    ("an endpoint without a zone, which may be near", "lost", IN_B, "A", "unknown"),
    ("a client without a zone", "all", NO_ZONE, "A", "unknown"),
    ("a client that cannot be located", "all", NOWHERE, "A", "unknown"),
    ("nothing for this client", "hard", IN_B, "A", None),
    ("no record of this type", "near", IN_A, "AAAA", None),
    ("no endpoints at all", "near", IN_A, "TXT", None),
    ("a cluster IP, behind which kube-proxy chooses", "virtual", IN_A, "A", None),
    ("a name that does not exist", "none", IN_A, "A", None),
]
ZONE_OF = {IN_A: "a", IN_B: "b", IN_C: "c", NO_ZONE: "unknown", NOWHERE: "unknown"}


@with_and_without_native
@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize(("name", "client", "rtype", "answer"), [row[1:] for row in ANSWERED],
                         ids=[row[0] for row in ANSWERED])  # fmt: skip
def test_zones_of_answers(name: str, client: str, rtype: str, answer: str | None, proto: str, native: bool) -> None:
    """Answers count by the client's zone and whether their endpoints are in it, remembered or not."""
    responder = responder_of(native=native)
    for _ in range(3):
        ask(responder, name, client, rtype=rtype, proto=proto)
    found = samples(ServerMetrics(responder.counts), "topodns_answer_zones_total")
    zone = ZONE_OF[client]
    assert {key: number for key, number in found.items() if number} == ({(zone, answer): 3} if answer else {})
    assert set(found) >= {(zone, word) for word in RELATIONS}


def test_answers_that_were_passed_on() -> None:
    """They count as ``spilled``, and by the key that decided: that to which the client was passed on."""
    responder = CountedResponder(FLAGS, native=False)
    responder.publish(snapshot_of(crowded(balanced(f"{ZONE},*")), FLAGS))
    for _ in range(3):
        ask(responder, "web", ADDRESSES["a1"])
    ask(responder, "web", ADDRESSES["a2"])
    found = ServerMetrics(responder.counts)
    outcomes = samples(found, "topodns_answers_total")
    assert (outcomes["spilled",], outcomes["nearest",]) == (3, 1)
    assert samples(found, "topodns_answer_tier_total") == {("*",): 3, (ZONE,): 1}


def test_labels_are_printable() -> None:
    """Others write zones into dumps, PodLocators and EndpointSlices. What looks the same counts together."""
    numbers = labelled({"a\x1b[2J": 1, "a\\x1b[2J": 2, "b" * 1000: 4})
    metric = Family("topodns_answers", COUNTER, "", {"zone": ANY_VALUE}).metric(numbers)
    assert {sample.labels["zone"]: sample.value for sample in metric.samples} == {r"a\x1b[2J": 3, cut("b" * 1000): 4}


def test_zones_by_service() -> None:
    """--metrics-per-service: the same answers, each with its Service; sums over the Services are as without it."""
    responders = responder_of(), responder_of(Counts(per_service=True))
    for responder in responders:
        for name in ("all", "near", "hard", "away", "virtual"):
            for client in (IN_A, IN_B, IN_C):
                ask(responder, name, client)
    without, by_service = (samples(ServerMetrics(found.counts), "topodns_answer_zones_total") for found in responders)
    assert by_service["shop", "near", "a", "same"] == 1
    assert by_service["shop", "all", "b", "some"] == 2  # its own name, and the alias
    sums: Counter[tuple[str, ...]] = Counter()
    for (_, _, *key), number in by_service.items():
        sums[tuple(key)] += int(number)
    assert sums == {key: number for key, number in without.items() if number}


def test_services_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many Services, the later ones count together, under empty labels. Without a record, only unmet ones do."""
    monkeypatch.setattr(counters, "MAX_SERVICES", 2)
    responder = responder_of(Counts(per_service=True))
    ask(responder, "all", IN_A, rtype="AAAA")
    ask(responder, "hard", IN_B)
    for name in ("near", "all", "lost", "near"):
        ask(responder, name, IN_A)
    metrics = ServerMetrics(responder.counts)
    assert samples(metrics, "topodns_answer_zones_total") == {
        ("shop", "near", "a", "same"): 2,
        ("", "", "a", "some"): 2,
    }
    assert samples(metrics, "topodns_service_answers_total") == {
        ("shop", "hard", "unmet"): 1,
        ("shop", "near", "nearest"): 2,
        ("", "", "unconstrained"): 2,
    }


# A name below the Service that has no ready endpoint, or one that sends clients to it, the type, and whether the answer
# is one of those that the Service could not give.
NOTHING_READY = [
    ("its own name", "down", "A", True),
    ("the other family", "down", "AAAA", True),
    ("SRV", "down", "SRV", True),
    ("a port", "_main._tcp.down", "SRV", True),
    ("no endpoint at all", "none-yet", "A", True),
    ("an alias of it", "to-down", "A", True),
    ("a type that no endpoint has", "down", "TXT", False),
    ("a port that it does not have", "_mian._tcp.down", "SRV", False),
    ("a port has no address", "_main._tcp.down", "A", False),
    ("a pod", "down-0.down", "A", False),
    ("no such Service", "donw", "A", False),
    ("a cluster IP", "virtual", "SRV", False),
    ("ready, but not of this family", "near", "AAAA", False),
]
OF_UNREADY = [
    *CLUSTER,
    api_objects.service("down"),
    endpoint_slice("down", 0, [endpoint("10.2.0.1", nodeName="n-a", ready=False)]),
    api_objects.service("none-yet"),
    api_objects.external("to-down", "down.shop.svc.cluster.local"),
]


@with_and_without_native
@pytest.mark.parametrize(("name", "rtype", "counts_it"), [row[1:] for row in NOTHING_READY],
                         ids=[row[0] for row in NOTHING_READY])  # fmt: skip
def test_answers_of_services_without_ready_endpoints(name: str, rtype: str, counts_it: bool, native: bool) -> None:
    """They count for their Service, each one that native code repeats, too; by no constraint, so nowhere else."""
    counts = Counts(per_service=True)
    counts.askers = set()
    responder = CountedResponder(FLAGS, counts=counts, native=native)
    responder.publish(snapshot_of(listed(OF_UNREADY), FLAGS))
    for _ in range(2):
        ask(responder, "_amin._tcp.down", IN_A, rtype="SRV")  # as long as a port that there is
        ask(responder, name, IN_A, rtype=rtype)
    service = ("shop", "none-yet" if name == "none-yet" else "down")
    metrics = ServerMetrics(counts)
    found = samples(metrics, "topodns_service_answers_total")
    assert found == ({(*service, "unready"): 2} if counts_it else {})
    assert set(counts.take_askers()) == ({(service, parse_address(IN_A))} if counts_it else set())
    assert not any(samples(metrics, "topodns_answers_total").values())


def test_services_that_are_gone_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their places are free for others, and their series end. Those of other clusters are there as long as these."""
    monkeypatch.setattr(counters, "MAX_SERVICES", 2)
    responder = responder_of(Counts(per_service=True))
    for name in ("near", "all", "hard"):
        ask(responder, name, IN_A)
    left = [item for item in CLUSTER if item["metadata"]["name"] not in ("near", "near-0")]
    responder.publish(snapshot_of(listed(left), FLAGS, now=NOW + 1))
    for name in ("hard", "lost", "all"):
        ask(responder, name, IN_A)
    assert samples(ServerMetrics(responder.counts), "topodns_service_answers_total") == {
        ("shop", "all", "unconstrained"): 2,
        ("shop", "hard", "nearest"): 1,
        ("", "", "nearest"): 1,
        ("", "", "unconstrained"): 1,
    }


def test_services_one_after_the_other_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are never used again, so at last those Services that come count together; zones are still told."""
    monkeypatch.setattr(counters, "SERVICE_TALLIES", 3)
    counts = Counts(per_service=True)
    for number in range(5):
        counts.free_places(lambda _: False)
        tally = Tally("A", 0, "nearest", "zone", frozenset("a"), ("ci", f"run-{number}"))
        counts.channels["udp", 1].counts[counts.origin("pod", "a") + counts.tally(tally)] += 1
    found = {tally.service: (tally.zones, times) for _, _, tally, times in counts.replies()}
    assert found == {
        **{("ci", f"run-{number}"): (frozenset("a"), 1) for number in range(3)},
        None: (frozenset("a"), 2),
    }


def test_services_are_counted_for_the_console() -> None:
    """Without --metrics-per-service, the metrics are as if nobody looked at Services."""
    counts = Counts()
    counts.counts_services = True
    responders = responder_of(), responder_of(counts)
    for responder in responders:
        for name in ("near", "hard", "all"):
            ask(responder, name, IN_B)
    without, console = ([*ServerMetrics(found.counts).collect()] for found in responders)
    of_queries = {family.name for family in server_metrics.OF_QUERIES}
    assert [metric for metric in without if metric.name in of_queries] == [
        metric for metric in console if metric.name in of_queries
    ]
    assert {tally.service for _, _, tally, _ in counts.replies()} == {
        ("shop", "near"),
        ("shop", "hard"),
        ("shop", "all"),
    }


def test_tallies_are_bounded() -> None:
    """However many zones, keys and Services there are, the numbers stay few; nothing is lost but the detail."""
    counts = Counts(per_service=True)
    zones = [counts.origin("pod", f"z-{number}") for number in range(5000)]
    assert max(zones) + MAX_TALLIES < 1 << 32  # as the native code has them
    tallies = [
        counts.tally(Tally("A", 0, "nearest", f"k-{number}", frozenset((f"z-{number}",))))
        for number in range(MAX_TALLIES)
    ]
    assert max(tallies) < MAX_TALLIES
    channel = counts.channels["udp", 1]
    for number in tallies:
        channel.counts[zones[-1] + number] += 1
    assert samples(ServerMetrics(counts), "topodns_answers_total")["nearest",] == MAX_TALLIES
    assert samples(ServerMetrics(counts), "topodns_clients_total")["pod",] == MAX_TALLIES


UNLOCATED = [
    ("addresses of one range", (NOWHERE, "192.0.2.77"), ("address", "192.0.2.0/24")),
    ("IPv6", ("2001:db8::1", "2001:db8::2"), ("address", "2001:db8::/64")),
    ("blocks", ("192.0.2.0/25", "192.0.2.128/25"), ("block", "192.0.2.0/24")),
    ("a block that is larger", ("192.0.0.0/16", "192.0.0.0/22"), ("block", "192.0.0.0/24")),
]


@pytest.mark.parametrize(("clients", "expected"), [row[1:] for row in UNLOCATED], ids=[row[0] for row in UNLOCATED])
def test_unlocated_clients(clients: Sequence[str], expected: tuple[str, str]) -> None:
    """By what was looked up, and by the range around it."""
    responder = responder_of()
    for client in (*clients, IN_A):
        ask(responder, "near", client)
    assert samples(ServerMetrics(responder.counts), "topodns_unlocated_clients_total") == {expected: 2}


# Who asks, and what the query carries: its EDNS, or what comes before it. All are unknown.
UNLOCATED_BY = {
    "source": (NOWHERE, b"", b""),
    "source-with-edns": (NOWHERE, opt(), b""),
    "source-over-ipv6": ("2001:db8::1", opt(), b""),
    "source-that-names-somebody": (NOWHERE, opt(ecs(IN_A)), b""),
    "source-that-names-a-block": (NOWHERE, opt(ecs("10.0.0.0/24")), b""),
    "address": (FORWARDER, opt(ecs(NOWHERE)), b""),
    "mapped-address": (FORWARDER, opt(ecs(f"::ffff:{NOWHERE}")), b""),
    "block": (FORWARDER, opt(ecs("192.0.2.0/24")), b""),
    "block-of-odd-bits": (FORWARDER, opt(ecs("192.0.2.0/25")), b""),
    "block-of-ipv6": (FORWARDER, opt(ecs("2001:db8::/32")), b""),
    "option": (FORWARDER, opt(option(65001, parse_address(NOWHERE))), b""),
    "header": (FORWARDER, opt(), proxied(NOWHERE)),
    "header-before-a-subnet": (FORWARDER, opt(ecs(IN_A)), proxied(NOWHERE)),
}
# Names and types: constrained, not, several times, and what nobody has.
ASKED = [("near", "A"), ("near", "A"), ("near", "A"), ("all", "A"), ("all", "SRV"), ("all", "SRV"), ("none", "A")] * 2


@with_and_without_native
@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize("tapped", [False, True], ids=["alone", "tapped"])
@pytest.mark.parametrize(("source", "edns", "header"), UNLOCATED_BY.values(), ids=UNLOCATED_BY)
def test_a_query_of_an_unlocated_client_counts_once(
    source: str, edns: bytes, header: bytes, tapped: bool, proto: str, native: bool
) -> None:
    """However it is answered: computed, remembered, repeated by native code, or told to ``tail``."""
    flags = {**FLAGS, "client-option": 65001, "proxy-protocol": True}
    responder = CountedResponder(flags, native=native)
    responder.publish(snapshot_of(listed(CLUSTER), flags))
    if tapped:
        tap_of(responder).listen(Everything(flags))
    packed = parse_address(source)
    named = parse_address(NOWHERE) if header and proto == "tcp" else None  # the stream's reader takes the header off
    for name, rtype in ASKED:
        wire = query(f"{name}.shop.svc.cluster.local", rtype, edns=edns)
        sent = header + wire if proto == "udp" else wire
        assert responder.reply(sent, packed, responder.channel(packed, proto), header_client=named) is not None
    metrics = ServerMetrics(responder.counts)
    (counted,) = samples(metrics, "topodns_unlocated_clients_total").values()
    assert counted == len(ASKED) == samples(metrics, "topodns_clients_total")["unknown",]


PROBES = {
    "unlocated": (NOWHERE, ()),
    "unlocated-and-named": (FORWARDER, (ecs(NOWHERE),)),
    "names-nobody": (FORWARDER, ()),
    "untrusted-and-names-others": (IN_A, (ecs(IN_B),)),
}
OF_CLIENTS = (
    "topodns_unlocated_clients_total", "topodns_clients_total", "topodns_client_subnets_ignored_total",
    "topodns_untrusted_forwarders", "topodns_answer_zones_total",
)  # fmt: skip


@with_and_without_native
@pytest.mark.parametrize("code", [None, PROBE], ids=["alone", "the-client-option"])
@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize(("source", "options"), PROBES.values(), ids=PROBES)
def test_a_probe_is_a_query_but_no_client(
    source: str, options: Sequence[bytes], proto: str, code: int | None, native: bool
) -> None:
    """Its answer is that of everybody who asks so, whatever was remembered; what is told of clients stays as it was."""
    flags = {**FLAGS, **({} if code is None else {"client-option": code})}
    responder = CountedResponder(flags, native=native)
    responder.publish(snapshot_of(listed(CLUSTER), flags))
    packed = parse_address(source)

    def answered(edns: bytes) -> list[Any]:
        replies = []
        for name, rtype in ASKED:
            wire = query(f"{name}.shop.svc.cluster.local", rtype, edns=edns)
            reply = responder.reply(wire, packed, responder.channel(packed, proto))
            assert isinstance(reply, bytes)
            message = dns.message.from_wire(reply)
            replies.append((message.rcode(), {record for rrset in message.answer for record in rrset}, message.options))
        return replies

    def clients() -> list[Any]:
        metrics = ServerMetrics(responder.counts)
        return [{key: number for key, number in samples(metrics, name).items() if number} for name in OF_CLIENTS]

    usual, before = answered(opt(*options)), clients()
    assert before[1]
    assert answered(opt(*options, option(PROBE, PROBE_TEXT))) == usual
    assert clients() == before
    metrics = ServerMetrics(responder.counts)
    unnamed = {(FORWARDER,): 2 * len(ASKED)} if source == FORWARDER and not options else {}  # that is the forwarder's
    assert samples(metrics, "topodns_forwarded_without_client_total") == unnamed
    assert samples(metrics, "topodns_probes_total") == {(): len(ASKED)}
    assert sum(samples(metrics, "topodns_dns_responses_total").values()) == 2 * len(ASKED)


def test_ranges_are_bounded() -> None:
    """Further ranges count together."""
    counter = counters.RangeCounter()
    for number in range(counters.MAX_SOURCES + 10):
        counter.add(counters.ADDRESS, bytes((10, number >> 8, number & 255, 1)))
    numbers = counter.numbers()
    assert len(numbers) == counters.MAX_SOURCES + 1 and numbers["address", counters.OTHER] == 10


class Other:
    """Another cluster."""

    name = "far"
    watches = {"Pod": type("Watch", (), {"listed": True, "restarts": Counter(ended=2)})}

    def object_counts(self) -> dict[str, int]:
        return {"Pod": 3}


def server() -> ServerMetrics:
    metrics = ServerMetrics(Counts(per_service=True), ["Pod"])
    metrics.watches = Other.watches
    metrics.others = [Other()]
    metrics.ages = lambda: {"local": 0.0, "far": 2.5}
    metrics.votes = lambda: {"far": 1}
    return metrics


CLIENT = ApiClient(kubeconfig="nowhere", required=False)  # nothing is sent
ELECTOR = LeaderElector(CLIENT, LeaderElection("me", "ns", "lease"), writes="")


def controlled(rules: Rules) -> Controller:
    return Controller(CLIENT, ELECTOR, rules, field_manager="tests")


class Names(NamedTuple):
    """What publishes names, as far as metrics ask."""

    controller: Controller


def controller() -> ControllerMetrics:
    rules = HealthRules("east", timestamp=str)
    prober = LeaderProber(controlled(rules), rules, ELECTOR)
    names: Any = Names(controlled(PublishingRules(["fed.example"], "dns")))
    federator = Federator("fed", CLIENT, ELECTOR, instance="me")
    federator.add_cluster("east", CLIENT)
    parts = Parts(ELECTOR, controlled(LocatorRules()), controlled(PolicyRules(str)), prober, names)
    return controller_program.metrics_of(parts, Federation(ELECTOR, federator, is_own=False))


def webhook() -> ControllerMetrics:
    serving = ServingCertificate()
    certificate = CertificateSecret(CLIENT, ("ns", "secret"), "configuration", serving)
    return webhook_program.metrics_of(ELECTOR, controlled(HintRules()), WebhookCounts(), serving, certificate)


PROGRAMS = [
    ("serve", server(), (*server_metrics.OF_QUERIES, *server_metrics.OF_THE_CLUSTER)),
    ("controller", controller(), OF_CONTROLLERS),
    ("webhook", webhook(), OF_WEBHOOKS),
]


# Labels that Prometheus gives to what it scrapes: by its external labels, its targets, and the Prometheus Operator.
OF_PROMETHEUS = {"cluster", "container", "endpoint", "instance", "job", "namespace", "node", "pod", "service"}


@pytest.mark.parametrize(("collector", "own"), [row[1:] for row in PROGRAMS], ids=[row[0] for row in PROGRAMS])
def test_every_metric_is_described(collector: TopodnsCollector, own: Iterable[Family]) -> None:
    """A program shows the metrics of its tables, those of watches and of each process, and no other.

    No label is one that Prometheus sets: it would rename ours, or ours would hide it.
    """
    described = {family.name: family for family in (*own, *families.OF_WATCHES, *families.OF_EACH_PROCESS)}
    collected = {metric.name: metric for metric in collector.collect()}
    assert collected.keys() == described.keys()
    for name, family in described.items():
        assert (collected[name].type, collected[name].documentation) == (family.kind, family.text)
        assert not OF_PROMETHEUS & family.labels.keys()
        if family.kind != HISTOGRAM and ANY_VALUE not in family.labels.values():
            first, *others = collected[name].samples
            assert [*first.labels] == [*family.labels]
            assert all(sample.value == 0 for sample in (first, *others))


def test_every_result_of_a_write_is_known_beforehand() -> None:
    """A series that appears with its first count would hide that count from ``rate``."""
    writes = next(metric for metric in controller().collect() if metric.name == "topodns_podlocator_writes")
    results = {sample.labels["result"] for sample in writes.samples}
    assert results == {"done", "conflict", "refused", "unreachable", "failed", "late", "behind"}


def test_the_process() -> None:
    """CPU seconds, memory and descriptors of the process are there, under the names that everybody knows."""
    found = {metric.name for metric in server().registry().collect()}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= found


@with_and_without_native
@pytest.mark.parametrize("proto", ["udp", "tcp"])
def test_who_asks_is_noted(proto: str, native: bool) -> None:
    """Each located client with the Service that it asked for, remembered or not; only while somebody wants to know."""
    counts = Counts()
    counts.counts_services, counts.askers = True, set()
    responder = responder_of(counts, native=native)
    for _ in range(3):
        for name in ("near", "hard", "virtual", "none"):
            for client in (IN_A, IN_B, NOWHERE):
                ask(responder, name, client, proto=proto)
    ask(responder, "near", "10.0.0.0/24", proto=proto)
    expected = [(("shop", name), parse_address(client)) for name in ("hard", "near") for client in (IN_A, IN_B)]
    assert sorted(set(counts.take_askers())) == expected
    assert not list(counts.take_askers())
    ask(responder, "near", IN_B, proto=proto)
    assert list(counts.take_askers()) == [(("shop", "near"), parse_address(IN_B))]
    unasked = responder_of(native=native)
    ask(unasked, "near", IN_A, proto=proto)
    assert unasked.counts.askers is None


def test_noted_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were left out are noted when they ask again after a look."""
    monkeypatch.setattr(counters, "MAX_ASKERS", 2)
    counts = Counts()
    counts.counts_services, counts.askers = True, set()
    responder = responder_of(counts)
    for client in (IN_A, IN_B, IN_C):
        ask(responder, "near", client)
    assert len(list(counts.take_askers())) == 2
    ask(responder, "near", IN_C)
    assert list(counts.take_askers()) == [(("shop", "near"), parse_address(IN_C))]


def test_who_asks_for_services_beyond_the_bound_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would be told of such clients."""
    monkeypatch.setattr(counters, "MAX_SERVICES", 1)
    monkeypatch.setattr(counters, "MAX_ASKERS", 2)
    counts = Counts()
    counts.counts_services, counts.askers = True, set()
    responder = responder_of(counts)
    for name, client in (("near", IN_A), ("all", IN_A), ("all", IN_B), ("near", IN_B)):
        ask(responder, name, client)
    assert sorted(counts.take_askers()) == [(("shop", "near"), parse_address(client)) for client in (IN_A, IN_B)]
