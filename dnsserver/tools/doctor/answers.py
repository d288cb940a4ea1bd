# SPDX-License-Identifier: Apache-2.0

"""Which queries are asked, what ``explain`` says of them, and whether the answers are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from dnsserver.message.records import type_number
from dnsserver.names import SERVICES, labels_of
from dnsserver.tools.doctor.facts import Comparison, Facts, Installed, Question, Reply, View
from dnsserver.tools.doctor.installation import RESTART, deployment_name, restarted, rolled_out
from dnsserver.tools.doctor.steps import DoctorStep, StepCode, Unread
from dnsserver.tools.explain.explain import explain
from locator.ip import address_text, parse_client
from locator.model import ZONE, Node, Pod, listed
from locator.printable import filled
from locator.state.snapshot import CompiledService

MAX_SHOWN = 5  # addresses of an answer in a message
MAX_ASKED = 32  # servers of the cluster's DNS: some clusters have one on every node


def clients_by_zone(nodes: Iterable[Node], pods: Iterable[Pod]) -> dict[str, str]:
    """Return an address in each zone: that of a running pod, else that of a node."""
    zones = {node.name: zone for node in nodes if (zone := node.labels.get(ZONE))}
    found: dict[str, str] = {}
    for pod in sorted(pods, key=lambda pod: pod.key):
        if pod.node in zones and pod.addresses and not pod.host_network and not pod.finished:
            found.setdefault(zones[pod.node], address_text(pod.addresses[0]))
    for node in nodes:
        if node.name in zones and node.addresses:
            found.setdefault(zones[node.name], address_text(node.addresses[0]))
    return dict(sorted(found.items()))


def service_zones(view: View) -> list[str]:
    """Return the zones of plain Service names."""
    return [zone.name for zone in view.authority.zones if not zone.reverse and zone.about == SERVICES]


def question_of(view: View, zones: Sequence[str]) -> Question | None:
    """Return what to ask: a name within *zones*, of a Service whose answer depends on the client if there is one.

    None if no Service of these zones has an endpoint.
    """
    domains = service_zones(view)
    best: tuple[int, str, Question] | None = None
    for service in view.snapshot.services.values():
        rank = _rank(service)
        for domain in domains:
            name = f"{service.service.name}.{service.service.namespace}.svc.{domain}"
            if rank is not None and any(name == zone or name.endswith(f".{zone}") for zone in zones):
                qtype = "A" if any(len(address) == 4 for address in service.addresses) else "AAAA"
                if best is None or (rank, name) < best[:2]:
                    best = rank, name, Question(name, qtype, "", "")
    return None if best is None else best[2]


def _rank(service: CompiledService) -> int | None:
    """Return how little an answer tells, the least for the most; None if it has no address."""
    declaration = service.declaration
    if service.service.alias is not None or not service.addresses:
        return None
    if not service.service.headless:
        return 3 if service.service.cluster_ips else None
    if declaration is None or not declaration.valid:
        return 2
    zones = {location.value(ZONE) for location in service.locations}
    return 0 if len(zones) > 1 else 1


def expected(question: Question, client: str, view: View) -> tuple[frozenset[str], str]:
    """Return the addresses that ``explain`` gives for a client, and the rcode."""
    explained = explain(
        labels_of(question.name), type_number(question.qtype), parse_client(client), view.snapshot, view.authority
    )
    addresses = (answer.data for answer in explained.answers if answer.type == question.qtype)
    return frozenset(addresses), explained.rcode


def compared(
    server: str, transport: str, question: Question, reply: Reply, view: View, clients: Mapping[str, str]
) -> Comparison:
    """Return a question with its reply, and what ``explain`` says of it.

    Without a client in the question, the place that asked is the client. If nothing locates it, a node on the way may
    stand in for it: then the reply is compared with what each of *clients* gets, one in each zone, too.
    """
    client = question.client or ("" if reply.source is None else address_text(reply.source))
    addresses, rcode = expected(question, client, view) if client else (frozenset[str](), "")
    located = reply.source is not None and view.snapshot.addresses.locate(reply.source).location.known
    asked = Comparison(server, transport, question, reply, addresses, rcode, bool(question.client) or located)
    if asked.right or asked.certain or reply.error:
        return asked
    for zone, other in clients.items():
        addresses, rcode = expected(question, other, view)
        in_zone = replace(asked, question=replace(question, zone=zone), expected=addresses, expected_rcode=rcode)
        if in_zone.right:
            return in_zone
    return asked


def answer_steps(facts: Facts) -> Iterator[DoctorStep]:
    """Yield a step for each replica, and one for each forwarder."""
    yield from _steps(facts, StepCode.ReplicaAnswers, facts.replica_answers)
    yield from _steps(facts, StepCode.ForwarderAnswers, facts.forwarder_answers)


def _steps(facts: Facts, code: StepCode, answers: Sequence[Comparison] | Unread) -> Iterator[DoctorStep]:
    if isinstance(answers, Unread):
        yield code.unread(answers)
        return
    for server in dict.fromkeys(asked.server for asked in answers):
        of_server = [asked for asked in answers if asked.server == server]
        yield _step(facts, code, server, of_server)
    zones = not isinstance(facts.nodes, Unread) and clients_by_zone(facts.nodes, ())
    sources = {asked.reply.source for asked in answers if zones and not asked.question.client}
    places = sorted(address_text(source) for source in sources if source is not None)
    if places and code is StepCode.ReplicaAnswers:
        message = f"{', '.join(places)} is no trusted forwarder, so it can ask for its own zone alone"
        advice = "Run `doctor` at an address that `--trusted-forwarder` names, to compare the answers for every zone."
        yield code.unknown(message, "every zone", advice=advice)
    if code is StepCode.ForwarderAnswers and (left := len(facts.forwarders) - MAX_ASKED) > 0:
        yield code.unknown(f"{left} more servers of the cluster's DNS were not asked", "others")


def inside(kubectl: str, installed: Installed) -> str:
    """Return the command that runs ``doctor`` where the replicas can be reached."""
    words = {"NAMESPACE": installed.namespace, "NAME": deployment_name(installed)}
    return f"{kubectl} {filled('-n NAMESPACE exec deploy/NAME -- topodns doctor', words)}"


def _step(facts: Facts, code: StepCode, server: str, answers: Sequence[Comparison]) -> DoctorStep:
    wrong = [asked for asked in answers if not asked.right]
    lost = [asked for asked in wrong if asked.reply.error]
    if lost and len(lost) == len(answers) and not _is_inside(facts, answers):
        message = f"not reached from here: {lost[0].reply.error}"
        return code.unknown(message, server, (inside(facts.kubectl, facts.installed),))
    if wrong and not any(asked.certain for asked in wrong):
        message = (
            f"this place is in no zone, and no zone's clients get this answer, so nobody knows as which client it asks:"
            f" {_difference(wrong[0])}"
        )
        return code.unknown(message, server, (inside(facts.kubectl, facts.installed),))
    if wrong:
        message = "; ".join(map(_difference, wrong[:MAX_SHOWN]))
        if code is StepCode.ForwarderAnswers:
            return code.failed(message, server, restarted(facts, server), RESTART)
        return code.failed(message, server, (rolled_out(facts),))
    zones = dict.fromkeys(asked.question.zone for asked in answers if asked.question.zone)
    transports = " and ".join(dict.fromkeys(asked.transport for asked in answers))
    where = f" in {', '.join(zones)}" if zones else ""
    as_others = "" if all(asked.certain for asked in answers) or not zones else ", as one of whom this place asks"
    message = f"{answers[0].question.name}: the same for clients{where} over {transports}{as_others}"
    return code.passed(message, server)


def _is_inside(facts: Facts, answers: Sequence[Comparison]) -> bool:
    """Whether ``doctor`` asks from an address of the cluster."""
    view = facts.view
    if isinstance(view, Unread):
        return False
    sources = {asked.reply.source for asked in answers}
    return any(view.snapshot.addresses.locate(source).location.known for source in sources if source is not None)


def _difference(asked: Comparison) -> str:
    question, reply = asked.question, asked.reply
    client = question.client or ("this place" if reply.source is None else address_text(reply.source))
    zone = f" in {question.zone}" if question.zone else ""
    what = f"{question.name} {question.qtype} for {client}{zone} over {asked.transport}"
    if reply.error:
        return f"{what}: {reply.error}"
    return f"{what}: {_shown(reply.rcode, reply.addresses)}, expected {_shown(asked.expected_rcode, asked.expected)}"


def _shown(rcode: str, addresses: Iterable[str]) -> str:
    return f"{rcode} {listed(sorted(addresses), MAX_SHOWN) or 'without an address'}"
