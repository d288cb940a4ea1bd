# SPDX-License-Identifier: Apache-2.0

"""The webhook with a real API server that calls it, and the real EndpointSlice controller that writes against it."""

from __future__ import annotations

import base64
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
import trio

from locator.api.deltas import Put
from locator.cluster.api_client import ApiClient
from locator.cluster.certificates.secret import CertificateSecret
from locator.cluster.certificates.serving import ServingCertificate
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector
from locator.cluster.leading.writer import CONFLICTS
from locator.control.lease import LeaderElection
from locator.control.reconciler import Reconciler
from locator.control.writes import CONFLICT, DONE, JSON_PATCH, json_patch
from locator.hints.admission import reply_to_untrusted
from locator.hints.rules import HintRules
from locator.hints.slices import HINT_RESOURCES, HintedSlice
from locator.model import Service
from tests.kit import api_objects
from tests.kit.api_objects import HOSTNAME, SERVICE_NAME, TOPOLOGY_KEYS, ZONE, namespace, node
from tests.kit.certificates import issued
from tests.kit.hint_worlds import nodes_of, records_of, rules_of, zones_of
from tests.kit.kube import ApiError, ControlPlane, Item
from tests.kit.this_machine import ROOT
from tests.kit.waiting import until, until_in_trio
from tests.kit.webhook_listener import listening
from tests.kit.webhook_process import AUTHORITY, LABEL, Webhook, configuration, is_called, registered

WITHIN = 10.0  # seconds, from a change until the leader has corrected the hints
CRD = ROOT / "manifests" / "chart" / "files" / "servicepolicies" / "servicepolicies.yaml"
NODES = [node(f"hint-{zone}1", {ZONE: zone}) for zone in "abc"]

Hook = Callable[..., Webhook]


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return a control plane with a node in each of three zones, and the CRD of ServicePolicy."""
    control_plane.kubectl("apply", "--server-side", "-f", str(CRD))
    control_plane.kubectl("wait", "--for=condition=Established", "-f", str(CRD))
    control_plane.api.create(*NODES)
    yield control_plane
    control_plane.api.delete(*NODES)
    control_plane.kubectl("delete", "-f", str(CRD))


@pytest.fixture
def space(plane: ControlPlane) -> Iterator[str]:
    """Return a namespace of the test's own."""
    name = f"hints-{uuid.uuid4().hex[:8]}"
    plane.api.create(namespace(name))
    yield name
    pods = [{**one, "kind": "Pod"} for one in plane.api.items("Pod", name)]
    plane.api.delete(*pods, namespace(name))  # without a kubelet, nobody would end the pods before their namespace


@pytest.fixture
def hook(plane: ControlPlane, space: str) -> Iterator[Hook]:
    """Return a function that starts a webhook; the first one is what the API server calls."""
    with ExitStack() as stack:
        started: list[Webhook] = []

        def start(*flags: str, port: int = 0) -> Webhook:
            own = [f"--tls-secret={space}/certificate", f"--webhook-configuration={space}"]
            shared = [f"--kubeconfig={plane.kubeconfig}", f"--lease={space}/lease"]
            webhook = Webhook([*shared, *(flags or own)], port=port)
            stack.callback(webhook.end)
            if not started:
                stack.enter_context(registered(plane, configuration(space, webhook.port)))
            started.append(webhook)
            return webhook

        yield start


@pytest.fixture
def webhook(plane: ControlPlane, space: str, hook: Hook) -> Webhook:
    """Return a webhook that leads, and that the API server calls."""
    webhook = hook().until_ready().until_leading()
    is_called(plane, webhook, space)
    return webhook


def service(name: str, space: str, **asked: Any) -> Item:
    """Return a Service with cluster IP that asks for hints, and selects the pods of its name."""
    more = {"cluster_ips": (), "labels": {LABEL: "true"}, "selector": {"app": name}, **asked}
    return api_objects.service(name, where=space, **more)


def pod(name: str, on: str, address: int, space: str) -> Item:
    return api_objects.pod(name, [f"10.88.0.{address}"], f"hint-{on}", where=space, labels={"app": "web"})


