# SPDX-License-Identifier: Apache-2.0

"""A federation API and clusters in memory, with as much of an API server as federated creation needs.

It keeps the owners of fields by server-side apply (KEP-555), versions, finalizers, and refuses what a test says.
Whether real API servers do the same, ``tests/cluster/test_federation.py`` shows.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from locator.api.decoding import decode_untrusted
from locator.api.deltas import Drop, Put, Replace
from locator.control.reconciler import Destination
from locator.control.writes import APPLY, BEHIND, CONFLICT, CREATE, DELETE, REFUSED, Write
from locator.distribution.destinations import ClusterContact, Destinations
from locator.distribution.distribution import Distribution
from locator.distribution.manifests import FIELD_MANAGER, LABEL, label_value
from locator.distribution.records import OTHER_WORKLOADS, Key
from locator.labels import Selector
from locator.model import OWN, Finding
from tests.kit.api_objects import Item, topodns_annotations

ZONE = "fed.example.com"
MOST_WRITES = 10_000  # until nothing is left to write; more would be a circle
MERGED_BY = {
    "containers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "ports": ("port", "protocol"),
}  # the keys of lists that are merged


class Server:
    """The objects of one API server, by kind and ``NAMESPACE/NAME``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.items: dict[Key, Item] = {}
        self.refuses: Callable[[Write], str] = lambda write: ""
        """Returns the words with which a write is refused, empty for one that is not."""
        self.version = 0
        self.writes: list[Write] = []
        """What topodns has written."""

    def put(self, item: Item) -> Item:
        """Create an object or replace it, as somebody else does."""
        key = key_of(item)
        known = self.items.get(key, {"metadata": {"generation": 0}})
        item = copy.deepcopy(item)
        meta = item["metadata"]
        changed = known.get("spec") != item.get("spec")
        meta["generation"] = known["metadata"]["generation"] + changed
        meta.setdefault("uid", known["metadata"].get("uid") or f"uid-{self._name}-{self.version}-{key}")
        for name in ("managedFields", "finalizers"):
            if name in known["metadata"]:
                meta.setdefault(name, known["metadata"][name])
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        self.items[key] = item
        return item

    def remove(self, key: Key, *, by_force: bool = False) -> None:
        """Delete an object; one with finalizers stays until it has none, unless it goes *by_force*."""
        item = self.items[key]
        if item["metadata"].get("finalizers") and not by_force:
            item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.put(item)
        else:
            self.version += 1
            del self.items[key]

    def patch(self, key: Key, change: Item) -> None:
        """Merge *change* into an object, as somebody else does, who then owns the fields that it sets."""
        item = copy.deepcopy(self.items[key])
        _merge(item, change)
        for managed in item["metadata"].get("managedFields", []):
            _disown(managed["fieldsV1"], change)
        self.put(item)

    def carry_out(self, write: Write, key: Key) -> tuple[str, Item | None]:
        """Do what a write asks for; return REFUSED, BEHIND, CONFLICT or "", and the object."""
        known = self.items.get(key)
        if write.unless is not None and known is not None:
            meta = known["metadata"]
            if write.unless.is_found(meta["uid"], meta.get("labels", {})):
                return BEHIND, None
        if self.refuses(write):
            return REFUSED, None
        self.writes.append(write)
        if write.version:
            assert known is not None
            assert known["metadata"]["resourceVersion"] == write.version
        if write.verb == DELETE:
            self.remove(key)
            return "", None
        if write.verb == CREATE:
            return (CONFLICT, None) if known is not None else ("", self.put(write.body))
        item = copy.deepcopy(known) if known is not None else {}
        if write.verb == APPLY:
            _apply(item, write.body, force=write.force)
        else:
            _merge(item, {name: value for name, value in write.body.items() if name != "apiVersion"})
        after = self.put(item)
        if after["metadata"].get("deletionTimestamp") and not after["metadata"].get("finalizers"):
            del self.items[key]
        return "", after


