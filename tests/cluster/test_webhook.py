# SPDX-License-Identifier: Apache-2.0

"""The webhook with a real API server that calls it, and the real EndpointSlice controller that writes against it."""

from __future__ import annotations

import base64
import signal
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import dns.message
import pytest
import trio

from dnsserver.http import connections
from dnsserver.http import webhook as https
from dnsserver.http.conversation import Limits
from dnsserver.metrics.webhook import WebhookCounts
from dnsserver.net.bounds import HeldOctets
from locator.api.deltas import Put
from locator.cluster.api_client import ApiClient
from locator.cluster.certificates.secret import CertificateSecret
from locator.cluster.certificates.serving import ServingCertificate
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector
from locator.control.lease import LeaderElection
from locator.control.reconciler import Reconciler
from locator.control.writes import CONFLICT, DONE
from locator.hints.admission import reply_to_untrusted
from locator.hints.rules import HintRules
from locator.hints.slices import HintedSlice
from locator.model import Service
from tests.kit import api_objects
from tests.kit.api_objects import SERVICE_NAME, TOPOLOGY_KEYS, ZONE, namespace, node
from tests.kit.certificates import issued
from tests.kit.hint_worlds import records_of, rules_of, zones_of
from tests.kit.in_memory import ask_in_memory, responder_of
from tests.kit.kube import ApiError, ControlPlane, Item
from tests.kit.this_machine import ROOT
from tests.kit.waiting import until, until_in_trio
from tests.kit.webhook_process import AUTHORITY, LABEL, Webhook, configuration, is_called, registered
from tests.oracle.kube_proxy import endpoints_on

WITHIN = 10.0  # seconds, from a change until the leader has corrected the hints
CRD = ROOT / "manifests" / "chart" / "files" / "servicepolicies" / "servicepolicies.yaml"
NODES = [node(f"hint-{zone}1", {ZONE: zone}) for zone in "abc"]
HOMELESS = node("hint-nowhere", {})

