# SPDX-License-Identifier: Apache-2.0

"""Endpoints, the kind before EndpointSlices: read from dumps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from locator.cluster import dump_files
from locator.cluster.dumps.reading import Dump, Input
from locator.model import EndpointSlice
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, endpoints, listed, node, service
from tests.kit.in_memory import snapshot_of

LEADER = "control-plane.alpha.kubernetes.io/leader"
NODE = node("a1", {ZONE: "a"})


def subset(*addresses: str, on: str = "a1", **more: object) -> Item:
    """Return a subset of an Endpoints object with ready addresses on one node."""
    return {"addresses": [{"ip": address, "nodeName": on} for address in addresses], **more}


def read(*files: Sequence[Item]) -> Dump:
    """Read a dump in several files."""
    return dump_files.read_here([Input(f"{n}.json", listed(items).encode()) for n, items in enumerate(files)])


OLD = [service("web"), endpoints("web", subset("10.0.0.1"))]
SLICE = endpoint_slice("web", 1, [endpoint("10.0.0.1", nodeName="a1")])


@pytest.mark.parametrize(
    ("files", "kinds"),
    [
        ([OLD], ["Endpoints"]),
        ([OLD, [SLICE]], ["EndpointSlice"]),
        ([[OLD[1]], [OLD[0]]], ["Endpoints"]),
        ([[OLD[1]], [NODE]], []),
        ([[*OLD, {**endpoint_slice("web", 1, []), "metadata": {"name": "web", "namespace": "shop"}}]],
         ["Endpoints", "EndpointSlice"]),
    ],
    ids=["alone", "slice-in-a-later-file", "service-in-a-later-file", "no-service", "slice-of-its-name-and-no-service"],
)  # fmt: skip
def test_counted_where_no_slice_is(files: list[list[Item]], kinds: list[str]) -> None:
    """Endpoints count for a Service that has no EndpointSlice in any file of the dump."""
    found = [item.kind for item in read(*files).objects if isinstance(item, EndpointSlice)]
    assert found == kinds


TRUNCATED = {"endpoints.kubernetes.io/over-capacity": "truncated"}
FAULTS = [
    ("truncated", [endpoints("web", subset("10.0.0.1"), annotations=TRUNCATED)],
     ("EndpointsTruncated", "subsets")),
    ("address", [endpoints("web", subset("10.0.0.1"), {"notReadyAddresses": [{"ip": "web.example"}]})],
     ("UnreadableObject", "subsets[1].notReadyAddresses[0].ip")),
    ("port", [endpoints("web", subset("10.0.0.1", ports=[{"name": "x", "port": 70000}]))],
     ("UnreadableObject", "subsets[0].ports[0].port")),
    ("type", [{**endpoints("web"), "subsets": 5}], ("UnreadableObject", "subsets")),
    ("twice", [endpoints("web", subset("10.0.0.2")), endpoints("web", subset("10.0.0.1"))], ("ObjectTwice", "")),
    ("unlocated", [endpoints("web", subset("10.0.0.1", "10.0.0.2", on="gone"))],
     ("EndpointWithoutLocation", "subsets")),
]  # fmt: skip


@pytest.mark.parametrize(("faulty", "expected"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_findings(faulty: list[Item], expected: tuple[str, str]) -> None:
    """A finding names the Endpoints object; there is none where its Service has a slice, or where it has no Service."""
    constrained = service("web", keys=ZONE)

    def found(*items: Item) -> list[tuple[str, str, str, str]]:
        dump = read([NODE, *faulty, *items])
        rows = [*dump.findings, *snapshot_of(listed([NODE, *faulty, *items])).findings]
        return [(row.kind, f"{row.namespace}/{row.name}", row.code, row.field) for row in rows if row.namespace]

    assert found(constrained) == [("Endpoints", "shop/web", *expected)]
    assert found(constrained, SLICE) == found() == []


def test_locks_of_leaders_say_nothing() -> None:
    """In clusters of kubeadm before 1.20, components elect their leaders by Endpoints without Services."""
    locks = [endpoints(name, where="kube-system", annotations={LEADER: "{}"})
             for name in ("kube-scheduler", "kube-controller-manager")]  # fmt: skip
    dump = read([NODE, *locks])
    assert dump.findings == [] and len(dump.objects) == 1
    assert {row.code for row in snapshot_of(listed([NODE, *locks])).findings} == {"NoTrustedForwarder"}
