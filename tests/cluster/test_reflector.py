# SPDX-License-Identifier: Apache-2.0

"""Reflectors against the real API server: after any fault, the view becomes what a new list returns."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from locator.api.decoding import NODE_METADATA, RESOURCES
from locator.api.deltas import Replace
from locator.api.list_watch import CUT, EXPIRED, SILENT, ListWatch
from locator.cluster import api_client
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused
from locator.model import EndpointSlice, Namespace, Node, Pod, PodLocator, Service, ServiceImport
from tests.kit import api_objects
from tests.kit.api_objects import HOSTNAME, ZONE, namespace, node
from tests.kit.go_programs import mcs_crds
from tests.kit.kube import ControlPlane, Item
from tests.kit.live_server import RECOVERY
from tests.kit.proxy import Proxy
from tests.kit.running_reflector import Following, following
from tests.kit.waiting import until

WHERE = "reflected"
READ_SERVICES: list[Item] = [{"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]}]
CORE = (Namespace, Node, Pod, Service, EndpointSlice)


def service(name: str, **spec: Any) -> Item:
    return api_objects.service(name, where=WHERE, ports=[(None, 80, "TCP")], **{"selector": {"app": name}, **spec})


def pod(name: str, address: str) -> Item:
    return api_objects.pod(name, [address], "reflected-a", where=WHERE, labels={"app": "web"})


def cluster_of(plane: ControlPlane) -> ApiClient:
    return ApiClient(kubeconfig=str(plane.kubeconfig))


@pytest.fixture(scope="module")
def plane(frail_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return a control plane that tests may break, with a namespace."""
    frail_control_plane.api.create(namespace(WHERE))
    yield frail_control_plane
    frail_control_plane.api.delete(namespace(WHERE))


@pytest.fixture
def followed(plane: ControlPlane) -> Iterator[Following]:
    """Return a running reflector of Services, for which two seconds without an octet are silence."""
    with following(cluster_of(plane), Service, silence=2.0) as one:
        until(lambda: one.reflector.listed, "Services listed")
        yield one


# What is there, and what changes


def test_every_kind_is_listed_and_followed(plane: ControlPlane) -> None:
    """With the objects that the real controllers make."""
    cluster = cluster_of(plane)
    items = [node("reflected-a", {ZONE: "a"}, addresses=["10.9.0.1"]), pod("web-0", "10.9.1.1"), service("web")]
    with ExitStack() as stack:
        all_of_them = [stack.enter_context(following(cluster, made)) for made in CORE]
        # A reflector says so before its news has been taken in.
        until(lambda: all(one.reflector.listed and one.replaced for one in all_of_them), "everything listed")
        before = [one.replaced for one in all_of_them]
        plane.api.create(*items)
        slices = all_of_them[-1]  # whose view changes while it is looked at

        def sliced() -> bool:
            return any(
                endpoint_slice.endpoints
                for endpoint_slice in list(slices.view.values())
                if endpoint_slice.namespace == WHERE
            )

        until(sliced, "slice", within=RECOVERY)  # by a controller that another test may have cut off a while ago
        plane.api.patch(items[0], {"metadata": {"labels": {ZONE: "b"}}})
        plane.api.patch_status(items[1], {"podIPs": [{"ip": "10.9.1.2"}], "podIP": "10.9.1.2"})
        until(lambda: "reflected-a" in all_of_them[1].view, "node")
        until(lambda: all_of_them[1].view["reflected-a"].labels[ZONE] == "b", "label")
        for one in all_of_them:
            one.until_same()
        until(lambda: slices.triggered, "when the slice's pod changed")
        plane.api.delete(*items)
        until(lambda: not any(key.startswith(WHERE) for key in list(all_of_them[2].view)), "pod gone")
        for one in all_of_them:
            one.until_same()
        assert [one.replaced for one in all_of_them] == before, "by events, not by lists"
        assert not any(one.reflector.restarts for one in all_of_them)


