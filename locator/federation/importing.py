"""Makes multi-cluster Services of ServiceImports and the slices that were imported with them (KEP-1645)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from locator.model import Endpoint, Location, Service, canonical_labels, in_cluster
from locator.state.joining import joined_endpoints
from locator.state.snapshot import CompiledService, ImportedObjects, ImportedService
from locator.topology.constraints import NOT_HEADLESS, Declaration, declarations_of

Nodes = Mapping[str, Mapping[str, Location]]  # by cluster and name


def imported(
    objects: ImportedObjects,
    own: str,
    nodes: Nodes,
    namesake: CompiledService | None,
    before: ImportedService | None,
    *,
    honor_kubernetes: bool,
) -> ImportedService:
    """Return the multi-cluster Service of a ServiceImport in the cluster *own*.

    *namesake* is the Service of its name there, whose constraint counts if the ServiceImport has none. *nodes* are
    those of all known clusters. Without *honor_kubernetes*, ``trafficDistribution`` does not count. Returns *before*
    itself if nothing differs.
    """
    source = objects.service_import
    service = Service(
        namespace=source.namespace,
        name=source.name,
        headless=source.headless,
        cluster_ips=source.cluster_ips,
        ports=source.ports,
        traffic_distribution=source.traffic_distribution,
        annotations=source.annotations,
    )
    declared: tuple[Declaration, ...] = declarations_of(service, honor_kubernetes=honor_kubernetes)
    if namesake is not None:
        declared = (*declared, *map(_for_endpoints, namesake.declarations))
    endpoints = joined_endpoints(objects.slices)
    locations = tuple(_location(endpoint, own, nodes) for endpoint in endpoints)
    if before is not None and before.service == service and before.declarations == declared:
        same = list(map(_facts, before.locations)) == list(map(_facts, locations))
        if same and joined_endpoints(before.slices) == endpoints:
            return before
    return ImportedService(service, declared, objects.slices, locations, not endpoints)


def _for_endpoints(declaration: Declaration) -> Declaration:
    """Return what a Service declares, also if its own name has a cluster IP: the ServiceImport may be headless."""
    return replace(declaration, without_effect=None) if declaration.without_effect == NOT_HEADLESS else declaration


def _location(endpoint: Endpoint, own: str, nodes: Nodes) -> Location:
    """Return where an endpoint is: on its node if that is known, else where its slice says."""
    cluster = own if endpoint.cluster is None else endpoint.cluster
    location = nodes.get(cluster, {}).get(endpoint.node or "")
    if location is not None:
        return location
    labels = canonical_labels(endpoint.slice_labels, node=endpoint.node)
    return Location(endpoint.node, in_cluster(labels, cluster) if cluster else labels)


def _facts(location: Location) -> tuple[str | None, dict[str, str]]:
    return location.node, location.labels
