# SPDX-License-Identifier: Apache-2.0

"""Makes a federated Service of the Services of one name that several clusters export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from locator.ip import is_address, parse_address
from locator.model import CLUSTER, Endpoint, Location, Port
from locator.places.book import shared_location
from locator.state.snapshot import CompiledService, Entry, ExportedService, FederatedMember, FederatedService, Vote
from locator.topology.constraints import ZONE_DEFAULT, Declaration
from locator.topology.selection import FirstMatch


class ResolvedHost(Struct, frozen=True):
    """The addresses of a host name, and the TTL in seconds of those of a family, by the size of its addresses."""

    addresses: tuple[bytes, ...]
    ttls: dict[int, int]


_UNRESOLVED = ResolvedHost((), {})

Verdict = tuple[bool, tuple[Vote, ...]]  # whether most clusters vote against an address, and the votes


class Joining(Struct, frozen=True):
    """What federated Services are made with, besides those of the clusters.

    ``flat`` has the pairs of clusters whose pods reach each other, ``default`` the constraint where no Service declares
    one. ``hosts`` has the host names of load balancers that are resolved; without ``resolves``, none ever are.
    """

    flat: frozenset[tuple[str, str]]
    default: Declaration
    hosts: Mapping[str, ResolvedHost] = {}
    resolves: bool = False


def flat_pairs(networks: Iterable[frozenset[str]]) -> frozenset[tuple[str, str]]:
    """Return the pairs of clusters in ``--flat-network``, in both orders."""
    return frozenset((one, other) for names in networks for one in names for other in names if one != other)


def default_constraint(keys: tuple[str, ...]) -> Declaration:
    """Return the constraint by ``--federation-topology-keys``."""
    return Declaration(ZONE_DEFAULT, FirstMatch(keys))


def federated_service(
    key: str,
    exported: Mapping[str, ExportedService],
    joining: Joining,
    verdict: Callable[[str], Verdict],
    before: FederatedService | None,
) -> FederatedService | None:
    """Return the federated Service of the name *key*, which some clusters export; None if there is no entry in any.

    *exported* has the Service of each cluster by the cluster's name. *verdict* says what clusters vote about an address
    or host name of its load balancers. Returns *before* itself if nothing differs.
    """
    known = {} if before is None else {member.cluster: member for member in before.members}
    members = tuple(
        _member(cluster, service, joining, verdict, known.get(cluster)) for cluster, service in sorted(exported.items())
    )
    if not any(member.reachable(joining.flat) for member in members):
        return None
    if before is not None and len(before.members) == len(members):
        same = all(one is other for one, other in zip(before.members, members, strict=True))
        if same and before.flat == joining.flat and before.default == joining.default:
            return before
    namespace, _, name = key.partition("/")
    return FederatedService(namespace, name, members, joining.flat, joining.default)


def _member(
    cluster: str,
    exported: ExportedService,
    joining: Joining,
    verdict: Callable[[str], Verdict],
    before: FederatedMember | None,
) -> FederatedMember:
    compiled = exported.compiled
    service, virtual = compiled.service, None
    balancers: list[Entry] = []
    if not compiled.empty:  # a cluster without a ready endpoint contributes nothing
        location = _location(cluster, compiled.locations)
        if service.virtual and service.cluster_ips:
            virtual = Entry(Endpoint(service.cluster_ips, service.ports), location)
        for text in service.ingress:
            host = _resolved(text, joining.hosts)
            if host.addresses:
                endpoint, (down, votes) = Endpoint(host.addresses, service.ports), verdict(text)
                balancers.append(Entry(endpoint, location, text, host.ttls, down, votes))
    if before is not None and before.exported is exported:
        ports_differ = before.ports_differ
    else:
        ports_differ = any(cluster == one for one, _ in joining.flat) and bool(differing_ports(compiled))
    after = FederatedMember(cluster, exported, virtual, tuple(balancers), ports_differ)
    return before if before is not None and _same(before, after) else after


def differing_ports(compiled: CompiledService) -> dict[Port, frozenset[int]]:
    """Return the ports of a Service with a cluster IP at whose number not all of its ready endpoints listen.

    Each has the numbers at which they listen in its place; none if some do not have the port at all. An endpoint
    without any port says nothing about them.
    """
    service, found = compiled.service, dict[Port, frozenset[int]]()
    if not service.virtual:
        return found
    lists = {id(located.endpoint.ports): located.endpoint.ports for located in compiled.endpoints}  # slices share them
    for targets in filter(None, lists.values()):
        for port in service.ports:
            numbers = {one.number for one in targets if (one.name, one.protocol) == (port.name, port.protocol)}
            if numbers != {port.number}:
                found[port] = found.get(port, frozenset()) | numbers - {port.number}
    return found


def is_host_name(ingress: str) -> bool:
    """Whether an item of ``Service.ingress`` has to be resolved."""
    return not is_address(ingress)


def _resolved(ingress: str, hosts: Mapping[str, ResolvedHost]) -> ResolvedHost:
    """Return the addresses of an item of ``Service.ingress``."""
    return hosts.get(ingress, _UNRESOLVED) if is_host_name(ingress) else ResolvedHost((parse_address(ingress),), {})


def _location(cluster: str, locations: Sequence[Location]) -> Location:
    """Return the labels that all endpoints share, the name of their cluster among them."""
    shared = {} if not locations else shared_location(locations).labels
    return Location(None, {**shared, CLUSTER: cluster})


def _same(before: FederatedMember, after: FederatedMember) -> bool:
    """Whether two members give the same answers, and the same explanations but for the age of votes."""
    return before.exported is after.exported and _facts(before) == _facts(after)


def _facts(member: FederatedMember) -> list[object]:
    entries = (*(() if member.virtual is None else (member.virtual,)), *member.balancers)
    return [
        (entry.endpoint, entry.location.labels, entry.balancer, entry.ttls, entry.down, entry.votes)
        for entry in entries
    ]