class World:
    """A federation API and clusters, and what topodns makes of them. Time passes only by ``wait``."""

    def __init__(self, *clusters: str, selector: Selector | None = None) -> None:
        self.servers = {name: Server(name) for name in (OWN, *clusters)}
        self.findings: list[Finding] = []
        self.now = 0.0
        self._selector, self._cut = selector, dict[str, float]()
        self.problem = "no route to host"
        """Why a cluster that is cut cannot be read."""
        self.start()

    def start(self) -> None:
        """Start the controller, or start it again: it knows nothing of before."""
        clusters = [name for name in self.servers if name != OWN]
        self.distribution = Distribution(ZONE, clusters, selector=self._selector, now=self.now)
        self.destinations = Destinations(self.distribution, self.findings.append)
        self._seen: dict[str, dict[Key, Item]] = {name: {} for name in self.servers}
        self._listed: set[str] = set()

    def select(self, selector: Selector) -> None:
        """Start the controller again, with another selector."""
        self._selector = selector
        self.start()

    @property
    def federation(self) -> Server:
        """The federation API."""
        return self.servers[OWN]

    def cut(self, cluster: str) -> None:
        """Let a cluster be out of reach from now on."""
        self._cut[cluster] = self.now

    def heal(self, cluster: str) -> None:
        """Let a cluster be in reach again."""
        del self._cut[cluster]

    def wait(self, seconds: float = 0.0) -> None:
        """Let time pass, and then do all that is to be done, until nothing is."""
        self.now += seconds
        for _ in range(3):
            self.destinations.look(self._contacts(), self.now)
            self._write_all()
            self.now += 3.0  # for what waits until it has settled

    def written(self) -> int:
        """Return how many writes there were in all."""
        return sum(len(server.writes) for server in self.servers.values())

    def status(self, kind: str, name: str) -> dict[str, Item]:
        """Return what the annotation ``federation-status`` of an object in the federation API says."""
        item = self.federation.items[Key(kind, name)]
        return dict(json.loads(item["metadata"]["annotations"]["topodns.io/federation-status"]))

    def copies(self, kind: str, name: str) -> dict[str, Item]:
        """Return the object of that kind and name in each cluster that has one."""
        key = Key(kind, name)
        return {
            cluster: server.items[key] for cluster, server in self.servers.items() if cluster and key in server.items
        }

    def replicas(self, name: str) -> dict[str, int]:
        """Return the replicas of a Deployment in each cluster."""
        return {cluster: item["spec"]["replicas"] for cluster, item in self.copies("Deployment", name).items()}

    def _contacts(self) -> dict[str, ClusterContact]:
        return {
            cluster: ClusterContact(self._cut.get(cluster), self.problem if cluster in self._cut else "")
            for cluster in self.servers
            if cluster != OWN
        }

    def _write_all(self) -> None:
        for _ in range(MOST_WRITES):
            written = [self._write_one(name) for name in self._in_reach()]
            if not any(written):
                return
        raise AssertionError("writes without end")

    def _in_reach(self) -> list[str]:
        return [name for name in self.servers if name not in self._cut]

    def _write_one(self, cluster: str) -> bool:
        """Show a cluster's changes, and carry out one write there; return whether there was any."""
        self._show(cluster)
        destination = self._destination(cluster)
        queue = destination.queue
        while (write := destination.next_write(self.now)) is None:
            if not (queue.ready and destination.has_synced):
                return False
        kind, found = destination.rules.written_object(write.key)
        key = Key.parse(write.key)
        assert key.object == found
        result, item = self.servers[cluster].carry_out(write, key)
        if result:
            destination.rules.failed(write, result, self.servers[cluster].refuses(write))
            queue.defer(write.key, self.now + 30.0)
            return True
        built = None if item is None else decode_untrusted(destination.rules.resources[kind], _json(item)).built
        destination.written(write, built, began=self.now)
        queue.done(write.key)
        self._show(cluster)
        return True

    def _destination(self, cluster: str) -> Destination:
        return self.destinations.clusters[cluster] if cluster else self.destinations.originals

    def _show(self, cluster: str) -> None:
        """Let topodns see what has changed in a cluster, or everything the first time."""
        items, seen = self.servers[cluster].items, self._seen[cluster]
        resources = self.distribution.resources
        kinds = self.distribution.originals if cluster == OWN else self.distribution.copies
        by_name = {resources[kind].name: kind for kind in kinds}
        visible = {key: item for key, item in items.items() if key.kind in by_name and _is_visible(cluster, key, item)}
        if cluster not in self._listed:
            for name, kind in by_name.items():
                of_kind = [item for key, item in visible.items() if key.kind == name]
                built = [decode_untrusted(resources[kind], _json(item)).built for item in of_kind]
                self.destinations.apply(Replace(kind, [one for one in built if one is not None]), cluster)
            self._listed.add(cluster)
        for key in seen.keys() - visible.keys():
            self.destinations.apply(Drop(by_name[key.kind], key.object), cluster)
        for key, item in visible.items():
            if seen.get(key) != item:
                kind = by_name[key.kind]
                built_one = decode_untrusted(resources[kind], _json(item)).built
                self.destinations.apply(Drop(kind, key.object) if built_one is None else Put(built_one), cluster)
        self._seen[cluster] = copy.deepcopy(visible)


