# SPDX-License-Identifier: Apache-2.0

"""All objects of the stand-in's cluster as bytes that are ready to be sent, and how they change.

Every object is a recorded one with other values. In each step one pod and one EndpointSlice change: either a pod is
deleted and leaves the slice, or another one takes the place of a pod that was deleted ``lag`` deletions before, and
enters the slice.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.standin import numbering, recording, wire
from bench.standin.numbering import ENDPOINTS, NAMESPACES, NODES, PODS, SERVICES
from bench.standin.recording import Recorded, Recording
from locator.topology.annotations import MAX_OVERLOAD

LAG = 250  # a second, at 500 steps a second
STRIDE = 48_271  # a prime: deletions go through all pods before one is deleted again
FIRST_VERSION = 1_000_000_000  # resourceVersions have ten digits from the start

Values = Mapping[str, str]  # by slot


class WatchEvent(NamedTuple):
    """An event for the watches of a kind."""

    kind: str
    chunk: bytes


class StandinObjects:
    """Every object as a chunk of a streamed list: an ADDED event, empty for a deleted pod. Not safe for threads.

    There are all nodes, and so many *services* with their pods, balanced with *max_overload* unless that is empty.
    *form* is JSON or protobuf.
    """

    def __init__(self, made_of: Recording, form: str, services: int = SERVICES, max_overload: str = "") -> None:
        self.version = FIRST_VERSION
        """The newest resourceVersion."""
        self.form = form
        self.chunks: dict[str, list[bytes]] = {}
        """By kind: all objects, in order."""
        self.lag = min(LAG, services * ENDPOINTS // 2)
        """Deletions until another pod takes the place of a deleted one."""
        self._hash = len(_slots(made_of["Pod"], "Pod")["template"])
        self._recorded = made_of
        self._pods = services * ENDPOINTS
        counts = {"Pod": self._pods, "Service": services, "EndpointSlice": services}
        counts |= {"Namespace": NAMESPACES, "Node": NODES}
        said = {"Service": {MAX_OVERLOAD: max_overload}} if max_overload else {}
        self._moulds = {kind: _mould(made_of, kind, form, said.get(kind, {})) for kind in counts}
        self._generations = [0] * self._pods
        self._gone: set[int] = set()
        self._entries: dict[int, bytes] = {}  # in slices, by pod
        self._steps = 0
        for kind, count in counts.items():
            self.chunks[kind] = [self._event("ADDED", self._item(kind, number)) for number in range(count)]

    def step(self) -> list[WatchEvent]:
        """Change a pod and a slice; return the events."""
        turn, adds = divmod(self._steps, 2)
        self._steps += 1
        if not adds:
            pod = turn * STRIDE % self._pods
            deleted = self._change("Pod", pod, "DELETED")
            self._gone.add(pod)
            return [deleted, self._change("EndpointSlice", pod // ENDPOINTS, "MODIFIED")]
        if turn < self.lag:
            return []
        pod = (turn - self.lag) * STRIDE % self._pods
        self._gone.discard(pod)
        self._generations[pod] += 1
        self._entries.pop(pod, None)
        return [self._change("Pod", pod, "ADDED"), self._change("EndpointSlice", pod // ENDPOINTS, "MODIFIED")]

    def bookmark(self, kind: str, *, ends_list: bool = False) -> bytes:
        """Return a bookmark of the newest version; *ends_list* is whether it ends a streamed list."""
        item = self._recorded[kind][self.form].listed
        if not ends_list:
            item = wire.without_annotations(self.form, item)
        item = wire.with_version(self.form, item, str(self.version))
        return self._event("BOOKMARK", item)

    def _change(self, kind: str, number: int, event: str) -> WatchEvent:
        self.version += 1
        item = self._item(kind, number)
        self.chunks[kind][number] = b"" if event == "DELETED" else self._event("ADDED", item)
        return WatchEvent(kind, self._event(event, item))

    def _event(self, event: str, item: bytes) -> bytes:
        return chunk(wire.event(self.form, event, item))

    def _item(self, kind: str, number: int) -> bytes:
        mould, values = self._moulds[kind], self._values(kind, number)
        if kind != "EndpointSlice":
            return mould.filled(values)
        pods = range(number * ENDPOINTS, (number + 1) * ENDPOINTS)
        return mould.filled(values, [self._entry(pod) for pod in pods if pod not in self._gone])

    def _entry(self, pod: int) -> bytes:
        """Return a pod's endpoint in a slice."""
        entry = self._entries.get(pod)
        if entry is None:
            entry = self._entries[pod] = self._moulds["EndpointSlice"].endpoint(self._values("Pod", pod))
        return entry

    def _values(self, kind: str, number: int) -> Values:
        """Return what stands in the slots of an object."""
        values = {"version": str(self.version)}
        if kind == "Namespace":
            return values | {"namespace": numbering.namespace(number), "uid": numbering.uid(1, number)}
        if kind == "Node":
            return values | _node(number) | {"uid": numbering.uid(2, number)}
        service = number // ENDPOINTS if kind == "Pod" else number
        label = numbering.service_label(service)
        values |= {"namespace": numbering.namespace(service), "service": label}
        if kind == "Service":
            return values | {"uid": numbering.uid(3, service)}
        if kind == "EndpointSlice":
            uids = {"uid": numbering.uid(4, service), "owner": numbering.uid(3, service)}
            return values | uids | {"slice": f"{label}-{numbering.suffix(service)}"}
        generation = self._generations[number]
        template = hashlib.md5(label.encode(), usedforsecurity=False).hexdigest()[: self._hash]
        return {
            **values,
            **_node(numbering.node_of(number, generation)),
            "address": numbering.pod_address(number, generation),
            "pod": f"{label}-{template}-{numbering.suffix(number + PODS * generation)}",
            "template": template,
            "uid": numbering.uid(5, number, generation),
            "owner": numbering.uid(6, service),
        }


