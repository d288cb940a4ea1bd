# SPDX-License-Identifier: Apache-2.0

"""What a real API server sends for one object of each kind, as JSON and as protobuf: the stand-in repeats it.

A Deployment's controllers make the pod and the EndpointSlice; the pod's binding and status are written as a scheduler
and a kubelet write them, so that ``managedFields`` are what a real cluster has.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import msgspec
import yaml

from bench.standin import wire
from tests.kit import go_programs
from tests.kit.kube import TOKEN, ControlPlane, running_control_plane
from tests.kit.made_once import CACHE
from tests.kit.waiting import PATIENCE, until

PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/pods",
    "Service": "/api/v1/services",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/endpointslices",
}
FORMS = (wire.JSON, wire.PROTOBUF)
# The values of the recorded objects. Each number has as many digits as in the largest cluster: what is put in the place
# of a value has its length, and so the lengths that protobuf states stay right.
NAMESPACE, SERVICE, NODE = "ns-000", "service-00000", "node-0000"
ZONE, RACK = "a", "00"
ADDRESS, BLOCK, HOST = "10.100.100.100", "10.100.100.0/24", "172.16.100.100"
SET_BY_API_SERVER = ("nodeName", "preemptionPolicy", "priority")
# Of the pod's container: a pod then has 5.7 kB of JSON, managedFields and all.
LEFT_OUT = ("args", "env", "livenessProbe", "securityContext")
SECONDS = 2  # that a recorded watch lasts

_TEMPLATES = Path(__file__).with_name("templates")
_VALUES = {
    **{"namespace": NAMESPACE, "service": SERVICE, "node": NODE, "zone": ZONE, "rack": RACK},
    **{"ip": ADDRESS, "cidr": BLOCK, "host_ip": HOST, "pod": "", "uid": "", "version": ""},
    **{"hash": "h5d8b7c9f4f", "short": "0f3a5c7e9b1d2f4a6"},
}


class Recorded(msgspec.Struct):
    """What was recorded of one kind in one form: an object, and the bookmark at the end of the list."""

    item: bytes
    listed: bytes


Recording = dict[str, dict[str, Recorded]]  # by kind and form


def recording() -> Recording:
    """Return the recording, from ``.cache/`` if there is one of this API server and this module.

    Raises what ``go_programs`` and ``kube`` raise where the API server cannot be built or started.
    """
    programs = go_programs.control_plane()
    code = b"".join(path.read_bytes() for path in (Path(__file__), *sorted(_TEMPLATES.iterdir())))
    kept = CACHE / f"recorded-{hashlib.sha256(code + programs.name.encode()).hexdigest()[:16]}"
    if not kept.exists():
        with (
            tempfile.TemporaryDirectory(prefix="topodns-recording-") as folder,
            running_control_plane(Path(folder)) as plane,
        ):
            made = _record(plane)
        written = kept.with_suffix(f".{os.getpid()}")
        written.write_bytes(msgspec.msgpack.encode(made))
        written.rename(kept)  # another process may be reading it
    return msgspec.msgpack.decode(kept.read_bytes(), type=Recording)


def _record(plane: ControlPlane) -> Recording:
    api = plane.api
    namespace, node, pod, service = map(_object, ("namespace", "node", "pod", "service"))
    api.create(namespace)
    _create_with_status(plane, node)
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": NAMESPACE, "name": SERVICE}})
    api.create(_deployment(pod), service)
    running = {"kind": "Pod", **until(lambda: api.items("Pod", NAMESPACE), "the Deployment has a pod")[0]}
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": running["metadata"]["name"]},
        "target": target,
    }
    api.request("POST", api.path_of(running, sub="binding"), binding)
    _report(plane, running, pod["status"])
    until(lambda: any(item["endpoints"] for item in api.items("EndpointSlice", NAMESPACE)), "the slice has an endpoint")
    return {kind: {form: _watch(plane, path, form) for form in FORMS} for kind, path in PATHS.items()}


def _object(kind: str) -> dict[str, Any]:
    """Return the object of a template without what the API server sets."""
    item: dict[str, Any] = yaml.safe_load(Template((_TEMPLATES / f"{kind}.yaml").read_text()).substitute(_VALUES))
    for name in ("creationTimestamp", "resourceVersion", "uid", "generation"):
        item["metadata"].pop(name, None)
    return item


def _create_with_status(plane: ControlPlane, item: dict[str, Any]) -> None:
    plane.api.request("POST", plane.api.path(item["kind"]), item)
    _report(plane, item, item["status"])


def _report(plane: ControlPlane, item: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """Write the status of an object as a kubelet does."""
    path = f"{plane.api.path_of(dict(item), sub='status')}?fieldManager=kubelet"
    media = "application/strategic-merge-patch+json"
    plane.api.request("PATCH", path, {"status": dict(status)}, media=media)


def _deployment(pod: Mapping[str, Any]) -> dict[str, Any]:
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if key != "pod-template-hash"}
    spec = {key: value for key, value in pod["spec"].items() if key not in SET_BY_API_SERVER}
    spec["containers"] = [
        {key: value for key, value in container.items() if key not in LEFT_OUT} for container in spec["containers"]
    ]
    template = {"metadata": {"labels": labels, "annotations": pod["metadata"]["annotations"]}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": NAMESPACE, "name": SERVICE, "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


def _watch(plane: ControlPlane, path: str, form: str) -> Recorded:
    """Record a list that streams, and the bookmark at its end."""
    query = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    accept = form if form == wire.JSON else f"{form};stream=watch"
    tls = ssl.create_default_context(cafile=str(plane.folder / "certificates" / "apiserver.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", plane.port, context=tls, timeout=PATIENCE)
    try:
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": accept}
        connection.request("GET", f"{path}?{query}&timeoutSeconds={SECONDS}", headers=headers)
        events = wire.split(form, connection.getresponse().read())
    finally:
        connection.close()
    ours = [event for event in events if wire.type_of(form, event) == "ADDED" and _is_ours(path, event)]
    ends = [event for event in events if wire.type_of(form, event) == "BOOKMARK"]
    return Recorded(*(wire.object_of(form, event) for event in (ours[0], ends[0])))


def _is_ours(path: str, event: bytes) -> bool:
    """Whether an event is of the recorded objects, and not of those that every cluster has."""
    name = {"namespaces": NAMESPACE, "nodes": NODE}.get(path.rpartition("/")[2], SERVICE)
    return name.encode() in event