def key_of(item: Item) -> Key:
    """Return the key of an object."""
    meta = item["metadata"]
    namespace = f"{meta['namespace']}/" if "namespace" in meta else ""
    return Key(item["kind"], f"{namespace}{meta['name']}")


def deployment(
    name: str = "web", replicas: int = 3, *, namespace: str = "shop", image: str = "nginx", **annotations: str
) -> Item:
    """Return a Deployment; annotations are named without the prefix, with ``_`` for ``-``."""
    meta = {"namespace": namespace, "name": name, "annotations": topodns_annotations(annotations)}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def service(name: str = "web", *, namespace: str = "shop", type_: str = "LoadBalancer", **annotations: str) -> Item:
    """Return a Service; annotations as for ``deployment``."""
    meta = {"namespace": namespace, "name": name, "annotations": topodns_annotations(annotations)}
    spec = {"type": type_, "selector": {"app": name}, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def _is_visible(cluster: str, key: Key, item: Item) -> bool:
    watched = {"Namespace", "HorizontalPodAutoscaler", *OTHER_WORKLOADS}
    labels = item["metadata"].get("labels", {})
    return cluster == OWN or key.kind in watched or labels.get(LABEL) == label_value(ZONE)


def _json(item: Item) -> bytes:
    return json.dumps(item).encode()


def _merge(target: Item, change: Item) -> None:
    """Merge as RFC 7396 says."""
    for name, value in change.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = copy.deepcopy(value)


def _disown(fields: Item, change: Item) -> None:
    for name, value in change.items():
        if isinstance(value, dict):
            _disown(fields.get(f"f:{name}", {}), value)
        else:
            fields.pop(f"f:{name}", None)


def _apply(item: Item, body: Item, *, force: bool) -> None:
    """Apply *body* as ``FIELD_MANAGER``: what it owned before and does not apply any more goes."""
    content = copy.deepcopy({name: value for name, value in body.items() if name not in ("apiVersion", "kind")})
    content["metadata"].pop("resourceVersion", None)
    meta = {name: content["metadata"].pop(name) for name in ("name", "namespace") if name in content["metadata"]}
    managed = item.get("metadata", {}).get("managedFields", [])
    before = next((one["fieldsV1"] for one in managed if one["manager"] == FIELD_MANAGER), {})
    after = _fields(content)
    _drop(item, before, after)
    _merge(item, content)
    item["apiVersion"], item["kind"] = body["apiVersion"], body["kind"]
    item["metadata"] |= meta
    others = [one for one in managed if one["manager"] != FIELD_MANAGER]
    item["metadata"]["managedFields"] = [
        *others, {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": after}
    ]  # fmt: skip


def _fields(value: Any, name: str = "") -> Item:
    """Return the fields of a value in the form FieldsV1."""
    if isinstance(value, dict):
        return {f"f:{inner}": _fields(one, inner) for inner, one in value.items()}
    keys = MERGED_BY.get(name)
    if isinstance(value, list) and keys and all(isinstance(one, dict) for one in value):
        named = ({key: one[key] for key in keys if key in one} for one in value)
        return {f"k:{json.dumps(key)}": {".": {}, **_fields(one)} for key, one in zip(named, value, strict=True)}
    return {}


def _drop(item: Item, before: Item, after: Item) -> None:
    """Remove what is owned *before* and not *after*. Lists are replaced as a whole."""
    for name, inner in before.items():
        field = name.removeprefix("f:")
        if not name.startswith("f:") or field not in item:
            continue
        if name not in after:
            del item[field]
        elif isinstance(item[field], dict):
            _drop(item[field], inner, after[name])
