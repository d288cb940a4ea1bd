# SPDX-License-Identifier: Apache-2.0

"""From the endpoints of a Service and its constraint to the hints that make kube-proxy choose as topodns does.

kube-proxy's rule (``topologyModeFromHints`` in its source): if every ready endpoint has a hint for a node, and one has
a hint for kube-proxy's own, then it uses the endpoints with such a hint; otherwise it does the same with hints for
zones; otherwise it uses all endpoints. It judges the slices of each address family, and the endpoints of each port, on
their own. Before Kubernetes 1.34, it does not know hints for nodes.

A constraint is asked once for each zone, as a client with the labels that all nodes of the zone share. A zone that gets
nothing is named by no hint: kube-proxy then uses all endpoints there. So is a zone that gets every endpoint, one
without a zone among them. An endpoint that no zone gets has a hint for a zone that does not exist.
Hints for nodes say no more than a host name that comes first: each endpoint is for its own node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from locator.hints.slices import HintedEndpoint, HintedSlice
from locator.labels import is_dns_subdomain, valid_label_value
from locator.model import UNKNOWN_LOCATION, ZONE, Endpoint, Hints, Location, Service, ServicePolicy
from locator.state.joining import EndpointIdentities
from locator.topology.constraints import deciding, declarations_of
from locator.topology.hints import beyond_own_node
from locator.topology.selection import Constraint, FirstMatch, LocatedEndpoint, Narrowing, select

# No node has this zone or name; an endpoint without a hint would make kube-proxy ignore those of all others.
NOWHERE = "none.topodns.io"
MAX_ZONES = 8  # in the hints of one endpoint: the API server refuses more

Locate = Callable[[Endpoint], Location]


def constraint_of(service: Service, policies: Sequence[ServicePolicy]) -> Constraint | None:
    """Return the valid constraint that a Service or a ServicePolicy declares, None without one.

    *policies* are all of the namespace. As in DNS, they do not apply to a Service with ``publishNotReadyAddresses``.
    What Kubernetes makes hints from, such as ``trafficDistribution``, does not count: these hints replace its own.
    """
    sources = declarations_of(service, () if service.publishes_unready else policies, honor_kubernetes=False)
    declaration = deciding(sources)
    return declaration.constraint if declaration is not None and declaration.valid else None


def wanted_hints(
    slices: Sequence[HintedSlice], constraint: Constraint | None, zones: Mapping[str, Location], locate: Locate
) -> list[tuple[Hints | None, ...]]:
    """Return the hints of every endpoint, in the order of *slices*, which are all slices of one Service.

    *zones* are the locations of the cluster's zones. Without a constraint, each endpoint is for its own zone. An
    endpoint that is not ready has no hints, and decides nothing. No endpoint has hints if no ready one has a zone, or
    if one would need hints for too many zones.
    """
    slices = _of_the_living(slices)
    own = [[_own_zone(endpoint, locate) for endpoint in one.endpoints] for one in slices]
    if not any(zone for row in own for zone in row):
        return [(None,) * len(one.endpoints) for one in slices]
    if constraint is None:
        return [tuple(None if zone is None else _hints_for([zone] if zone else []) for zone in row) for row in own]
    return _hints_by_constraint(slices, own, constraint, zones, locate)


def _of_the_living(slices: Sequence[HintedSlice]) -> Sequence[HintedSlice]:
    """Return the slices, where the living endpoint with its address stands for each one that terminates.

    Its pod is dead, and DNS gives the address to those that the living one is for (``joining.living_endpoints``).
    """
    addressed = [each for one in slices for each in one.endpoints if each.address is not None]
    living = {each.address: each for each in reversed(addressed) if not each.terminating}
    if not any(each.terminating for each in addressed):
        return slices
    return [replace(one, endpoints=tuple([_heir(each, living) for each in one.endpoints])) for one in slices]


def _heir(endpoint: HintedEndpoint, living: Mapping[bytes | None, HintedEndpoint]) -> HintedEndpoint:
    return living.get(endpoint.address, endpoint) if endpoint.terminating and endpoint.ready else endpoint


def _own_zone(endpoint: HintedEndpoint, locate: Locate) -> str | None:
    """Return the zone that the slice states, else that of the Node: a slice may be older than the Node's label.

    It is empty if neither states one that a hint can name, and None for an endpoint that is not ready.
    """
    if endpoint.endpoint is None or not endpoint.ready:
        return None
    zone = endpoint.zone or locate(endpoint.endpoint).value(ZONE) or ""
    return zone if valid_label_value(zone) else ""


def _hints_for(zones: Iterable[str], nodes: tuple[str, ...] = ()) -> Hints:
    return Hints(nodes, tuple(sorted(zones)) or (NOWHERE,))


def _hints_by_constraint(
    slices: Sequence[HintedSlice],
    own: Sequence[Sequence[str | None]],
    constraint: Constraint,
    zones: Mapping[str, Location],
    locate: Locate,
) -> list[tuple[Hints | None, ...]]:
    """Return the hints by a constraint; *own* are the own zones of the endpoints."""
    located: dict[object, LocatedEndpoint] = {}
    identities = EndpointIdentities()
    entries = [[_entry(endpoint.endpoint, identities, located, locate) for endpoint in one.endpoints] for one in slices]
    of_family: dict[int, dict[int, LocatedEndpoint]] = {}  # by octets in an address, and by id
    zoneless: set[int] = set()  # likewise by id
    for entry, zone in zip(chain.from_iterable(entries), chain.from_iterable(own), strict=True):
        if entry is not None:
            of_family.setdefault(entry[1], {})[id(entry[0])] = entry[0]
            zoneless |= set() if zone else {id(entry[0])}
    every, farther = tuple(located.values()), beyond_own_node(constraint)
    nodes = {} if farther is None else _own_nodes(farther, every, zones)
    constraint = farther or constraint
    served: dict[tuple[int, int], list[str]] = {}  # the zones that get an endpoint, by its id and family
    for client, names in _alike(zones, constraint.client_keys):
        selection = select(constraint, client, every)
        for family, endpoints in of_family.items():
            chosen = [endpoint for endpoint in selection.endpoints if id(endpoint) in endpoints]
            if not chosen and constraint.soft:  # kube-proxy judges each family by itself, and DNS chooses again
                chosen = [*select(constraint, client, tuple(endpoints.values())).endpoints]
            if len(chosen) == len(endpoints) and not zoneless.isdisjoint(endpoints):
                continue  # left to kube-proxy's rule for all, so that no zone has to name what is in none
            for endpoint in chosen:
                served.setdefault((id(endpoint), family), []).extend(names)
    if any(len(names) > MAX_ZONES for names in served.values()):
        return [(None,) * len(one.endpoints) for one in slices]
    return [
        tuple(
            None if entry is None else _hints_for(served.get((id(entry[0]), entry[1]), ()), nodes.get(id(entry[0]), ()))
            for entry in row
        )
        for row in entries
    ]


def _own_nodes(
    farther: FirstMatch | Narrowing, endpoints: Sequence[LocatedEndpoint], zones: Mapping[str, Location]
) -> dict[int, tuple[str, ...]]:
    """Return the node that each endpoint is for, by the endpoint's id: its own; empty if no node has enough of them.

    The clients of a node with too few go *farther*, unless a hard constraint finds too few there, too: so such
    endpoints are for no node, as one is that is on none.
    """
    on_node: dict[str, list[LocatedEndpoint]] = {}
    for endpoint in endpoints:
        on_node.setdefault(endpoint.location.node or "", []).append(endpoint)
    few = {
        node: zones.get(own[0].location.value(ZONE) or "", UNKNOWN_LOCATION)
        for node, own in on_node.items()
        if len(own) < farther.at_least
    }
    left: set[str] = set()
    for client, nodes in _alike(few, farther.client_keys):
        if farther.soft or len(farther.select(client, endpoints).endpoints) >= farther.at_least:
            left.update(nodes)
    staying = {node for node in on_node.keys() - left if is_dns_subdomain(node)}
    return {
        id(endpoint): (node if node in staying else NOWHERE,)
        for node, own in on_node.items()
        for endpoint in own
        if staying
    }


def _entry(
    endpoint: Endpoint | None, identities: EndpointIdentities, located: dict[object, LocatedEndpoint], locate: Locate
) -> tuple[LocatedEndpoint, int] | None:
    """Return a ready endpoint with its location, one for all slices that it is in, and the octets in its addresses."""
    if endpoint is None or not endpoint.ready:
        return None
    key = identities.of(endpoint)
    if key not in located:
        located[key] = LocatedEndpoint(endpoint, locate(endpoint))
    return located[key], len(endpoint.addresses[0])


def _alike(places: Mapping[str, Location], client_keys: Sequence[str]) -> Iterable[tuple[Location, list[str]]]:
    """Yield zones or nodes in groups that a constraint on *client_keys* cannot tell apart: one location, all names."""
    groups: dict[tuple[str | None, ...], tuple[Location, list[str]]] = {}
    for name, location in places.items():
        values = tuple(location.value(key) for key in client_keys)
        groups.setdefault(values, (location, []))[1].append(name)
    return groups.values()