def test_nodes_without_spec_and_status(plane: ControlPlane, tmp_path: Path) -> None:
    """The API server sends their metadata alone, in a streamed list, in a watch, in a check and in pages."""
    item = node("reflected-a", {ZONE: "a"}, cidrs=["10.9.1.0/24"], addresses=["10.9.0.1"])
    plane.api.create(item)
    direct, expected = cluster_of(plane), Node("reflected-a", {ZONE: "a", HOSTNAME: "reflected-a"})
    with Proxy(plane.port) as proxy:
        through = ApiClient(kubeconfig=str(plane.kubeconfig_with(tmp_path / "kubeconfig", port=proxy.port)))
        with following(through, Node, resource=NODE_METADATA) as followed:
            until(lambda: followed.view.get("reflected-a") == expected, "the node in the list")
            plane.api.patch(item, {"metadata": {"labels": {ZONE: "b"}}})
            until(lambda: followed.view["reflected-a"].labels[ZONE] == "b", "its label")
            proxy.cut()
            until(lambda: followed.reflector.restarts[CUT], "cut")
            plane.api.patch(item, {"metadata": {"labels": {ZONE: "c"}}})
            until(lambda: followed.view["reflected-a"].labels[ZONE] == "c", "its label after a check", within=RECOVERY)
            assert followed.replaced == 1, "watched on from the last version"
            (listed,) = api_client.list_once(direct, [Node], resources={Node: NODE_METADATA}).deltas
            assert isinstance(listed, Replace)
            assert {one.key: one for one in listed.objects} == followed.view
            assert not any(one.addresses or one.pod_cidrs for one in listed.objects)
            plane.api.delete(item)
            until(lambda: "reflected-a" not in followed.view, "the node gone")


# Faults of the API server


def test_an_api_server_that_is_killed_and_started_again(plane: ControlPlane, followed: Following) -> None:
    """The new watch cache does not know the old version, and sends ERROR 410 in the stream."""
    plane.api.create(service("before"))
    followed.until_same()
    # Else its version could still be the newest of all, which leads somewhere.
    plane.api.patch(namespace(WHERE), {"metadata": {"labels": {"written": "later"}}})
    plane.kill()
    until(lambda: followed.reflector.lost_since is not None, "contact lost")
    assert "reflected/before" in followed.view, "what was known last stays known"
    plane.start()
    plane.api.delete(service("before"))
    plane.api.create(service("after"))
    until(lambda: not followed.reflector.problem, "contact again", within=RECOVERY)
    followed.until_same()
    assert followed.reflector.restarts[EXPIRED]
    # But for two seconds' silence, again and again, and longer pauses each time.
    until(lambda: followed.reflector.lost_since is None, "contact", within=RECOVERY)
    plane.api.delete(service("after"))


def test_an_api_server_that_hangs(plane: ControlPlane, followed: Following, caplog: pytest.LogCaptureFixture) -> None:
    """If connections are open but silent, contact is lost after the silence timeout."""

    def logged() -> bool:
        """Whether the log has a line, even one from before the test."""
        records = [record for phase in ("setup", "call") for record in caplog.get_records(phase)]
        return any("silent for 2 s" in record.getMessage() for record in records)

    plane.stop()
    try:
        until(lambda: followed.reflector.restarts[SILENT] and followed.reflector.lost_since is not None, "silence")
        until(logged, "silence in the log")  # the problem is soon another one
    finally:
        plane.wake()
    plane.api.create(service("woken"))
    followed.until_same()
    plane.api.delete(service("woken"))