Hook = Callable[..., Webhook]


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return a control plane with a node in each of three zones, one in none, and the CRD of ServicePolicy."""
    control_plane.kubectl("apply", "--server-side", "-f", str(CRD))
    control_plane.kubectl("wait", "--for=condition=Established", "-f", str(CRD))
    control_plane.api.create(*NODES, HOMELESS)
    yield control_plane
    control_plane.api.delete(*NODES, HOMELESS)
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


def pod(name: str, on: str, address: int, space: str, app: str = "web") -> Item:
    return api_objects.pod(name, [f"10.88.0.{address}"], f"hint-{on}", where=space, labels={"app": app})


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
    """No version of a slice is without them: they come with the write that brings the endpoints."""
    plane.api.create(service("web", space), pod("p1", "a1", 1, space))
    assert first_seen(plane, space, [1]) == [["a"]]
    present = [1]
    for number in range(2, 8):
        plane.api.create(pod(f"p{number}", f"{'abc'[number % 3]}1", number, space))
        present.append(number)
        assert first_seen(plane, space, present) == [["abc"[n % 3 if n > 1 else 0]] for n in present]
    plane.api.delete(pod("p1", "a1", 1, space))
    assert first_seen(plane, space, present[1:]) == [["abc"[n % 3]] for n in present[1:]]
    assert webhook.metric("topodns_webhook_requests_total", outcome="patched") >= 7
    assert webhook.metric("topodns_webhook_slices_rewritten_total", result="done") == 0


def test_an_endpoint_without_zone(plane: ControlPlane, space: str, webhook: Webhook) -> None:
    """It is for no zone, and the hints of the others stay; one that is not ready has none."""
    plane.api.create(service("web", space), pod("p1", "a1", 1, space))
    until_hinted(plane, space, {1: ["a"]})
    plane.api.create(pod("p2", "nowhere", 2, space))
    assert first_seen(plane, space, [1, 2]) == [["a"], ["none.topodns.io"]]
    starting = api_objects.pod("p3", ["10.88.0.3"], "hint-nowhere", where=space, labels={"app": "web"}, ready=False)
    plane.api.create(starting)
    assert first_seen(plane, space, [1, 2, 3]) == [["a"], ["none.topodns.io"], None]


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
    spec = {"serviceSelector": {"matchLabels": {"app": "web"}}, "topology": {"key": "example.com/rack"}}
    spec["topology"]["mode"] = "required"
    policy = api_objects.item("ServicePolicy", "racks", space, spec=spec)
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


def test_kubernetes_own_hints_are_replaced(plane: ControlPlane, space: str, webhook: Webhook) -> None:
    """Those by trafficDistribution, which may be for nodes, give way, in every write."""
    plane.api.create(service("web", space, trafficDistribution="PreferSameNode", keys=f"{ZONE},*"))
    for number, on in ((1, "a1"), (2, "b1")):
        plane.api.create(pod(f"p{number}", on, number, space))
    assert first_seen(plane, space, [1, 2]) == [["a", "c"], ["b", "c"]]
    (one,) = slices_of(plane, space)
    assert not any("forNodes" in endpoint["hints"] for endpoint in one["endpoints"])


def test_without_the_label_hints_go(plane: ControlPlane, space: str, webhook: Webhook) -> None:
    """The EndpointSlice controller takes label and hints off in one write, which the webhook leaves alone."""
    asked = service("web", space)
    plane.api.create(asked, pod("p1", "a1", 1, space))
    until_hinted(plane, space, {1: ["a"]})
    plane.api.patch(asked, {"metadata": {"labels": {LABEL: None}}})
    until_hinted(plane, space, {1: None})
    plane.api.patch(asked, {"metadata": {"labels": {LABEL: "true"}}})
    until_hinted(plane, space, {1: ["a"]})


@pytest.mark.parametrize("keys", [f"{ZONE},*", ZONE], ids=["soft", "hard"])
def test_kube_proxy_does_what_dns_answers(plane: ControlPlane, space: str, webhook: Webhook, keys: str) -> None:
    """On each node, for a Service with a cluster IP and a headless one; unless DNS has no answer for a hard one."""
    plane.api.create(
        service("web", space, keys=keys),
        api_objects.service("peers", where=space, keys=keys, selector={"app": "web"}),
        *(pod(f"p{number}", "ab"[number % 2] + "1", number, space) for number in (1, 2, 3)),
        *(pod(f"client-{zone}", f"{zone}1", 10 + ord(zone) - ord("a"), space, app="client") for zone in "abc"),
    )
    own = {1: ["b"], 2: ["a"], 3: ["b"]}
    until_hinted(plane, space, own if keys == ZONE else {number: [*zones, "c"] for number, zones in own.items()})
    until(lambda: len(hints(plane, space, "peers")) == 3, "the headless Service's endpoints")
    responder = responder_of(plane.dump())
    for number, where in enumerate(NODES):
        reply = ask_in_memory(
            responder, dns.message.make_query(f"peers.{space}.svc.cluster.local", "A"), f"10.88.0.{10 + number}"
        )
        assert reply is not None
        answered = {record.address for answer in reply.answer for record in answer}
        assert bool(answered) == (keys != ZONE or number < 2)
        everything = {f"10.88.0.{address}" for address in own}
        assert endpoints_on(where, slices_of(plane, space)) == (answered or everything)


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


def test_two_replicas_share_a_certificate(plane: ControlPlane, space: str, hook: Hook) -> None:
    """One issues it, both serve it, and one of them leads; when that one ends, the other takes over at once."""
    webhooks = [hook(), hook()]
    for one in webhooks:
        one.until_ready()
    assert len([line for one in webhooks for line in one.lines if "certificate: issued" in line]) == 1
    ends = {one.metric("topodns_webhook_certificate_expiry_timestamp_seconds") for one in webhooks}
    assert len(ends) == 1 and 0.0 not in ends

    def leads(webhook: Webhook) -> float:
        return webhook.metric("topodns_leading", lease=f"{space}/lease")

    until(lambda: sum(map(leads, webhooks)) == 1.0, "one leads")
    leader, other = sorted(webhooks, key=leads, reverse=True)
    assert leader.end() == 0
    until(lambda: leads(other) == 1.0, "the other leads", within=WITHIN)


def test_a_certificate_is_renewed_under_load(plane: ControlPlane, space: str) -> None:
    """Every write passes the webhook, while its certificate, which lives for seconds, is replaced."""
    serving, counts, rules = ServingCertificate(), WebhookCounts(), rules_of([NODES[0], service("web", space)])
    app = https.application(partial(reply_to_untrusted, rules=rules), counts)
    client = ApiClient(kubeconfig=str(plane.kubeconfig))
    secret = CertificateSecret(client, (space, "certificate"), space, serving, lifetime=9.0, look=0.2, settle=1.0)
    one = api_objects.endpoint_slice("web", 0, [], where=space, labels={LABEL: "true"})
    seen: set[object] = set()

    def write(number: int) -> None:
        endpoints = [api_objects.endpoint(f"10.88.1.{number % 250 + 1}", nodeName="hint-a1", zone="a")]
        written = plane.api.patch(one, {"endpoints": endpoints})
        assert zones_of(written) == [["a"]], f"write {number}, certificate {len(seen)}"

    async def main() -> None:
        ending, sock = trio.Event(), socket.socket()
        sock.bind(("127.0.0.1", 0))
        with registered(plane, configuration(space, sock.getsockname()[1])):
            async with trio.open_nursery() as nursery:
                limits = Limits(HeldOctets(Counter()), https.IDLE_SECONDS, https.GRACE_SECONDS)
                serve = partial(connections.serve, sock, app, Counter(), limits, tls=serving.context, until=ending.wait)
                await nursery.start(serve)
                nursery.start_soon(secret.run)
                await until_in_trio(lambda: serving.pair is not None)
                plane.api.create(one)
                await until_in_trio(lambda: secret.health().ok)
                with trio.fail_after(WITHIN):  # the API server hears of the configuration a moment after
                    while not counts.requests["patched"]:
                        with suppress(AssertionError):
                            await trio.to_thread.run_sync(write, 0)
                number = 0
                while len(seen) < 2:
                    number += 1
                    await trio.to_thread.run_sync(write, number)
                    seen.add(serving.pair)
                nursery.cancel_scope.cancel()
        assert counts.requests["patched"] > number

    trio.run(main)


def test_cas_are_not_put_into_a_version_that_was_not_seen(plane: ControlPlane, space: str) -> None:
    """The API server refuses the patch with 409, as ``CertificateSecret`` expects, and not as an invalid one."""
    item = configuration(space, 1)
    with registered(plane, item):
        path = plane.api.path_of(item)
        seen = plane.api.request("GET", path)["metadata"]["resourceVersion"]
        plane.api.patch(item, {"metadata": {"labels": {"changed": "meanwhile"}}})
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": seen},
            {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": AUTHORITY},
        ]
        with pytest.raises(ApiError) as caught:
            plane.api.request("PATCH", path, patch, media="application/json-patch+json")
    assert caught.value.status == 409


class Meddling(ApiClient):
    """A client before whose first writes of a slice somebody else is faster: changes it, and then deletes another.

    The write goes on once ``rules`` has the change, so that the next one need not fail, too.
    """

    rules: HintRules

    def __init__(self, plane: ControlPlane, *slices: Item) -> None:
        super().__init__(kubeconfig=str(plane.kubeconfig))
        self._plane = plane
        self._changed, self._deleted = slices
        self._met: set[str] = set()

    def request(self, method: str, path: str, **more: Any) -> bytes:
        if method == "PATCH" and path not in self._met:
            self._met.add(path)
            if path == self._plane.api.path_of(self._changed):
                changed = self._plane.api.patch(self._changed, {"metadata": {"annotations": {"changed": "meanwhile"}}})
                version = changed["metadata"]["resourceVersion"]
                until(lambda: self._stored_version() == version, "the watch brings the change")
            elif path == self._plane.api.path_of(self._deleted):
                self._plane.api.delete(self._deleted)
        return super().request(method, path, **more)

    def _stored_version(self) -> str:
        about = self._changed["metadata"]
        stored = self.rules.objects.get(HintedSlice, f"{about['namespace']}/{about['name']}")
        return stored.version if stored else ""


def test_a_slice_that_changes_or_goes_meanwhile(plane: ControlPlane, space: str) -> None:
    """The leader does not write over a version that it has not seen; it tries again. What is gone needs no write."""
    endpoints = [api_objects.endpoint("10.88.2.1", nodeName="hint-a1", zone="a")]
    labels = {LABEL: "true"}
    slices = [api_objects.endpoint_slice("web", name, endpoints, where=space, labels=labels) for name in ("new", "old")]
    plane.api.create(service("web", space, selector=None), *slices)
    election = LeaderElection("alone", space, "meddling", duration=60.0, deadline=30.0)

    async def main() -> Controller:
        cluster = Meddling(plane, *slices)
        elector = LeaderElector(cluster, election, writes="EndpointSlices")
        cluster.rules = HintRules()
        controller = Controller(cluster, elector, cluster.rules, field_manager="tests")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(elector.lead, controller.run)
            await until_in_trio(lambda: controller.writer.writes["patch", DONE] == 2)
            nursery.cancel_scope.cancel()
        return controller

    writes = trio.run(main).writer.writes
    assert writes == {("patch", DONE): 2, ("patch", CONFLICT): 1}
    (left,) = slices_of(plane, space)
    assert left["metadata"]["annotations"]["changed"] == "meanwhile"
    assert zones_of(left) == [["a"]]


def test_a_replica_that_has_not_heard_of_a_change(plane: ControlPlane, space: str) -> None:
    """The leader's write passes it, and comes back as it was. The leader tries until that replica knows, too."""
    asked = service("web", space, selector=None, keys=f"{ZONE},*")
    rules, counts, serving = rules_of([*NODES, service("web", space)]), WebhookCounts(), ServingCertificate()
    authority, pair = issued(["127.0.0.1"], time.time(), 86400.0)
    serving.use(pair)
    app = https.application(partial(reply_to_untrusted, rules=rules), counts)
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
        ending, sock = trio.Event(), socket.socket()
        sock.bind(("127.0.0.1", 0))
        bundle = base64.b64encode(authority).decode()
        with registered(plane, configuration(space, sock.getsockname()[1], caBundle=bundle)):
            async with trio.open_nursery() as nursery:
                limits = Limits(HeldOctets(Counter()), https.IDLE_SECONDS, https.GRACE_SECONDS)
                serve = partial(connections.serve, sock, app, Counter(), limits, tls=serving.context, until=ending.wait)
                await nursery.start(serve)
                while not await trio.to_thread.run_sync(is_hinted):
                    pass
                nursery.start_soon(elector.lead, controller.run)
                await until_in_trio(lambda: controller.writer.writes["patch", CONFLICT] > 0)
                (known,) = records_of([asked])[Service]
                Reconciler(rules).apply(Put(known))
                await until_in_trio(lambda: controller.writer.writes["patch", DONE] > 0)
                nursery.cancel_scope.cancel()

    trio.run(main)
    (left,) = slices_of(plane, space)
    assert zones_of(left) == [["a", "b", "c"]]
