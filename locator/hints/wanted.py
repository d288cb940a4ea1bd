"""From the endpoints of a Service and its constraint to the hints that make kube-proxy choose as topodns does.

kube-proxy's rule (``topologyModeFromHints`` in its source): if every ready endpoint has a hint for a zone, and one has
a hint for the zone of the node, then the node uses the endpoints with a hint for its zone; otherwise all endpoints.
It judges the slices of each address family, and the endpoints of each port, on their own.

Hints name zones, so a constraint is asked once for each zone, as a client with the labels that all nodes of the zone
share. A zone that gets nothing is named by no hint: kube-proxy then uses all endpoints there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from locator.hints.objects import HintedSlice
from locator.model import Endpoint, Hints, Location, Service, ServicePolicy
from locator.state.joining import EndpointIdentities
from locator.topology.constraints import declarations_of, heard
from locator.topology.selection import Constraint, LocatedEndpoint, select

NOWHERE = "none.topodns.io"  # no node has this zone; an endpoint without a hint would make kube-proxy ignore all others
MAX_ZONES = 8  # in the hints of one endpoint: the API server refuses more

Locate = Callable[[Endpoint], Location]


def constraint_of(service: Service, policies: Sequence[ServicePolicy]) -> Constraint | None:
    """Return the valid constraint that a Service or a ServicePolicy declares, None without one.

    *policies* are all of the namespace. As in DNS, they do not apply to a Service with ``publishNotReadyAddresses``.
    What Kubernetes makes hints from, such as ``trafficDistribution``, does not count: these hints replace its own.
    """
    sources = declarations_of(service, () if service.publishes_unready else policies, honor_kubernetes=False)
    declaration = heard(sources)
    return declaration.constraint if declaration is not None and declaration.valid else None


def wanted_hints(
    slices: Sequence[HintedSlice], constraint: Constraint | None, zones: Mapping[str, Location], locate: Locate
) -> list[tuple[Hints | None, ...]]:
    """Return the hints of every endpoint, in the order of *slices*, which are all slices of one Service.

    *zones* are the locations of the cluster's zones. Without a constraint, each endpoint is for its own zone. No
    endpoint has hints if one of them, ready or not, has no zone, or if one would need hints for too many zones.
    """
    if any(not endpoint.zone for one in slices for endpoint in one.endpoints):
        return [(None,) * len(one.endpoints) for one in slices]
    if constraint is None:
        return [
            tuple(Hints(zones=(endpoint.zone,)) if endpoint.ready else None for endpoint in one.endpoints)
            for one in slices
        ]
    return _hints_by_constraint(slices, constraint, zones, locate)


def _hints_by_constraint(
    slices: Sequence[HintedSlice], constraint: Constraint, zones: Mapping[str, Location], locate: Locate
) -> list[tuple[Hints | None, ...]]:
    located: dict[object, LocatedEndpoint] = {}
    identities = EndpointIdentities()
    places = [[_place(endpoint.endpoint, identities, located, locate) for endpoint in one.endpoints] for one in slices]
    endpoints = tuple(located.values())
    served: dict[int, list[str]] = {id(endpoint): [] for endpoint in endpoints}  # the zones that get it
    for client, names in _alike(zones, constraint.terms):
        for chosen in select(constraint, client, endpoints).endpoints:
            served[id(chosen)] += names
    if any(len(names) > MAX_ZONES for names in served.values()):
        return [(None,) * len(one.endpoints) for one in slices]
    hints = {key: Hints(zones=tuple(sorted(names)) or (NOWHERE,)) for key, names in served.items()}
    return [tuple(None if place is None else hints[id(place)] for place in row) for row in places]


def _place(
    endpoint: Endpoint | None, identities: EndpointIdentities, located: dict[object, LocatedEndpoint], locate: Locate
) -> LocatedEndpoint | None:
    """Return an endpoint with its location, one for all slices that it is in; None if it is not ready."""
    if endpoint is None or not endpoint.ready:
        return None
    key = identities.of(endpoint)
    place = located.get(key)
    if place is None:
        place = located[key] = LocatedEndpoint(endpoint, locate(endpoint))
    return place


def _alike(zones: Mapping[str, Location], terms: Sequence[str]) -> Iterable[tuple[Location, list[str]]]:
    """Yield the zones in groups that a constraint with these *terms* cannot tell apart: one location, all names."""
    groups: dict[tuple[str | None, ...], tuple[Location, list[str]]] = {}
    for name, location in zones.items():
        values = tuple(location.value(term) for term in terms)
        groups.setdefault(values, (location, []))[1].append(name)
    return groups.values()