def test_connections_cut_in_the_middle_of_a_line(plane: ControlPlane, tmp_path: Path) -> None:
    """At any octet: a cut line is not read as a whole one, and no event is missed."""
    direct = cluster_of(plane)
    with Proxy(plane.port) as proxy:
        through = plane.kubeconfig_with(tmp_path / "kubeconfig", port=proxy.port)
        with following(ApiClient(kubeconfig=str(through)), Service) as followed:
            until(lambda: followed.reflector.listed, "Services listed")
            for octets in (1, 700, 1301):
                proxy.cut_after(octets)
                plane.api.create(service(f"cut-{octets}", annotations={"padding": "x" * 5000}))
                until(lambda: followed.reflector.problem, "cut")
                proxy.cut_after(None)
                plane.api.patch(service("cut-1"), {"metadata": {"labels": {"octets": str(octets)}}})
                followed.until_same(direct)
            assert proxy.cuts >= 3
            assert followed.replaced == 1, "watched on from the last version"
            plane.api.delete(*(service(f"cut-{octets}") for octets in (1, 700, 1301)))
            followed.until_same(direct)


# Rights, and kinds that come and go


def reader(name: str, rules: list[Item]) -> tuple[Item, Item, Item]:
    """Return a ServiceAccount, a ClusterRole and their binding."""
    meta, group = {"name": name, "namespace": WHERE}, "rbac.authorization.k8s.io"
    account: Item = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    role: Item = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding: Item = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", **meta}],
    }
    return account, role, binding


def test_rights_that_lack_are_named_until_they_are_given(plane: ControlPlane, tmp_path: Path) -> None:
    """The message has verb, resource and rule; with the rule, all is well."""
    account, role, binding = reader("reader", READ_SERVICES)
    plane.api.create(account)
    path = plane.kubeconfig_with(tmp_path / "kubeconfig", token=plane.token(WHERE, "reader"))
    cluster = ApiClient(kubeconfig=str(path))
    with following(cluster, Service) as followed:
        until(lambda: "403" in followed.reflector.problem, "refused")
        assert f"system:serviceaccount:{WHERE}:reader" in followed.reflector.problem
        rule = 'a ClusterRole lacks the rule apiGroups: [""], resources: ["services"], verbs: ["list", "watch"]'
        assert rule in followed.reflector.problem
        with pytest.raises(Refused, match="Service: services is forbidden"):
            api_client.list_once(cluster, [Service])
        assert not followed.reflector.listed
        plane.api.create(role, binding)
        until(lambda: followed.reflector.listed, "allowed", within=RECOVERY)
        followed.until_same()
    plane.api.delete(binding, role, account)


def crd(plural: str, kind: str) -> Item:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.topodns.io", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {
            "group": "topodns.io",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def test_a_kind_that_appears_and_vanishes(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its CRD it has no objects; unreadable objects are skipped, with a finding."""
    monkeypatch.setattr("locator.api.list_watch.ABSENT_SECONDS", 0.2)
    definition = crd("podlocators", "PodLocator")
    locator = api_objects.pod_locator("web-0", WHERE, ["10.9.1.1"], nodeName="reflected-a")
    strange = api_objects.item("PodLocator", "web-1", WHERE, ips="10.9.1.2", nodeName="reflected-a")
    resource = RESOURCES[PodLocator]._replace(optional=True)
    with following(cluster_of(plane), PodLocator, resource=resource) as followed:
        until(lambda: followed.reflector.listed, "none")
        assert not followed.reflector.problem
        plane.api.create(definition)
        until(lambda: followed.replaced > 1, "the kind")
        plane.api.create(locator, strange)
        until(lambda: set(followed.view) == {f"{WHERE}/web-0"}, "the locator")
        until(lambda: set(followed.findings) == {f"PodLocator {WHERE}/web-1"}, "the other")
        plane.api.delete(definition)
        until(lambda: not followed.view and not followed.findings, "none again")
        until(lambda: followed.replaced > 2 and not followed.reflector.problem, "the kind known to be gone")


def test_a_kind_whose_older_version_alone_is_served(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects are those of the older version, then those of the newer one, without a moment in which none is known.

    Lists that nobody watches find them, too.
    """
    monkeypatch.setattr("locator.api.list_watch.ABSENT_SECONDS", 0.2)
    definition = yaml.safe_load((mcs_crds() / "multicluster.x-k8s.io_serviceimports.yaml").read_text())
    older, newer = definition["spec"]["versions"]
    assert (older["name"], newer["name"]) == ("v1alpha1", "v1beta1")

    def serve(*served: Item) -> None:
        for version in (older, newer):
            version["served"], version["storage"] = version in served, version == served[0]
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(definition))

    with following(cluster_of(plane), ServiceImport) as followed:
        until(lambda: followed.reflector.listed, "none")
        serve(older)
        imported = {**api_objects.service_import("db", where=WHERE), "apiVersion": "multicluster.x-k8s.io/v1alpha1"}
        plane.kubectl("wait", "--for=condition=Established", "crd", definition["metadata"]["name"])
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(imported))
        until(lambda: list(followed.view) == [f"{WHERE}/db"], "the older version")
        followed.until_same()
        views: list[dict[str, Any]] = []
        monkeypatch.setattr(followed, "take_in", lambda news, take_in=followed.take_in: (  # type: ignore[misc]
            take_in(news), views.append(dict(followed.view))))  # fmt: skip
        before = followed.replaced
        serve(newer)
        until(lambda: followed.replaced > before and not followed.reflector.problem, "the newer version")
        followed.until_same()
        plane.api.delete(imported)
        until(lambda: not followed.view, "its changes")
        assert all(views[:-1]), "what is known stays until it is listed anew"
    plane.api.delete(definition)


