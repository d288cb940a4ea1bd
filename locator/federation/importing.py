# SPDX-License-Identifier: Apache-2.0

"""Makes multi-cluster Services of ServiceImports and the slices that were imported with them (KEP-1645)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from locator.model import Endpoint, Location, canonical_labels, in_cluster
from locator.state.joining import joined_endpoints
from locator.state.snapshot import CompiledService, ImportedObjects, ImportedService
from locator.topology.constraints import HINTS, NOT_HEADLESS, Declaration, declarations_of
from locator.topology.selection import LocatedEndpoint

Nodes = Mapping[str, Mapping[str, Location]]  # by cluster and name


def imported(
    objects: ImportedObjects,
    nodes: Nodes,
    *,
    namesake: CompiledService | None = None,
    before: ImportedService | None = None,
    honor_kubernetes: bool = True,
) -> ImportedService:
    """Return the multi-cluster Service of a ServiceImport.

    *namesake* is the Service of its name in the same cluster, whose constraint counts if the ServiceImport has none;
    the hints of its own slices do not. *nodes* are those of all known clusters. Without *honor_kubernetes*,
    ``trafficDistribution`` does not count. Returns *before* itself if nothing differs.
    """
    service = objects.service_import.as_service()
    declared: tuple[Declaration, ...] = declarations_of(service, honor_kubernetes=honor_kubernetes)
    if namesake is not None:
        of_namesake = (_taken_over(declaration, headless=service.headless) for declaration in namesake.declarations)
        declared = (*declared, *(declaration for declaration in of_namesake if declaration.source != HINTS))
    endpoints = joined_endpoints(objects.slices)
    locations = tuple(_location(endpoint, nodes) for endpoint in endpoints)
    if before is not None and before.service == service and before.declarations == declared:
        same = list(map(_facts, before.locations)) == list(map(_facts, locations))
        if same and joined_endpoints(before.slices) == endpoints:
            return before
    return ImportedService(service, declared, objects.slices, locations, not endpoints)


def imported_unready(objects: ImportedObjects, nodes: Nodes) -> tuple[LocatedEndpoint, ...]:
    """Return the endpoints that are not ready; the arguments are those of ``imported``."""
    endpoints = joined_endpoints(objects.slices, ready=False)
    return tuple(LocatedEndpoint(endpoint, _location(endpoint, nodes)) for endpoint in endpoints)


def is_on(objects: ImportedObjects, nodes: set[str]) -> bool:
    """Whether an endpoint of a ServiceImport is on one of some nodes, in whichever cluster."""
    return any(not nodes.isdisjoint(part.endpoints.nodes) for part in objects.slices)


def _taken_over(declaration: Declaration, *, headless: bool) -> Declaration:
    """Return what a Service declares, for the multi-cluster Service of its name: only that may be headless."""
    if not headless:
        return replace(declaration, without_effect=NOT_HEADLESS)
    return replace(declaration, without_effect=None) if declaration.without_effect == NOT_HEADLESS else declaration


def _location(endpoint: Endpoint, nodes: Nodes) -> Location:
    """Return where an endpoint is: on its node if that is known, else where its slice says."""
    cluster = endpoint.cluster or ""
    location = nodes.get(cluster, {}).get(endpoint.node or "")
    if location is not None:
        return location
    labels = canonical_labels(endpoint.slice_labels, node=endpoint.node)
    return Location(endpoint.node, in_cluster(labels, cluster) if cluster else labels)


def _facts(location: Location) -> tuple[str | None, dict[str, str]]:
    return location.node, location.labels
