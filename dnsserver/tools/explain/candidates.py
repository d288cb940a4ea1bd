# SPDX-License-Identifier: Apache-2.0

"""Says of every endpoint of a Service, or entry of a federated one, why a client gets it or not.

It reads the Decision that the answer was made from; it never chooses itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import UNSET

from dnsserver import names
from dnsserver.answers.choosing import IN_SRV_ALONE
from dnsserver.answers.decision import ADDRESS_SIZES
from dnsserver.answers.endpoint_names import endpoint_names
from dnsserver.message.records import AddressData, type_name
from dnsserver.message.wire import SRV
from dnsserver.tools.explain.balance import HINTED, IN_VAIN, Room, common
from dnsserver.tools.explain.explanation import CandidateExplained
from dnsserver.tools.explain.reasons import ExplainedDecision, reason, unnarrowed, why_all
from locator.health.votes import UNHEALTHY
from locator.ip import address_text
from locator.model import CLUSTER, HOSTNAME, Endpoint, Location, in_two_clusters
from locator.state.snapshot import CompiledService, Entry, FederatedMember, FederatedService
from locator.topology.selection import (
    ALL,
    ANY_ENDPOINT,
    NEAREST,
    SPILLED,
    UNMET,
    FirstMatch,
    Hinted,
    LocatedEndpoint,
    NamedDomain,
    Narrowing,
    Selection,
    Step,
    has_address,
    names_for,
)

OWN = "the name is its own"

Judged = Iterator[tuple[LocatedEndpoint, bool, str]]  # an endpoint, whether the client gets it, and why or why not


def candidates_of(explained: ExplainedDecision) -> Iterator[CandidateExplained]:
    """Yield the endpoints that were chosen, those that are spare, the other ready ones, and those that are not ready.

    Of a federated Service, these are the entries that the client can get, and what it cannot get.
    """
    decision, federated = explained.decision, explained.decision.federated
    if federated is not None:
        judged = _judged_entries(explained, federated)
    elif decision.service is not None:
        judged = _judged(explained, decision.service)
    else:
        return
    spares = {id(located): number for number, located in enumerate(decision.spare_entries)}

    def order(row: tuple[LocatedEndpoint, bool, str]) -> Any:
        located, chosen, _ = row
        cluster, endpoint = located.location.cluster if federated else "", located.endpoint
        return (not chosen, spares.get(id(located), -1), cluster, not endpoint.ready, endpoint.pod or "",
                endpoint.addresses)  # fmt: skip

    for located, chosen, why in sorted(judged, key=order):
        yield _candidate(explained, located, why, chosen=chosen)


def _candidate(explained: ExplainedDecision, located: LocatedEndpoint, why: str, *, chosen: bool) -> CandidateExplained:
    endpoint, location, constraint = located.endpoint, located.location, explained.constraint
    entry = located if isinstance(located, Entry) else None
    kind = "endpoint" if entry is None else "load balancer" if entry.balancer else "cluster IP"
    federated = explained.decision.federated is not None
    return CandidateExplained(
        addresses=tuple(map(address_text, endpoint.addresses)),
        pod=endpoint.pod,
        node=location.node,
        cluster=location.labels.get(CLUSTER),
        ready=endpoint.ready,
        values={key: location.value(key) for key in (constraint.keys if constraint else ()) if key != ANY_ENDPOINT},
        chosen=chosen,
        why=why,
        kind=kind if federated else UNSET,
        votes=(entry.votes if entry else ()) if federated else UNSET,
    )


def _judged(explained: ExplainedDecision, service: CompiledService) -> Judged:
    for located in explained.snapshot.unready.get(service.cache_key, ()):
        yield located, False, "not ready"
    selection, query_name = explained.decision.selection, explained.query_name
    if selection is not None:
        yield from _chosen_or_not(explained, selection, service.endpoints)
        return
    is_routed = service.service.virtual and service.service.cluster_ips
    why = "kube-proxy chooses behind the cluster IP" if is_routed else reason(explained)
    own: set[int] = set()
    if query_name is not None and query_name.name_type in names.ENDPOINTS_OWN:
        by_name = endpoint_names(service, pod_names=explained.authority.endpoint_pod_names).endpoints
        own = {id(located) for located, _ in by_name.get(query_name.endpoint_labels, ())}
    for located in service.endpoints:
        if id(located) in own:
            yield located, True, f"{OWN}{_without_record(explained, located)}"
        else:
            yield located, False, "the name is another endpoint's" if own else why


def _judged_entries(explained: ExplainedDecision, found: FederatedService) -> Judged:
    decision = explained.decision
    if decision.selection is not None:
        for member in found.members:
            yield from _judged_in(explained, decision.selection, found, member)
        return
    records = (*decision.answers, *decision.additional_records)
    named = {record.data.packed for record in records if isinstance(record.data, AddressData)}
    for located in found.endpoints:
        own = not named.isdisjoint(located.endpoint.addresses)
        yield located, own, OWN if own else "the name is another entry's"


def _judged_in(
    explained: ExplainedDecision, selection: Selection, found: FederatedService, member: FederatedMember
) -> Judged:
    """Yield what the client can get of a member; if nothing, or only by SRV, its endpoints, and why."""
    viewer = found.viewer(explained.location)
    flat, with_ports = (viewer, member.cluster) in found.flat, explained.decision.qtype == SRV
    entries = member.entries(viewer, flat=flat, with_ports=with_ports)
    if member.exported.compiled.empty:
        yield _without_address(member, Endpoint((), ready=False)), False, _why_empty(member)
        return
    by_srv = flat and member.ports_differ and not with_ports
    if by_srv or not entries:
        why = IN_SRV_ALONE if by_srv else _why_out_of_reach(member, viewer, flat=flat)
        for located in member.endpoints or [_without_address(member, Endpoint(()))]:
            yield located, False, why
    if not entries:
        return
    if entries == member.balancers:
        for name in member.unresolved:
            yield _without_address(member, Endpoint(()), name), False, f"nothing resolves {name}"
    yield from _chosen_or_not(explained, selection, entries)


def _chosen_or_not(explained: ExplainedDecision, selection: Selection, endpoints: Sequence[LocatedEndpoint]) -> Judged:
    """Yield the endpoints, or the entries, that the selection was made among."""
    chosen, room = set(map(id, selection.endpoints)), explained.room
    for located in endpoints:
        down, votes = (located.down, located.votes) if isinstance(located, Entry) else (False, ())
        if id(located) in chosen:
            yet = ", although most clusters vote against it: no entry is left otherwise" if down else ""
            yield located, True, _why_chosen(explained, selection, located, room, yet)
        elif any(located is spare for spare in explained.decision.spare_entries):
            without = _without_record(explained, located)
            yield located, True, f"spare: it comes after those that are nearer{without}"
        elif down:
            against = ", ".join(vote.cluster for vote in votes if vote.word == UNHEALTHY)
            yield located, False, f"most clusters vote against it: {against}"
        else:
            full = "" if room is None else room.why_not(located)
            yield located, False, full or _why_not(explained, selection, located) or "there are nearer spares"


def _without_address(member: FederatedMember, endpoint: Endpoint, balancer: str = "") -> LocatedEndpoint:
    """Return what a member would contribute if it had an address."""
    location = Location(None, {CLUSTER: member.cluster})
    return Entry(endpoint, location, balancer) if balancer else LocatedEndpoint(endpoint, location)


def _why_empty(member: FederatedMember) -> str:
    if member.exported.compiled.service.alias is not None:
        return f"an ExternalName Service in cluster {member.cluster} has no address to contribute"
    return f"no endpoint of the Service is ready in cluster {member.cluster}"


def _why_out_of_reach(member: FederatedMember, viewer: str, *, flat: bool) -> str:
    """Say why a client in the cluster *viewer* gets nothing of a member that has ready endpoints.

    *flat*: it reaches the pods of that cluster.
    """
    service = member.exported.compiled.service
    if flat or (viewer == member.cluster and service.headless):
        return "its endpoints have no records (--no-endpoints)"
    if viewer == member.cluster:
        return f"the Service has no cluster IP in cluster {member.cluster}"
    lacks = f"nothing resolves {', '.join(service.ingress)}" if service.ingress else "it has no address"
    return f"the client reaches only the load balancer of cluster {member.cluster}, and {lacks}"


def _why_chosen(
    explained: ExplainedDecision, selection: Selection, located: LocatedEndpoint, room: Room | None, yet: str
) -> str:
    """Say why an endpoint in a selection was chosen, and what stands against that (*yet*)."""
    constraint = explained.constraint
    if selection.outcome == SPILLED and room is not None:
        nearer = room.why_passed_on
        why = f"{common(constraint, selection, one=True)}; {nearer}" if selection.narrowed else f"passed on: {nearer}"
    elif selection.outcome == ALL:
        why = why_all(explained, selection)
    elif selection.outcome != NEAREST:
        why = unnarrowed(explained)
    elif isinstance(constraint, NamedDomain):
        why = f"has {constraint.key}={constraint.value}"
    else:
        why = common(constraint, selection, one=True)
    in_vain = f"; {IN_VAIN}" if room is not None and room.in_vain else ""
    return f"{why}{in_vain}{yet}{_without_record(explained, located)}"


def _why_not(explained: ExplainedDecision, selection: Selection, located: LocatedEndpoint) -> str:
    """Say which key ruled the endpoint out; if no key narrowed anything, how it differs in each."""
    constraint = explained.constraint
    if selection.octets is not None and not has_address(selection.octets, located):
        return f"has no {type_name(explained.decision.qtype)} record, and others have"
    if isinstance(constraint, Hinted):
        (step,) = (step for step in selection.steps if step.key in selection.narrowed)
        named, word = names_for(step.key, located), HINTED[step.key]
        if not named:
            return f"has no hint for a {word}"
        if step.value in named and not in_two_clusters(explained.location, located.location):
            return "its hints do not count: others of its address family have none"
        return f"its hints name {word} {', '.join(named)}, not the client's {step.value}"
    if not explained.location.known and selection.outcome == UNMET and not isinstance(constraint, NamedDomain):
        return "the client cannot be located, so it has no labels"
    differing = [step for step in selection.steps if not _matches(explained, step, located)]
    ruling = [step for step in differing if step.key in selection.narrowed][:1]
    texts = [f"{_difference(step, located)}{_policies(explained, step.key)}" for step in ruling or differing]
    before = selection.steps[: selection.steps.index(ruling[0])] if ruling else ()
    skipped = [step for step in before if step.key not in selection.narrowed]
    return "; ".join(texts + _too_few(explained, skipped, located))


def _matches(explained: ExplainedDecision, step: Step, located: LocatedEndpoint) -> bool:
    value = located.location.value(step.key)
    if value is None or value != step.value:
        return False
    # Two nodes of one name may be in two clusters.
    return step.key != HOSTNAME or not in_two_clusters(explained.location, located.location)


def _difference(step: Step, located: LocatedEndpoint) -> str:
    value = located.location.value(step.key)
    if step.value is None:
        return f"the client has no {step.key}"
    if value == step.value:
        return f"{step.key} is {value}, but in another cluster"
    return f"has no {step.key}" if value is None else f"{step.key} is {value}, not {step.value}"


def _policies(explained: ExplainedDecision, key: str) -> str:
    """Name the ServicePolicies that declare a key, "" if it is from another source."""
    declaration = explained.decision.declaration
    if declaration is None or not declaration.policies:
        return ""
    of_key = zip(declaration.policies, declaration.policy_keys, strict=True)
    return f" (policy {', '.join(name for name, named in of_key if named == key)})"


def _too_few(explained: ExplainedDecision, steps: Iterable[Step], located: LocatedEndpoint) -> list[str]:
    """Name the keys of *steps* that the endpoint matches, but too few others do (``topodns.io/min-endpoints``)."""
    constraint = explained.constraint
    if not isinstance(constraint, FirstMatch | Narrowing):
        return []
    return [
        f"{step.key} is the client's, but {step.matched} with it are too few (min-endpoints is {constraint.at_least})"
        for step in steps
        if _matches(explained, step, located)
    ]


def _without_record(explained: ExplainedDecision, located: LocatedEndpoint) -> str:
    """Return what a chosen endpoint lacks to have a record in the answer, "" if it has one."""
    query_name, qtype, endpoint = explained.query_name, explained.decision.qtype, located.endpoint
    if qtype in ADDRESS_SIZES and ADDRESS_SIZES[qtype] not in map(len, endpoint.addresses):
        return f", but has no {type_name(qtype)} record"
    if query_name is None or query_name.name_type != names.PORT:
        return ""
    has_port = any((port.name, port.protocol) == (query_name.port, query_name.protocol) for port in endpoint.ports)
    return "" if has_port else f", but has no port {query_name.port}"
