# SPDX-License-Identifier: Apache-2.0

"""The benchmark's stand-in for an API server sends what a real one does: topodns reads it as it reads a cluster."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bench.standin import wire
from bench.standin.numbering import ENDPOINTS, NAMESPACES, NODES, pod_address
from bench.standin.objects import StandinObjects
from bench.standin.recording import FORMS, PATHS, recording
from bench.standin.serving import Standin, serve
from locator.api.decoding import RESOURCES
from locator.api.deltas import Drop, Put, Replace
from locator.api.list_watch import HAS_EXPIRED, ListWatch
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Stream
from locator.model import EndpointSlice, Namespace, Node, Object, Pod, Service
from tests.kit.kube import config_of
from tests.kit.this_machine import needs_tool

SERVICES = 3
COUNTS = {Namespace: NAMESPACES, Node: NODES, Pod: SERVICES * ENDPOINTS, Service: SERVICES, EndpointSlice: SERVICES}


@pytest.fixture(scope="module")
def clusters() -> Mapping[str, StandinObjects]:
    """A small cluster in each form."""
    needs_tool("go")
    return {form: StandinObjects(recording(), form, SERVICES) for form in FORMS}


@pytest.fixture
def served(clusters: Mapping[str, StandinObjects], tmp_path: Path) -> Iterator[tuple[Standin, ApiClient]]:
    """A stand-in and a client of it."""
    with serve(clusters[wire.JSON], 0) as (standin, port):
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(config_of(f"http://127.0.0.1:{port}")))
        yield standin, ApiClient(kubeconfig=str(kubeconfig))


def begun(client: ApiClient, kind: type[Object]) -> tuple[ListWatch, Stream]:
    """Begin a list and watch."""
    listwatch = ListWatch(kind, RESOURCES[kind], chance=lambda: 0.0)
    request = listwatch.next_request()
    return listwatch, client.open(request.path, request.query, silence=20.0)


@pytest.mark.parametrize("kind", COUNTS, ids=lambda kind: kind.__name__)
def test_a_list_is_read_whole(served: tuple[Standin, ApiClient], kind: type[Object]) -> None:
    """All objects of a kind arrive in one stream, and topodns finds nothing wrong with them."""
    listwatch, stream = begun(served[1], kind)
    with stream:
        batches = []
        for lines in stream:
            batches.append(listwatch.lines(lines))
            if listwatch.listed:
                break
    (replace,) = [delta for batch in batches for delta in batch.deltas]
    assert isinstance(replace, Replace)
    assert len(replace.objects) == COUNTS[kind]
    assert not any(findings for batch in batches for findings in batch.findings.values())


def test_pods_are_replaced_and_lists_expire(
    clusters: Mapping[str, StandinObjects], served: tuple[Standin, ApiClient]
) -> None:
    """A deleted pod's place is taken by one with another address; then the watch ends with a 410."""
    standin, client = served
    listwatch, stream = begun(client, Pod)
    deltas: list[object] = []
    with stream:
        lines = iter(stream)
        while not listwatch.listed:
            listwatch.lines(next(lines))
        standin.step(2 * clusters[wire.JSON].lag + 2)
        standin.expire("Pod")
        while not listwatch.over:
            deltas += listwatch.lines(next(lines)).deltas
    assert isinstance(deltas[0], Drop)
    added = [delta.object for delta in deltas if isinstance(delta, Put)]
    assert [pod.addresses for pod in added] == [(bytes(map(int, pod_address(0, 1).split("."))),)]
    assert listwatch.problem == HAS_EXPIRED


@pytest.mark.parametrize(("kind", "form"), [*itertools.product(PATHS, FORMS)])
def test_events_are_framed_as_their_form_demands(clusters: Mapping[str, StandinObjects], kind: str, form: str) -> None:
    """The lengths that protobuf states are right, and so are those of the chunks."""
    size, _, rest = clusters[form].chunks[kind][0].partition(b"\r\n")
    assert len(rest) == int(size, 16) + 2
    (event,) = wire.split(form, rest[:-2])
    assert wire.type_of(form, event) == "ADDED"
    item = wire.object_of(form, event)
    renewed = wire.with_version(form, item, "9999999999")
    assert b"9999999999" in renewed and len(wire.event(form, "ADDED", renewed)) == len(event)


@pytest.mark.parametrize("form", FORMS)
def test_services_are_balanced_on_demand(form: str) -> None:
    """All of them have the annotation then, beside the one that is recorded, and their lengths stay right."""
    needs_tool("go")
    objects = StandinObjects(recording(), form, SERVICES, "1.5")
    for chunk in objects.chunks["Service"]:
        size, _, rest = chunk.partition(b"\r\n")
        assert len(rest) == int(size, 16) + 2
        (event,) = wire.split(form, rest[:-2])
        item = wire.object_of(form, event)
        assert b"topodns.io/max-overload" in item and b"topodns.io/topology-keys" in item
        assert b"1.5" in item
