# SPDX-License-Identifier: Apache-2.0

"""Decoding, compared with the official Kubernetes client: both read the same from an object."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from typing import Any

import pytest

with warnings.catch_warnings():  # the client's own business: it imports what is deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from kubernetes import client as k8s

from locator.api.dump import ListOf, OtherKind, entries
from locator.endpoints import compact
from locator.ip import Network
from locator.ip import parse_address as ip
from locator.model import Endpoint, EndpointSlice, Finding, Hints, Node, Pod, Port, Service
from locator.topology.annotations import has_mode_auto

API = k8s.ApiClient()


def written(thing: Any) -> bytes:
    """Return an object as the API server would send it."""
    return json.dumps(API.sanitize_for_serialization(thing)).encode()


def decoded(thing: Any) -> list[Any]:
    document = thing if isinstance(thing, bytes) else written(thing)
    return [item for _, item in entries(document) if not isinstance(item, OtherKind | ListOf)]


META = k8s.V1ObjectMeta(
    name="x",
    namespace="shop",
    uid="5e3b1c2a",
    resource_version="12345",
    generation=2,
    creation_timestamp="2026-01-02T03:04:05Z",
    labels={"app": "x"},
    annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    owner_references=[k8s.V1OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="x", uid="1")],
    managed_fields=[k8s.V1ManagedFieldsEntry(manager="kubelet", operation="Update", fields_v1={"f:status": {}})],
    finalizers=["example.com/x"],
)


CREATED = json.loads(written(META))["creationTimestamp"]


def meta(**fields: Any) -> k8s.V1ObjectMeta:
    """Return metadata as real objects have it, with some fields replaced."""
    return k8s.V1ObjectMeta(**{name: getattr(META, name) for name in META.attribute_map} | fields)


def pod(**status: Any) -> k8s.V1Pod:
    return k8s.V1Pod(
        api_version="v1",
        kind="Pod",
        metadata=meta(),
        spec=k8s.V1PodSpec(
            node_name="a1",
            host_network=status.pop("host_network", None),
            containers=[k8s.V1Container(name="c", image="i", ports=[k8s.V1ContainerPort(container_port=80)])],
            tolerations=[k8s.V1Toleration(operator="Exists")],
        ),
        status=k8s.V1PodStatus(
            conditions=[k8s.V1PodCondition(type="Ready", status="True")],
            container_statuses=[
                k8s.V1ContainerStatus(name="c", image="i", image_id="", ready=True, restart_count=0)
            ],
            **status,
        ),
    )  # fmt: skip


PODS = [
    ("two-families",
     pod(phase="Running", pod_ip="10.0.0.1", pod_ips=[k8s.V1PodIP(ip="10.0.0.1"), k8s.V1PodIP(ip="fd00::1")]),
     {"addresses": (ip("10.0.0.1"), ip("fd00::1"))}),
    ("one-address", pod(phase="Running", pod_ip="10.0.0.1"), {"addresses": (ip("10.0.0.1"),)}),
    ("no-address-yet", pod(phase="Pending"), {"phase": "Pending"}),
    ("succeeded", pod(phase="Succeeded", pod_ip="10.0.0.1"), {"addresses": (ip("10.0.0.1"),), "phase": "Succeeded"}),
    ("failed", pod(phase="Failed"), {"phase": "Failed"}),
    ("host-network", pod(phase="Running", pod_ip="10.0.0.1", host_network=True),
     {"addresses": (ip("10.0.0.1"),), "host_network": True}),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "fields"), [row[1:] for row in PODS], ids=[row[0] for row in PODS])
def test_pod(thing: k8s.V1Pod, fields: dict[str, Any]) -> None:
    """Of a pod, topodns reads addresses, node, and whether it runs."""
    assert decoded(thing) == [Pod("shop", "x", node="a1", created=CREATED, **fields)]


def test_node() -> None:
    """Of a node, topodns reads labels, addresses and pod CIDRs; it ignores heartbeats and images."""

    def node(**fields: Any) -> k8s.V1Node:
        return k8s.V1Node(
            api_version="v1",
            kind="Node",
            metadata=meta(
                name="a1",
                namespace=None,
                labels={"failure-domain.beta.kubernetes.io/zone": "a", "example.com/rack": "r1"},
                annotations={"projectcalico.org/IPv4Address": "10.0.0.5/24", "node.alpha.kubernetes.io/ttl": "0"},
            ),
            spec=k8s.V1NodeSpec(pod_cidr="10.1.0.0/24", pod_cidrs=["10.1.0.0/24", "fd00:1::/64"]),
            status=k8s.V1NodeStatus(
                addresses=[
                    k8s.V1NodeAddress(type="InternalIP", address="10.0.0.4"),
                    k8s.V1NodeAddress(type="ExternalIP", address="192.0.2.4"),
                    k8s.V1NodeAddress(type="InternalIP", address="fd00::4"),
                    k8s.V1NodeAddress(type="Hostname", address="a1"),
                    k8s.V1NodeAddress(type="InternalDNS", address="a1.internal"),
                ],
                **fields,
            ),
        )

    quiet = k8s.V1NodeCondition(type="Ready", status="True", last_heartbeat_time="2026-01-01T00:00:00Z")
    beat = k8s.V1NodeCondition(type="Ready", status="True", last_heartbeat_time="2026-01-01T00:00:10Z")
    expected = Node(
        name="a1",
        labels={"topology.kubernetes.io/zone": "a", "example.com/rack": "r1", "kubernetes.io/hostname": "a1"},
        addresses=(ip("10.0.0.4"), ip("192.0.2.4"), ip("fd00::4"), ip("10.0.0.5")),
        pod_cidrs=(Network(ip("10.1.0.0"), 24), Network(ip("fd00:1::"), 64)),
    )
    images = [k8s.V1ContainerImage(names=["i"], size_bytes=1)]
    assert decoded(node(conditions=[quiet])) == decoded(node(conditions=[beat], images=images)) == [expected]


def service(**spec: Any) -> k8s.V1Service:
    annotations = {"topodns.io/topology-keys": "a,*", "other.io/x": "y"}
    return k8s.V1Service(
        api_version="v1", kind="Service", metadata=meta(annotations=annotations), spec=k8s.V1ServiceSpec(**spec)
    )


SERVICES = [
    ("headless", service(cluster_ip="None", cluster_ips=["None"], type="ClusterIP"), {"headless": True}),
    ("headless-by-the-older-field", service(cluster_ip="None"), {"headless": True}),
    ("cluster-ips", service(cluster_ip="10.96.0.1", cluster_ips=["10.96.0.1", "fd00::1"], type="NodePort"),
     {"cluster_ips": (ip("10.96.0.1"), ip("fd00::1"))}),
    ("not-allocated-yet", service(type="LoadBalancer"), {}),
    ("external-name", service(type="ExternalName", external_name="example.com"), {"alias": "example.com"}),
    ("external-name-with-more", service(type="ExternalName", external_name="WWW.Example.com.", cluster_ip="None",
                                        ports=[k8s.V1ServicePort(name="web", port=80)]), {"alias": "www.example.com"}),
    ("external-name-with-underscores", service(type="ExternalName", external_name="_x.example"),
     {"alias": "_x.example"}),
    ("external-name-of-an-address", service(type="ExternalName", external_name="192.0.2.7"), {"alias": ""}),
    ("external-name-of-an-ipv6-address", service(type="ExternalName", external_name="2001:db8::7"), {"alias": ""}),
    ("not-an-external-name", service(cluster_ip="10.96.0.1", external_name="example.com"),
     {"cluster_ips": (ip("10.96.0.1"),)}),
    ("ports", service(cluster_ip="None", ports=[
        k8s.V1ServicePort(name="HTTP", port=80, protocol="TCP", target_port="web"),
        k8s.V1ServicePort(name="dns", port=53, protocol="UDP"),
        k8s.V1ServicePort(port=7)]),
     {"headless": True, "ports": (Port("http", 80), Port("dns", 53, "udp"), Port("", 7))}),
    ("policy", service(cluster_ip="10.96.0.1", external_traffic_policy="Local"),
     {"cluster_ips": (ip("10.96.0.1"),), "external_traffic_policy": "Local"}),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "fields"), [row[1:] for row in SERVICES], ids=[row[0] for row in SERVICES])
def test_service(thing: k8s.V1Service, fields: dict[str, Any]) -> None:
    """Of a Service, topodns reads addresses, ports and constraints; of annotations, its own."""
    (found,) = decoded(thing)
    created = "2026-01-02T03:04:05+00:00"
    annotations = {"topodns.io/topology-keys": "a,*"}
    expected = Service("shop", "x", created=created, labels={"app": "x"}, annotations=annotations, **fields)
    assert {name: getattr(found, name) for name in Service.__struct_fields__ if hasattr(expected, name)} == {
        name: getattr(expected, name) for name in Service.__struct_fields__
    }


def test_service_of_kubernetes_1_17_to_1_21() -> None:
    """topodns reads ``spec.topologyKeys``, which the official client does not know."""
    raw = API.sanitize_for_serialization(service(cluster_ip="None"))
    raw["spec"]["topologyKeys"] = ["kubernetes.io/hostname", "*"]
    (found,) = decoded(json.dumps(raw).encode())
    assert found.topology_keys == ("kubernetes.io/hostname", "*")


@pytest.mark.parametrize(
    ("annotations", "auto"),
    [
        ({}, False),
        ({"topology-mode": "Auto"}, True),
        ({"topology-aware-hints": "auto"}, True),
        ({"topology-mode": "Auto", "topology-aware-hints": "disabled"}, False),
        ({"topology-mode": "Auto", "topology-aware-hints": ""}, False),
    ],
    ids=["none", "newer", "older", "older-first", "older-though-empty"],
)
def test_traffic_distribution(annotations: dict[str, str], auto: bool) -> None:
    """topodns reads ``trafficDistribution``, and the topology annotation that Kubernetes reads beside it."""
    raw = API.sanitize_for_serialization(service(cluster_ip="None", traffic_distribution="PreferSameNode"))
    raw["metadata"]["annotations"] = {f"service.kubernetes.io/{name}": value for name, value in annotations.items()}
    (found,) = decoded(json.dumps(raw).encode())
    assert found.annotations == raw["metadata"]["annotations"]
    assert (found.traffic_distribution, has_mode_auto(found)) == ("PreferSameNode", auto)


def slice_of(endpoints: Iterable[k8s.V1Endpoint], **fields: Any) -> k8s.V1EndpointSlice:
    more = {"labels": {"kubernetes.io/service-name": "web"}, **fields.pop("metadata", {})}
    return k8s.V1EndpointSlice(
        api_version="discovery.k8s.io/v1",
        kind="EndpointSlice",
        metadata=meta(**more),
        address_type=fields.pop("address_type", "IPv4"),
        endpoints=list(endpoints),
        **fields,
    )


ENDPOINTS = [
    ("plain", k8s.V1Endpoint(addresses=["10.0.0.1"]), {}),
    ("ready-unsaid", k8s.V1Endpoint(addresses=["10.0.0.1"], conditions=k8s.V1EndpointConditions()), {}),
    ("ready", k8s.V1Endpoint(addresses=["10.0.0.1"], conditions=k8s.V1EndpointConditions(ready=True)), {}),
    ("unready",
     k8s.V1Endpoint(addresses=["10.0.0.1"], conditions=k8s.V1EndpointConditions(ready=False, serving=True)),
     {"ready": False}),
    ("node-and-zone", k8s.V1Endpoint(addresses=["10.0.0.1"], node_name="a1", zone="a",
                                     hints=k8s.V1EndpointHints(for_zones=[k8s.V1ForZone(name="b")])),
     {"node": "a1", "slice_labels": {"topology.kubernetes.io/zone": "a"}, "hints": Hints(zones=("b",))}),
    ("hints",
     k8s.V1Endpoint(addresses=["10.0.0.1"],
                    hints=k8s.V1EndpointHints(for_nodes=[k8s.V1ForNode(name="a1"), k8s.V1ForNode(name="a2")],
                                              for_zones=[k8s.V1ForZone(name="a"), k8s.V1ForZone(name="b")])),
     {"hints": Hints(("a1", "a2"), ("a", "b"))}),
    ("empty-hints", k8s.V1Endpoint(addresses=["10.0.0.1"], hints=k8s.V1EndpointHints(for_zones=[])), {}),
    ("deprecated-topology", k8s.V1Endpoint(addresses=["10.0.0.1"], deprecated_topology={"rack": "r1"}),
     {"slice_labels": {"rack": "r1"}}),
    ("hostname", k8s.V1Endpoint(addresses=["10.0.0.1"], hostname="web-0"), {"hostname": "web-0"}),
    ("pod", k8s.V1Endpoint(addresses=["10.0.0.1"],
                           target_ref=k8s.V1ObjectReference(kind="Pod", namespace="shop", name="web-0", uid="1")),
     {"pod": "web-0"}),
    ("pod-of-another-namespace",
     k8s.V1Endpoint(addresses=["10.0.0.1"],
                    target_ref=k8s.V1ObjectReference(kind="Pod", namespace="lab", name="web-0")),
     {"pod": "web-0", "pod_namespace": "lab"}),
    ("node", k8s.V1Endpoint(addresses=["10.0.0.1"], target_ref=k8s.V1ObjectReference(kind="Node", name="a1")),
     {"target_node": "a1"}),
    ("target-that-is-neither",
     k8s.V1Endpoint(addresses=["10.0.0.1"], target_ref=k8s.V1ObjectReference(kind="Machine", name="a1")), {}),
    ("terminating",
     k8s.V1Endpoint(addresses=["10.0.0.1"], conditions=k8s.V1EndpointConditions(ready=False, terminating=True)),
     {"ready": False, "terminating": True}),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "fields"), [row[1:] for row in ENDPOINTS], ids=[row[0] for row in ENDPOINTS])
def test_endpoint(thing: k8s.V1Endpoint, fields: dict[str, Any]) -> None:
    """Of an endpoint, topodns reads addresses, node, zone, and readiness (ready if not stated)."""
    ports = [k8s.DiscoveryV1EndpointPort(name="http", port=80, protocol="TCP")]
    (found,) = decoded(slice_of([thing], ports=ports))
    expected = Endpoint((ip("10.0.0.1"),), ports=(Port("http", 80),), **fields)
    assert found == EndpointSlice("shop", "x", "web", compact((expected,)))


def test_slices_without_endpoints() -> None:
    """A slice may be empty, hold host names instead of addresses, or have no Service."""
    assert decoded(slice_of([])) == [EndpointSlice("shop", "x", "web")]
    names = slice_of([k8s.V1Endpoint(addresses=["example.com"])], address_type="FQDN")
    assert decoded(names) == [EndpointSlice("shop", "x", "web")]
    assert decoded(slice_of([], metadata={"labels": None})) == [EndpointSlice("shop", "x", None)]


def test_nulls_are_absences() -> None:
    """Go writes null for an empty list or map."""
    for kind, version in (("Pod", "v1"), ("Node", "v1"), ("Service", "v1"), ("EndpointSlice", "discovery.k8s.io/v1")):
        raw = {"kind": kind, "apiVersion": version, "metadata": {"name": "x", "labels": None, "annotations": None},
               "spec": None, "status": None, "endpoints": None, "ports": None}  # fmt: skip
        (found,) = decoded(json.dumps(raw).encode())
        assert not isinstance(found, Finding) and found.name == "x"