def slices_of(plane: ControlPlane, space: str, name: str = "web") -> list[Item]:
    return plane.api.items("EndpointSlice", space, labels=f"{SERVICE_NAME}={name}")


def hints(plane: ControlPlane, space: str, name: str = "web") -> dict[str, Any]:
    """Return the zones that each endpoint of a Service is for, by address; None without hints."""
    found = {}
    for one in slices_of(plane, space, name):
        endpoints = one["endpoints"] or []
        found.update(
            zip((endpoint["addresses"][0] for endpoint in endpoints), zones_of({"endpoints": endpoints}), strict=True)
        )
    return found


def until_hinted(plane: ControlPlane, space: str, expected: Mapping[int, Any], name: str = "web") -> None:
    wanted = {f"10.88.0.{number}": zones for number, zones in expected.items()}
    until(lambda: hints(plane, space, name) == wanted, lambda: f"{hints(plane, space, name)}, {wanted} expected")


def first_seen(plane: ControlPlane, space: str, addresses: Sequence[int]) -> list[Any]:
    """Return the hints that a Service's endpoints have when they are seen together for the first time."""
    wanted = {f"10.88.0.{number}" for number in addresses}
    found = until(lambda: (seen := hints(plane, space)).keys() == wanted and seen, f"endpoints {addresses}")
    return [found[f"10.88.0.{number}"] for number in addresses]


def test_hints_stay_while_the_controller_writes(plane: ControlPlane, space: str, webhook: Webhook) -> None:
    """No version of a slice is without them: they come with the write that brings the endpoints.

    They replace Kubernetes' own by trafficDistribution, which may be for nodes, in every write.
    """
    plane.api.create(service("web", space, trafficDistribution="PreferSameNode"), pod("p1", "a1", 1, space))
    assert first_seen(plane, space, [1]) == [["a"]]
    present = [1]
    for number in range(2, 8):
        plane.api.create(pod(f"p{number}", f"{'abc'[number % 3]}1", number, space))
        present.append(number)
        assert first_seen(plane, space, present) == [["abc"[n % 3 if n > 1 else 0]] for n in present]
    found = [endpoint["hints"] for one in slices_of(plane, space) for endpoint in one["endpoints"]]
    assert not any("forNodes" in hints for hints in found)
    plane.api.delete(pod("p1", "a1", 1, space))
    assert first_seen(plane, space, present[1:]) == [["abc"[n % 3]] for n in present[1:]]
    assert webhook.metric("topodns_webhook_requests_total", outcome="patched") >= 7
    assert webhook.metric("topodns_webhook_slices_rewritten_total", result="done") == 0


def test_changes_that_write_no_slice(plane: ControlPlane, space: str, webhook: Webhook) -> None:
    """The leader corrects hints after a change of the constraint, of a policy or of a node, within 10 s."""
    asked = service("web", space, labels={LABEL: "true", "app": "web"})
    plane.api.create(asked, pod("p1", "a1", 1, space), pod("p2", "b1", 2, space))
    until_hinted(plane, space, {1: ["a"], 2: ["b"]})

    def corrected(expected: Mapping[int, Any]) -> None:
        wanted = {f"10.88.0.{number}": zones for number, zones in expected.items()}
        until(lambda: hints(plane, space) == wanted, lambda: f"{hints(plane, space)}: {wanted}", within=WITHIN)

    plane.api.patch(asked, {"metadata": {"annotations": {TOPOLOGY_KEYS: f"{ZONE},*"}}})
    corrected({1: ["a", "c"], 2: ["b", "c"]})
    policy = api_objects.service_policy("racks", "example.com/rack", where=space)
    plane.api.create(policy)
    corrected({1: ["none.topodns.io"], 2: ["none.topodns.io"]})
    for on, rack in ((0, "r1"), (1, "r1"), (2, "r2")):
        plane.api.patch(NODES[on], {"metadata": {"labels": {"example.com/rack": rack}}})
    corrected({1: ["a", "b"], 2: ["a", "b"]})
    plane.api.delete(policy)
    plane.api.patch(asked, {"metadata": {"annotations": {TOPOLOGY_KEYS: None}}})
    corrected({1: ["a"], 2: ["b"]})
    for on in NODES:
        plane.api.patch(on, {"metadata": {"labels": {"example.com/rack": None}}})
    assert webhook.metric("topodns_webhook_slices_rewritten_total", result="done") >= 1