def expired(form: str) -> bytes:
    """Return the event that ends a watch whose resourceVersion is too old: 410."""
    text = "too old resource version"
    if form == wire.JSON:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": text}
        return chunk(wire.event(form, "ERROR", wire.compact({**status, "reason": "Expired", "code": 410})))
    # meta/v1.Status: metadata, status, message, reason, code
    texts = zip((1, 2, 3, 4), (b"", b"Failure", text.encode(), b"Expired"), strict=True)
    message = b"".join(wire.field(number, content) for number, content in texts) + b"\x30\x9a\x03"
    kind = wire.field(1, b"v1") + wire.field(2, b"Status")
    parts = (wire.field(1, kind), wire.field(wire.MESSAGE, message), wire.field(3, b""), wire.field(4, b""))
    return chunk(wire.event(form, "ERROR", wire.MAGIC + b"".join(parts)))


def chunk(event: bytes) -> bytes:
    """Return an event as a chunk of an HTTP response: a real API server sends each in a chunk of its own."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def _node(node: int) -> Values:
    return {
        "node": numbering.node_name(node),
        "zone": numbering.zone(node),
        "rack": f"rack-{node % numbering.RACKS:02}",
        "block": f"{numbering.block(node)}.0/24",
        "host": numbering.host(node),
    }


class _Text:
    """Recorded bytes with slots for what differs from object to object."""

    def __init__(self, recorded: bytes, slots: Mapping[str, str]) -> None:
        known = {text.encode(): slot for slot, text in slots.items()}
        pattern = b"|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        self._parts = re.split(b"(%b)" % pattern, recorded)
        self._slots = [(at, known[part]) for at, part in enumerate(self._parts) if part in known]
        for at, _ in self._slots:
            assert at % 2, "a slot begins a text"

    def filled(self, values: Values) -> bytes:
        parts = self._parts.copy()
        for at, slot in self._slots:
            value = values[slot].encode()
            assert len(value) == len(parts[at]), f"{slot}: {value!r} in the place of {parts[at]!r}"
            parts[at] = value
        return b"".join(parts)


class _Mould:
    """What the objects of a kind are made in; *pod* holds the slots of an endpoint, of a slice."""

    def __init__(self, form: str, item: bytes, slots: Mapping[str, str], pod: Mapping[str, str] | None) -> None:
        self._form, self._recorded, self._behind = form, item, b""
        self._endpoint: _Text | None = None
        if pod is not None:
            item, endpoint, self._behind = wire.split_list(form, item, "endpoints", 2)
            self._endpoint = _Text(endpoint, pod)
        self._text = _Text(item, slots)

    def filled(self, values: Values, endpoints: Sequence[bytes] = ()) -> bytes:
        """Return an object."""
        text = self._text.filled(values)
        if self._endpoint is None:
            return text
        return wire.joined(self._form, self._recorded, (text, endpoints, self._behind))

    def endpoint(self, values: Values) -> bytes:
        """Return an endpoint of a slice."""
        assert self._endpoint is not None
        return self._endpoint.filled(values)


def _mould(made_of: Recording, kind: str, form: str, annotations: Mapping[str, str]) -> _Mould:
    item = wire.with_version(form, made_of[kind][form].item, str(FIRST_VERSION))
    for key, value in annotations.items():
        item = wire.with_annotation(form, item, key, value)
    slots = _slots(made_of[kind], kind)
    return _Mould(form, item, slots, _slots(made_of["Pod"], "Pod") if kind == "EndpointSlice" else None)


def _slots(recorded: Mapping[str, Recorded], kind: str) -> dict[str, str]:
    """Return what each slot holds in the recorded object."""
    item = json.loads(recorded[wire.JSON].item)
    metadata = item["metadata"]
    slots = {
        **{"version": str(FIRST_VERSION), "uid": metadata["uid"], "namespace": recording.NAMESPACE},
        **{"service": recording.SERVICE, "node": recording.NODE, "zone": f"region-1{recording.ZONE}"},
        **{"rack": f"rack-{recording.RACK}", "address": recording.ADDRESS, "block": recording.BLOCK},
        **{"host": recording.HOST},
    }
    if "ownerReferences" in metadata:
        slots["owner"] = metadata["ownerReferences"][0]["uid"]
    if kind == "Pod":
        slots |= {"pod": metadata["name"], "template": metadata["labels"]["pod-template-hash"]}
    if kind == "EndpointSlice":
        slots["slice"] = metadata["name"]
    return slots
