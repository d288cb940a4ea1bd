# SPDX-License-Identifier: Apache-2.0

"""Says of a federated name which constraint counts, and why each entry was chosen or not.

It reads the Decision that the answer was made from; it never chooses itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnsserver.message.records import AddressData
from dnsserver.tools.explain.candidates import Candidate, order, why_chosen, why_not, without_record
from dnsserver.tools.explain.reasons import Case
from dnsserver.tools.explain.sources import ExplainedDeclaration
from locator.health.votes import UNHEALTHY
from locator.model import CLUSTER, Endpoint, Location
from locator.state.snapshot import Entry, FederatedMember, FederatedService
from locator.topology.selection import ANY, LocatedEndpoint

SAME_FOR_ALL = "the name is the same for all clients"
ENDPOINT, CLUSTER_IP, BALANCER = "endpoint", "cluster IP", "load balancer"


def kind_of(located: LocatedEndpoint) -> str:
    """Return what an entry is."""
    if not isinstance(located, Entry):
        return ENDPOINT
    return BALANCER if located.balancer else CLUSTER_IP


def federated_sources(case: Case, found: FederatedService) -> list[ExplainedDeclaration]:
    """Return what the Service of each cluster declares, and the default, and which of them decides."""
    viewer, explained = found.viewer(case.location), list[ExplainedDeclaration]()
    if case.decision.declaration is None:
        declared = [(member.exported.constraint, member.cluster) for member in found.by_precedence(viewer)]
        return [ExplainedDeclaration(one, False, SAME_FOR_ALL, cluster) for one, cluster in declared if one]
    decided = False
    for member in found.by_precedence(viewer):
        declaration = member.exported.constraint
        if declaration is None:
            continue
        decides = declaration.valid and not decided
        why = (
            "the Service in the client's cluster"
            if member.cluster == viewer
            else "the oldest that declares a valid one"
        )
        if not decides:
            why = "that of another cluster counts" if declaration.valid else f"invalid: {declaration.error}"
        decided |= decides
        explained.append(ExplainedDeclaration(declaration, decides, why, member.cluster))
    why = "a Service declares one" if decided else "no Service declares a valid one"
    return [*explained, ExplainedDeclaration(found.default, not decided, why)]


def federated_candidates(case: Case, found: FederatedService) -> list[Candidate]:
    """Return the entries that the client can get: the chosen ones, the spares, the others; then what it cannot get."""
    constraint, viewer = case.constraint, found.viewer(case.location)
    keys = [key for key in (() if constraint is None else constraint.keys) if key != ANY]
    rows = [
        Candidate(
            located,
            {key: located.location.value(key) for key in keys},
            chosen,
            why,
            located.votes if isinstance(located, Entry) else (),
        )
        for member in found.members
        for located, chosen, why in _judged(case, found, member, viewer)
    ]
    spares = {id(located): number for number, located in enumerate(case.decision.spare_entries)}
    return sorted(
        rows,
        key=lambda row: (
            not row.chosen,
            spares.get(id(row.located), -1),
            row.located.location.cluster,
            *order(row.located),
        ),
    )  # fmt: skip


def _judged(
    case: Case, found: FederatedService, member: FederatedMember, viewer: str
) -> Iterator[tuple[LocatedEndpoint, bool, str]]:
    """Yield what a client can get of a member, and whether and why it gets it; if nothing, its endpoints, and why."""
    decision, selection = case.decision, case.decision.selection
    flat = (viewer, member.cluster) in found.flat
    entries = member.entries(viewer, flat=flat)
    if selection is None:
        records = (*decision.answers, *decision.additional_records)
        named = {record.data.packed for record in records if isinstance(record.data, AddressData)}
        for located in member.reachable(found.flat):
            own = not named.isdisjoint(located.endpoint.addresses)
            yield located, own, "the name is its own" if own else "the name is another entry's"
        return
    if member.exported.compiled.empty:
        yield _without_address(member, Endpoint((), ready=False)), False, _why_empty(member)
        return
    if not entries:
        for located in member.endpoints or [_without_address(member, Endpoint(()))]:
            yield located, False, _why_out_of_reach(member, viewer, flat=flat)
        return
    if entries == member.balancers:
        for name in member.unresolved:
            yield _without_address(member, Endpoint(()), name), False, f"nothing resolves {name}"
    chosen = set(map(id, selection.endpoints))
    for located in entries:
        if id(located) in chosen:
            down = ", although most clusters vote against it: no entry is left otherwise" if _is_down(located) else ""
            yield located, True, f"{why_chosen(case, selection)}{down}{without_record(case, located)}"
        elif any(located is spare for spare in decision.spare_entries):
            yield located, True, f"spare: it comes after those that are nearer{without_record(case, located)}"
        elif _is_down(located):
            votes = located.votes if isinstance(located, Entry) else ()
            against = ", ".join(vote.cluster for vote in votes if vote.word == UNHEALTHY)
            yield located, False, f"most clusters vote against it: {against}"
        else:
            yield located, False, why_not(case, selection, located) or "there are nearer spares"


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


def _is_down(located: LocatedEndpoint) -> bool:
    return isinstance(located, Entry) and located.down