# An API server without a watch cache, which forgets at once


def test_pages_whose_continue_token_expires(plane: ControlPlane) -> None:
    """After HTTP 410 it lists again in larger pages, until the list is whole."""
    nodes = [node(f"many-{number}", {}) for number in range(600)]
    plane.kill()
    plane.start("--watch-cache=false", "--etcd-compaction-interval=1s")
    try:
        plane.api.create(*nodes)
        cluster = cluster_of(plane)
        machine = ListWatch(Node, RESOURCES[Node], chance=lambda: 0.0, streaming=False)
        first = machine.next_request()
        assert not machine.page(cluster.request("GET", first.path, query=first.query))
        second = machine.next_request()
        assert second.query["continue"]

        def expired() -> Refused | None:
            plane.api.patch(nodes[0], {"metadata": {"labels": {"turn": str(len(turns))}}})
            turns.append(1)
            try:
                cluster.request("GET", second.path, query=second.query)
            except Refused as error:
                return error
            return None

        turns: list[int] = []
        error = until(expired, "the token expired")
        assert error.status == 410
        machine.refused(error.status, str(error), error.retry_after)
        again = machine.next_request()
        assert again.query == {"limit": "5000"}
        (change,) = machine.page(cluster.request("GET", again.path, query=again.query)).deltas
        assert isinstance(change, Replace)
        assert {obj.name for obj in change.objects} >= {node["metadata"]["name"] for node in nodes}

        with following(cluster, Node) as followed:
            until(lambda: followed.reflector.listed, "Nodes listed")
            plane.api.request("DELETE", plane.api.path("Node"))
            until(lambda: not followed.view, "all deleted", within=RECOVERY)
    finally:
        plane.kill()
        plane.start()


def test_an_api_server_that_is_busy_says_when_to_come_again(plane: ControlPlane, tmp_path: Path) -> None:
    """429 with Retry-After, from the API server's own limit of requests in flight."""
    account, role, binding = reader("busy", READ_SERVICES)
    plane.api.create(account, role, binding)
    token = plane.token(WHERE, "busy")
    plane.kill()
    plane.start("--max-requests-inflight=1")
    try:
        cluster = ApiClient(kubeconfig=str(plane.kubeconfig_with(tmp_path / "kubeconfig", token=token)))

        def ask(_: int) -> Refused | None:
            try:
                cluster.request("GET", RESOURCES[Service].path)
            except Refused as error:
                return error
            return None

        with ThreadPoolExecutor(16) as pool:
            refused = until(lambda: [error for error in pool.map(ask, range(32)) if error is not None], "a busy server")
        assert {(error.status, error.retry_after) for error in refused} == {(429, 1.0)}
    finally:
        plane.kill()
        plane.start()
        plane.api.delete(binding, role, account)
