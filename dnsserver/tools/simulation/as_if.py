# SPDX-License-Identifier: Apache-2.0

"""A cluster as it would be with other annotations, or without what is ready in some topology domains.

Both change the compiled Services alone, so that a server's snapshot and one that was just read serve alike. Policies,
fields and hints count as they do in the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from locator.endpoints import compact
from locator.model import EndpointSlice, Location, Service
from locator.state.joining import joined_endpoints
from locator.state.snapshot import CompiledService, ExportedService, Snapshot
from locator.topology.annotations import min_endpoints
from locator.topology.constraints import (
    SOURCE,
    Declaration,
    deciding,
    declarations_of,
    federated_constraint,
    in_order,
)
from locator.topology.hints import hinted
from locator.topology.selection import FirstMatch, LocatedEndpoint, Narrowing

S = TypeVar("S", bound=CompiledService)

Annotations = Mapping[str, str | None]  # by key; None takes an annotation away


class Changes(Struct, frozen=True):
    """What differs from the cluster: annotations of Services by ``namespace/name``, and failed topology domains.

    Nothing in a failed domain, a label key with a value, is ready. ``honor_kubernetes``: hints and
    ``trafficDistribution`` are constraints.
    """

    annotations: Mapping[str, Annotations] = {}
    failed: Sequence[tuple[str, str]] = ()
    honor_kubernetes: bool = True

    def fails(self, location: Location) -> bool:
        """Whether a location is in a failed domain."""
        return any(location.value(key) == value for key, value in self.failed)


def snapshot_as_if(snapshot: Snapshot, changes: Changes, *, own: bool = True) -> Snapshot:
    """Return the snapshot of one cluster, changed; *own*: it is the cluster whose Services have the annotations.

    Services in which nothing differs stay the same objects.
    """
    annotations = changes.annotations if own else {}
    services = {
        key: service_as_if(service, changes, annotations.get(key)) for key, service in snapshot.services.items()
    }
    exported = {
        key: _exported_as_if(service, changes, annotations.get(key)) for key, service in snapshot.exported.items()
    }
    return replace(snapshot, services=services, exported=exported)


def imports_as_if(snapshot: Snapshot, changes: Changes) -> Snapshot:
    """Return a snapshot of all clusters in which nothing is ready in the failed domains for multi-cluster names."""
    imported = {key: _without_failed(service, changes) for key, service in snapshot.imported.items()}
    return replace(snapshot, imported=imported)


def service_as_if(
    compiled: CompiledService, changes: Changes, annotations: Annotations | None = None
) -> CompiledService:
    """Return a Service with other *annotations*, without its endpoints in failed domains; itself if nothing differs."""
    left = _without_failed(compiled, changes)
    if annotations is None and left is compiled:
        return compiled
    service = _annotated(left.service, annotations or {})
    return replace(left, service=service, declarations=_declarations(left, service, changes.honor_kubernetes))


def _annotated(service: Service, annotations: Annotations) -> Service:
    merged: dict[str, str | None] = {**service.annotations, **annotations}
    return replace(service, annotations={key: text for key, text in merged.items() if text is not None})


def _without_failed(compiled: S, changes: Changes) -> S:
    if not any(map(changes.fails, set(compiled.locations))):
        return compiled
    left = [located for located in compiled.endpoints if not changes.fails(located.location)]
    gone = {address for located in compiled.endpoints if changes.fails(located.location) for address in _of(located)}
    return replace(
        compiled,
        slices=tuple([_without(part, gone) for part in compiled.slices]) if left else (),
        locations=tuple([located.location for located in left]),
        empty=not left,
        _located={},
    )


def _of(located: LocatedEndpoint) -> Iterator[tuple[bytes, str | None]]:
    """Yield the addresses of an endpoint, each with its cluster: two clusters may use one address."""
    for address in located.endpoint.addresses:
        yield address, located.endpoint.cluster


def _without(part: EndpointSlice, gone: Set[tuple[bytes, str | None]]) -> EndpointSlice:
    """Return a slice without the endpoints that have one of some addresses."""
    left = [
        endpoint
        for endpoint in part.endpoints
        if not any((address, endpoint.cluster) in gone for address in endpoint.addresses)
    ]
    return replace(part, endpoints=compact(left))


def _declarations(compiled: CompiledService, service: Service, honor_kubernetes: bool) -> tuple[Declaration, ...]:
    """Return what all sources declare for *service*: what other objects declared for *compiled*, and itself.

    The labels that ServicePolicies select by are not known any more, but annotations do not change which ones do.
    """
    at_least = min_endpoints(service) or 1
    elsewhere = [_at_least(one, at_least) for one in compiled.declarations if SOURCE[one.source].in_another_object]
    others = declarations_of(service, (), hinted(joined_endpoints(compiled.slices)), honor_kubernetes=honor_kubernetes)
    return in_order(service, (*elsewhere, *others))


def _at_least(declaration: Declaration, number: int) -> Declaration:
    constraint = declaration.constraint
    if not isinstance(constraint, FirstMatch | Narrowing) or constraint.at_least == number:
        return declaration
    return replace(declaration, constraint=replace(constraint, at_least=number))


def _exported_as_if(exported: ExportedService, changes: Changes, annotations: Annotations | None) -> ExportedService:
    compiled = service_as_if(exported.compiled, changes, annotations)
    if compiled is exported.compiled:
        return exported
    declared = [one for one in (exported.constraint,) if one is not None and SOURCE[one.source].in_another_object]
    declared += [one for one in (federated_constraint(compiled.service, ()),) if one is not None]
    return ExportedService(compiled, deciding(in_order(compiled.service, declared)))
