# SPDX-License-Identifier: Apache-2.0

"""A cluster as it would be with other annotations, or without what is ready in some topology domains.

Both change the compiled Services alone, so that a server's snapshot and one that was just read serve alike. Policies,
fields and hints count as they do in the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from locator.endpoints import compact
from locator.model import Endpoint, Location, Service
from locator.printable import shell_words
from locator.state.balancing import Balances, Plans
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
from locator.topology.selection import Narrowing

T = TypeVar("T")
S = TypeVar("S", bound=CompiledService)

PlansOf = Callable[[CompiledService], tuple[Plans, Balances]]
Annotations = Mapping[str, str | None]  # by key; None takes an annotation away


class Changes(Struct, frozen=True):
    """What differs from the cluster: annotations of Services by ``namespace/name``, and failed topology domains.

    Nothing in a failed domain, a label key with a value, is ready. ``honor_kubernetes``: hints and
    ``trafficDistribution`` are constraints.
    """

    annotations: Mapping[str, Annotations] = {}
    failed: Sequence[tuple[str, str]] = ()
    honor_kubernetes: bool = True

    def also(self, services: Iterable[str], annotations: Annotations) -> Changes:
        """Return the changes if some *services* have *annotations* beside what they have, and no other is changed."""
        return self.instead({key: {**self.annotations.get(key, {}), **annotations} for key in services})

    def instead(self, annotations: Mapping[str, Annotations]) -> Changes:
        """Return the changes with these *annotations* instead of any others."""
        return replace(self, annotations=annotations)

    def fails(self, location: Location) -> bool:
        """Whether a location is in a failed domain."""
        return any(location.value(key) == value for key, value in self.failed)


def snapshot_as_if(snapshot: Snapshot, changes: Changes, plans_of: PlansOf) -> Snapshot:
    """Return the snapshot of one cluster, changed. Services in which nothing differs stay the same objects.

    *plans_of* returns the plans of a Service that differs, and what becomes of its clients.
    """
    services, balances = {**_changed(snapshot.services, service_as_if, changes)}, {**snapshot.balances}
    for key in _concerned(services, changes):
        if services[key] is not snapshot.services[key]:
            plans, balances[key] = plans_of(services[key])
            services[key] = replace(services[key], plans=plans)
    exported = _changed(snapshot.exported, _exported_as_if, changes)
    return replace(snapshot, services=services, balances=balances, exported=exported)


def imports_as_if(snapshot: Snapshot, changes: Changes) -> Snapshot:
    """Return a snapshot of all clusters in which nothing is ready in the failed domains for multi-cluster names."""
    return replace(snapshot, imported=_changed(snapshot.imported, _without_failed, changes))


def _changed(known: Mapping[str, T], change: Callable[[T, Changes], T], changes: Changes) -> Mapping[str, T]:
    return {**known, **{key: change(known[key], changes) for key in _concerned(known, changes)}}


def _concerned(known: Mapping[str, T], changes: Changes) -> Collection[str]:
    """Return the keys of those Services in which something may differ; a failed domain may be that of any."""
    return known.keys() if changes.failed else known.keys() & changes.annotations.keys()


def service_as_if(compiled: CompiledService, changes: Changes) -> CompiledService:
    """Return a Service, changed, without plans; the same object if nothing differs."""
    annotations, left = changes.annotations.get(compiled.service.key), _without_failed(compiled, changes)
    if annotations is None and left is compiled:
        return compiled
    service = annotated(left.service, annotations or {})
    declarations = _declarations(left, service, changes.honor_kubernetes)
    return replace(left, service=service, declarations=declarations, plans=())


def annotated(service: Service, annotations: Annotations) -> Service:
    """Return a Service with other annotations."""
    merged = {**service.annotations, **annotations}
    return replace(service, annotations={key: text for key, text in merged.items() if text is not None})


def _without_failed(compiled: S, changes: Changes) -> S:
    if not changes.failed or not any(map(changes.fails, set(compiled.locations))):
        return compiled
    left = [located for located in compiled.endpoints if not changes.fails(located.location)]
    gone = {
        (address, located.endpoint.cluster)  # two clusters may use one address
        for located in compiled.endpoints
        if changes.fails(located.location)
        for address in located.endpoint.addresses
    }

    def remains(endpoint: Endpoint) -> bool:
        return not any((address, endpoint.cluster) in gone for address in endpoint.addresses)

    slices = [replace(part, endpoints=compact(list(filter(remains, part.endpoints)))) for part in compiled.slices]
    return replace(
        compiled,
        slices=tuple(slices) if left else (),
        locations=tuple([located.location for located in left]),
        empty=not left,
        plans=(),
        _located={},
    )


def _declarations(compiled: CompiledService, service: Service, honor_kubernetes: bool) -> tuple[Declaration, ...]:
    """Return what all sources declare for *service*: what other objects declared for *compiled*, and itself.

    The labels that ServicePolicies select by are not known any more, but annotations do not change which ones do.
    """
    elsewhere = [one for one in compiled.declarations if SOURCE[one.source].in_another_object]
    others = declarations_of(service, (), hinted(joined_endpoints(compiled.slices)), honor_kubernetes=honor_kubernetes)
    return in_order(service, (*map(partial(_at_least, min_endpoints(service) or 1), elsewhere), *others))


def _at_least(number: int, declaration: Declaration) -> Declaration:
    constraint = declaration.constraint
    if not isinstance(constraint, Narrowing) or constraint.at_least == number:
        return declaration
    return replace(declaration, constraint=replace(constraint, at_least=number))


def _exported_as_if(exported: ExportedService, changes: Changes) -> ExportedService:
    compiled = service_as_if(exported.compiled, changes)
    if compiled is exported.compiled:
        return exported
    declared = [one for one in (exported.constraint,) if one is not None and SOURCE[one.source].in_another_object]
    declared += [one for one in (federated_constraint(compiled.service, ()),) if one is not None]
    return ExportedService(compiled, deciding(in_order(compiled.service, declared)))


def annotating_command(service: str, annotations: Annotations) -> str:
    """Return the command that gives a Service (``namespace/name``) some annotations, and takes away those of None."""
    namespace, _, name = service.partition("/")
    pairs = [f"{key}={shell_words(text)}" if text is not None else f"{key}-" for key, text in annotations.items()]
    return f"kubectl -n {shell_words(namespace)} annotate service {shell_words(name)} --overwrite {' '.join(pairs)}"
