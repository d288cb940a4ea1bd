# SPDX-License-Identifier: Apache-2.0

"""Multi-cluster Services on a real API server with the CRDs of KEP-1645."""

from __future__ import annotations

import json
from collections.abc import Iterator

import dns.message
import dns.rcode
import pytest

from tests.kit.api_objects import ZONE, endpoint, imported_slice, namespace, node, service_import
from tests.kit.kube import ControlPlane, multicluster_api
from tests.kit.topodns_process import Server, run
from tests.kit.waiting import until

WHERE = "imported"
NAME = f"db.{WHERE}.svc.clusterset.local"
FLAGS = ("--multicluster", "clusterset.local", "--cluster-name", "west")


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return the control plane with a node and the CRDs."""
    items = (namespace(WHERE), node("imported-1", {ZONE: "a"}, addresses=["127.0.0.1"]))
    with multicluster_api(control_plane):
        control_plane.api.create(*items)
        yield control_plane
        control_plane.api.delete(*items)


def said(server: Server) -> list[str]:
    """Return the addresses of the multi-cluster Service for a client on the node, or else the rcode."""
    reply = server.ask(dns.message.make_query(NAME, "A"))
    rows = sorted(str(row) for rrset in reply.answer for row in rrset)
    return rows or [dns.rcode.to_text(reply.rcode())]


def test_what_a_controller_imports_is_followed(plane: ControlPlane) -> None:
    """A ServiceImport and its slices come, change and go; ``explain`` and ``check`` read the same."""
    near = [endpoint("10.111.0.1", nodeName="imported-1"), endpoint("10.111.0.2", nodeName="imported-2", zone="b")]
    west, east = imported_slice("db", "west", near, where=WHERE), imported_slice("db", "east", near[1:], where=WHERE)
    imported = service_import("db", where=WHERE, keys=f"{ZONE},*")
    cluster = ("--kubeconfig", str(plane.kubeconfig))
    server = Server(["serve", "--listen", "127.0.0.1:0", "--http", "off", *FLAGS, *cluster]).started()
    try:
        assert said(server) == ["NXDOMAIN"]
        plane.api.create(imported, west, east)
        until(lambda: said(server) == ["10.111.0.1"], lambda: f"the nearest: {said(server)}")
        explained = json.loads(run("explain", NAME, "--client", "127.0.0.1", "-o", "json", *FLAGS, *cluster).stdout)
        assert [answer["data"] for answer in explained["answers"]] == ["10.111.0.1"]
        plane.api.patch(imported, {"metadata": {"annotations": None}})
        until(lambda: said(server) == ["10.111.0.1", "10.111.0.2"], lambda: f"all: {said(server)}")
        plane.api.delete(west, east)
        until(lambda: said(server) == ["NXDOMAIN"], lambda: f"nobody: {said(server)}")
        found = json.loads(run("check", "-n", WHERE, "-o", "json", *FLAGS, *cluster).stdout)
        assert [finding["code"] for finding in found if finding["kind"]] == ["ServiceImportWithoutSlices"]
        plane.api.create(west)
        until(lambda: said(server) == ["10.111.0.1", "10.111.0.2"], lambda: f"both: {said(server)}")
        plane.api.delete(imported)
        until(lambda: said(server) == ["NXDOMAIN"], lambda: f"no import: {said(server)}")
    finally:
        server.end()
