# SPDX-License-Identifier: Apache-2.0

"""What one cluster contributes among several: what it exports and imports, and where its nodes are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from locator.model import Location, Service, ServiceExport, ServiceHealth, ServiceImport
from locator.places.locations import Locations
from locator.state.objects import Objects
from locator.state.snapshot import CompiledService, ExportedService, ImportedObjects, mapping_after
from locator.topology.annotations import is_federated
from locator.topology.constraints import federated_constraint


class AmongClusters:
    """These parts of a snapshot, kept up to date as objects change.

    *exposes* says whether the Services of a namespace are served. *exports*, *imports* and *nodes_by_name* are those of
    ``Store``.
    """

    def __init__(
        self,
        objects: Objects,
        locations: Locations,
        exposes: Callable[[str], bool],
        *,
        exports: bool,
        imports: bool,
        nodes_by_name: bool,
    ) -> None:
        self._objects, self._locations, self._exposes = objects, locations, exposes
        self._exports, self._imports, self._nodes_by_name = exports, imports, imports or nodes_by_name
        self._imports_changed: set[str] = set()
        self._namespaces_changed: set[str] = set()
        self._nodes_changed: set[str] = set()
        self._healths_changed: set[str] = set()

    def mark_imports(self, keys: Iterable[str]) -> None:
        """Note that some ServiceImports, or their slices, have changed."""
        self._imports_changed.update(keys)

    def mark_namespace(self, namespace: str) -> None:
        """Note that a namespace may be served from now on, or no longer."""
        self._namespaces_changed.add(namespace)

    def mark_nodes(self, names: Iterable[str]) -> None:
        """Note that the locations of some nodes have changed."""
        self._nodes_changed.update(names)

    def mark_healths(self, names: Iterable[str]) -> None:
        """Note that some ServiceHealths have changed."""
        self._healths_changed.update(names)

    def is_exported(self, service: Service) -> bool:
        """Whether the cluster exports a Service; False if nobody wants to know."""
        return self._exports and (is_federated(service) or service.key in self._objects.of(ServiceExport))

    def exported_after(
        self,
        before: Mapping[str, ExportedService],
        services: Mapping[str, CompiledService],
        changed: Collection[str],
    ) -> Mapping[str, ExportedService]:
        """Return what the cluster exports of *services*, of which some have *changed*; *before* if nothing differs."""
        changes: dict[str, ExportedService | None] = {}
        for key in changed if self._exports else ():
            known, after = before.get(key), self._exported(key, services.get(key))
            if after is None or known is None:
                if after is not known:
                    changes[key] = after
            elif known.compiled is not after.compiled or known.constraint != after.constraint:
                changes[key] = after
        return mapping_after(before, changes)

    def imports_after(self, before: Mapping[str, ImportedObjects]) -> Mapping[str, ImportedObjects]:
        """Return what the cluster has imported; *before* itself if nothing differs."""
        changes: dict[str, ImportedObjects | None] = {}
        if self._namespaces_changed:
            imports = self._objects.of(ServiceImport).values()
            self.mark_imports(found.key for found in imports if found.namespace in self._namespaces_changed)
            self._namespaces_changed = set()
        for key in self._imports_changed if self._imports else ():
            known, service_import = before.get(key), self._objects.of(ServiceImport).get(key)
            if service_import is not None and self._exposes(service_import.namespace):
                slices = tuple(self._objects.slices_imported_with(key))
                if known is None or (known.service_import, known.slices) != (service_import, slices):
                    changes[key] = ImportedObjects(service_import, slices)
            elif known is not None:
                changes[key] = None
        self._imports_changed = set()
        return mapping_after(before, changes)

    def nodes_after(self, before: Mapping[str, Location]) -> Mapping[str, Location]:
        """Return the location of each node; *before* itself if nothing differs."""
        changes = {}
        for name in self._nodes_changed if self._nodes_by_name else ():
            location = self._locations.of_node(name)
            if location is not before.get(name):
                changes[name] = location
        self._nodes_changed = set()
        return mapping_after(before, changes)

    def healths_after(self, before: Mapping[str, ServiceHealth]) -> Mapping[str, ServiceHealth]:
        """Return the votes of the cluster's prober; *before* itself if nothing differs."""
        changes = {}
        for name in self._healths_changed:
            health = self._objects.of(ServiceHealth).get(name)
            if health != before.get(name):
                changes[name] = health
        self._healths_changed = set()
        return mapping_after(before, changes)

    def _exported(self, key: str, compiled: CompiledService | None) -> ExportedService | None:
        if compiled is None or not self.is_exported(compiled.service):
            return None
        service = self._objects.of(Service)[key]  # with its labels
        return ExportedService(compiled, federated_constraint(service, self._objects.policies_in(service.namespace)))
