# SPDX-License-Identifier: Apache-2.0

"""Dumps of a large cluster, as ``kubectl get ... -A -o yaml`` and ``-o json`` print it; every call writes the same.

Objects are made from text templates: PyYAML would take longer to print them than topodns takes to read them.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import TextIO

import yaml

NODES = 1_000
SERVICES = 2_000
ENDPOINTS = 15  # of each Service, each a pod of its own
PODS = SERVICES * ENDPOINTS
SIZE = f"{NODES:,} nodes, {PODS:,} pods, {SERVICES:,} Services with {ENDPOINTS} endpoints each"

NAMESPACE = "shop"
ZONES = "abc"
RACKS = 25

_TEMPLATES = Path(__file__).parent / "templates"


def write(folder: Path, *, form: str, pod: str) -> Path:
    """Write the cluster in a *form*, ``yaml`` or ``json``, with the template *pod* for its pods; return the path."""
    path = folder / f"{pod}s.{form}"
    with path.open("w") as file:
        (_write_yaml if form == "yaml" else _write_json)(file, pod)
    return path


def _write_yaml(file: TextIO, pod: str) -> None:
    templates = {kind: Template(_as_item(_text(kind, pod))) for kind in KINDS}
    file.write("apiVersion: v1\nitems:\n")
    for kind, values in _objects():
        file.write(templates[kind].substitute(values))
    file.write('kind: List\nmetadata:\n  resourceVersion: ""\n')


def _write_json(file: TextIO, pod: str) -> None:
    templates = {kind: Template(_as_json(_text(kind, pod))) for kind in KINDS}
    file.write('{\n    "apiVersion": "v1",\n    "items": [')
    separator = "\n"
    for kind, values in _objects():
        file.write(separator + templates[kind].substitute(values))
        separator = ",\n"
    file.write('\n    ],\n    "kind": "List",\n    "metadata": {\n        "resourceVersion": ""\n    }\n}\n')


KINDS = ("namespace", "node", "pod", "service", "endpointslice")


def _text(kind: str, pod: str) -> str:
    """Return the template of one object of a kind, in YAML."""
    text = (_TEMPLATES / f"{pod if kind == 'pod' else kind}.yaml").read_text()
    endpoint = (_TEMPLATES / "endpoint.yaml").read_text()
    endpoints = "".join(endpoint.replace("_N", f"_{number}") for number in range(ENDPOINTS))
    return text.replace("$endpoints\n", endpoints)


def _as_item(text: str) -> str:
    return "- " + textwrap.indent(text, "  ")[2:]


def _as_json(text: str) -> str:
    return textwrap.indent(json.dumps(yaml.safe_load(text), indent=4), " " * 8)


def _objects() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield kind and values of each object, in the order in which kubectl prints several kinds."""
    yield "namespace", {"namespace": NAMESPACE, **_identity(NAMESPACE)}
    for number in range(NODES):
        yield "node", {**_node(number), **_identity(f"node {number}")}
    for number in range(PODS):
        yield "pod", _pod(number)
    for number in range(SERVICES):
        values = {"namespace": NAMESPACE, "service": _service(number), **_identity(f"service {number}")}
        yield "service", dict(values)
        pods = map(_pod, range(number * ENDPOINTS, (number + 1) * ENDPOINTS))
        yield (
            "endpointslice",
            values | {f"{key}_{n}": value for n, pod in enumerate(pods) for key, value in pod.items()},
        )


def _pod(number: int) -> dict[str, str]:
    node = number % NODES
    service = _service(number // ENDPOINTS)
    identity = _identity(f"pod {number}")
    ip = f"10.{node // 256}.{node % 256}.{number // NODES + 2}"
    pod = f"{service}-{identity['hash']}-{number % ENDPOINTS:05}"
    return {**_node(node), "namespace": NAMESPACE, "service": service, "pod": pod, "ip": ip, **identity}


def _node(number: int) -> dict[str, str]:
    high, low = divmod(number, 256)
    return {
        "node": f"node-{number:04}",
        "zone": ZONES[number % len(ZONES)],
        "rack": str(number % RACKS),
        "cidr": f"10.{high}.{low}.0/24",
        "host_ip": f"172.16.{high}.{low}",
    }


def _service(number: int) -> str:
    return f"service-{number:04}"


def _identity(seed: str) -> dict[str, str]:
    """Return a uid and such: values that differ for each object and that topodns does not read."""
    text = hashlib.md5(seed.encode(), usedforsecurity=False).hexdigest()
    uid = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return {"uid": uid, "short": text[:17], "hash": f"h{text[:9]}", "version": str(int(text[:7], 16))}