def test_the_own_node_first(plane: ControlPlane, space: str, webhook: Webhook) -> None:
    """The API server keeps hints for nodes; they come and go with the constraint, within 10 s."""
    asked = service("web", space, keys=f"{HOSTNAME},{ZONE},*")
    plane.api.create(asked, pod("p1", "a1", 1, space), pod("p2", "b1", 2, space))

    def found() -> list[Any]:
        return sorted(nodes for one in slices_of(plane, space) if one["endpoints"] for nodes in nodes_of(one))

    own = [["hint-a1"], ["hint-b1"]]
    until(lambda: found() == own, lambda: f"{found()}")
    assert hints(plane, space) == {"10.88.0.1": ["a", "c"], "10.88.0.2": ["b", "c"]}
    for keys, expected in ((f"{ZONE},*", [[], []]), (f"{HOSTNAME},{ZONE},*", own)):
        plane.api.patch(asked, {"metadata": {"annotations": {TOPOLOGY_KEYS: keys}}})
        until(lambda expected=expected: found() == expected, lambda: f"{found()}", within=WITHIN)


def test_without_the_label_hints_go(plane: ControlPlane, space: str, webhook: Webhook) -> None:
    """The EndpointSlice controller takes label and hints off in one write, which the webhook leaves alone."""
    asked = service("web", space)
    plane.api.create(asked, pod("p1", "a1", 1, space))
    until_hinted(plane, space, {1: ["a"]})
    plane.api.patch(asked, {"metadata": {"labels": {LABEL: None}}})
    until_hinted(plane, space, {1: None})
    plane.api.patch(asked, {"metadata": {"labels": {LABEL: "true"}}})
    until_hinted(plane, space, {1: ["a"]})


def test_a_webhook_that_is_killed(plane: ControlPlane, space: str, hook: Hook) -> None:
    """Writes go on without hints, and the next one corrects what it finds."""
    first = hook().until_ready()
    is_called(plane, first, space)
    plane.api.create(service("web", space), pod("p1", "a1", 1, space))
    until_hinted(plane, space, {1: ["a"]})
    first.end(signal.SIGKILL)
    plane.api.delete(api_objects.item("Lease", "lease", space))  # it would expire in 15 s
    plane.api.create(pod("p2", "b1", 2, space))
    assert first_seen(plane, space, [1, 2]) == [None, None]
    again = hook(port=first.port).until_ready()
    assert not [line for line in again.lines if "issued" in line], "the certificate is that of the Secret"
    is_called(plane, again, space)
    until(lambda: hints(plane, space) == {"10.88.0.1": ["a"], "10.88.0.2": ["b"]}, "corrected", within=60.0)
    plane.api.create(pod("p3", "c1", 3, space))
    assert first_seen(plane, space, [1, 2, 3]) == [["a"], ["b"], ["c"]]
    assert again.end() == 0


def test_a_certificate_is_renewed_under_load(plane: ControlPlane, space: str) -> None:
    """Every write passes the webhook, while its certificate, which lives for seconds, is replaced."""
    serving, rules = ServingCertificate(), rules_of([NODES[0], service("web", space)])
    client = ApiClient(kubeconfig=str(plane.kubeconfig))
    secret = CertificateSecret(client, (space, "certificate"), space, serving, lifetime=9.0, look=0.2, settle=1.0)
    one = api_objects.endpoint_slice("web", 0, [], where=space, labels={LABEL: "true"})
    seen: set[object] = set()

    def write(number: int) -> None:
        endpoints = [api_objects.endpoint(f"10.88.1.{number % 250 + 1}", nodeName="hint-a1", zone="a")]
        written = plane.api.patch(one, {"endpoints": endpoints})
        assert zones_of(written) == [["a"]], f"write {number}, certificate {len(seen)}"

    async def main() -> None:
        async with listening(partial(reply_to_untrusted, rules=rules), serving) as listener:
            with registered(plane, configuration(space, listener.port)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(secret.run)
                    await until_in_trio(lambda: serving.pair is not None)
                    plane.api.create(one)
                    await until_in_trio(lambda: secret.health().ok)
                    with trio.fail_after(WITHIN):  # the API server hears of the configuration a moment after
                        while not listener.counts.requests["patched"]:
                            with suppress(AssertionError):
                                await trio.to_thread.run_sync(write, 0)
                    number = 0
                    while len(seen) < 2:
                        number += 1
                        await trio.to_thread.run_sync(write, number)
                        seen.add(serving.pair)
                    nursery.cancel_scope.cancel()
        assert listener.counts.requests["patched"] > number

    trio.run(main)


def test_a_version_that_was_not_seen_is_not_written(plane: ControlPlane, space: str) -> None:
    """The API server refuses a patch of CAs and one of hints with what counts as a conflict."""
    hooks = configuration(space, 1)
    one = api_objects.endpoint_slice("web", 0, [], where=space)
    plane.api.create(one)
    with registered(plane, hooks):
        seen = {item["kind"]: plane.api.request("GET", plane.api.path_of(item)) for item in (hooks, one)}
        versions = {kind: item["metadata"]["resourceVersion"] for kind, item in seen.items()}
        for item in (hooks, one):
            plane.api.patch(item, {"metadata": {"labels": {"changed": "meanwhile"}}})
        hints = json_patch(HINT_RESOURCES[HintedSlice], f"{space}/web-0", versions["EndpointSlice"], [])
        cas = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": versions[hooks["kind"]]},
            {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": AUTHORITY},
        ]
        for item, patch, statuses in ((hooks, cas, (409,)), (one, hints.body, CONFLICTS[JSON_PATCH])):
            with pytest.raises(ApiError) as caught:
                plane.api.request("PATCH", plane.api.path_of(item), patch, media=JSON_PATCH)
            assert caught.value.status in statuses


def test_a_replica_that_has_not_heard_of_a_change(plane: ControlPlane, space: str) -> None:
    """The leader's write passes it, and comes back as it was. The leader tries until that replica knows, too."""
    asked = service("web", space, selector=None, keys=f"{ZONE},*")
    rules, serving = rules_of([*NODES, service("web", space)]), ServingCertificate()
    authority, pair = issued(["127.0.0.1"], time.time(), 86400.0)
    serving.use(pair)
    election = LeaderElection("alone", space, "behind", duration=60.0, deadline=30.0)
    cluster = ApiClient(kubeconfig=str(plane.kubeconfig))
    elector = LeaderElector(cluster, election, writes="EndpointSlices")
    controller = Controller(cluster, elector, HintRules(), field_manager="tests")
    endpoints = [api_objects.endpoint("10.88.3.1", nodeName="hint-a1", zone="a")]
    one = api_objects.endpoint_slice("web", 0, endpoints, where=space, labels={LABEL: "true"})
    plane.api.create(asked, one)

    def is_hinted() -> bool:
        return zones_of(plane.api.patch(one, {"metadata": {"annotations": {"tried": uuid.uuid4().hex}}})) == [["a"]]

    async def main() -> None:
        bundle = base64.b64encode(authority).decode()
        async with listening(partial(reply_to_untrusted, rules=rules), serving) as listener:
            with registered(plane, configuration(space, listener.port, caBundle=bundle)):
                while not await trio.to_thread.run_sync(is_hinted):
                    pass
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(elector.lead, controller.run)
                    await until_in_trio(lambda: controller.writer.writes["patch", CONFLICT] > 0)
                    (known,) = records_of([asked])[Service]
                    Reconciler(rules).apply(Put(known))
                    await until_in_trio(lambda: controller.writer.writes["patch", DONE] > 0)
                    nursery.cancel_scope.cancel()

    trio.run(main)
    (left,) = slices_of(plane, space)
    assert zones_of(left) == [["a", "b", "c"]]
