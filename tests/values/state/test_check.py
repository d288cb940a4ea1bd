# SPDX-License-Identifier: Apache-2.0

"""``check``: which findings a cluster has, and that a healthy one has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from dnsserver.programs.from_settings import store_of
from locator.api.deltas import Drop, Put
from locator.findings import ClusterCode
from locator.ip import network_text
from locator.model import ERROR, INFO, WARNING, Finding, object_key
from locator.places.subnet_proposals import proposed_subnets
from tests.kit.api_objects import (
    HOSTNAME,
    MANAGED_BY,
    MIN_ENDPOINTS,
    RACK,
    SERVICE_NAME,
    SLICE_CONTROLLER,
    SOURCE_CLUSTER,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    endpoints,
    external,
    imported_slice,
    item,
    namespace,
    node,
    pod,
    pod_locator,
    service,
    service_import,
)
from tests.kit.in_memory import NOW, ClustersInMemory, checked, dump_of, settings_of, snapshot_of, take_in
from tests.kit.this_machine import ROOT

SCENARIOS = ROOT / "tests" / "scenarios"
CLEAN = sorted((ROOT / "tests" / "clean_clusters").glob("*.yaml"))

RACKS = [node("a1", {ZONE: "a", RACK: "r1"}), node("b1", {ZONE: "b", RACK: "r2"})]
BARE = [node("a1"), node("b1")]  # no zones, as kind makes nodes
DNS = [
    namespace("shop"),
    service("kube-dns", cluster_ips=("10.96.0.10",), where="kube-system"),
    endpoint_slice("kube-dns", 0, [endpoint("10.0.9.53", nodeName="a1")], where="kube-system"),
]
HEALTHY = [*RACKS, *DNS]
HOSTS = [*(node(name, {HOSTNAME: name}) for name in ("a1", "b1")), *DNS]
SPREAD = [endpoint("10.0.1.1", nodeName="a1"), endpoint("10.0.2.1", nodeName="b1")]
FEDERATED = {"topodns.io/federated": "true"}
MULTICLUSTER = {"multicluster": "clusterset.local"}
IMPORTED = [service_import("web"), imported_slice("web", "east", SPREAD)]
POD = {"kind": "Pod", "name": "web-0"}
GARDENER = "endpoint-slice-hints.resources.gardener.cloud/consider"
ANNOTATION, FIELD = f"metadata.annotations[{TOPOLOGY_KEYS}]", "spec.topologyKeys"
DISTRIBUTION, POLICY, LABELS = "spec.trafficDistribution", "spec.topology.key", "metadata.labels"


def web(
    endpoints: Sequence[Item] = SPREAD, *, name: str = "web", labels: Mapping[str, str] | None = None, **fields: Any
) -> list[Item]:
    """Return a headless Service and its slice."""
    return [service(name, labels={"app": name, **(labels or {})}, **fields), endpoint_slice(name, 1, endpoints)]


def virtual(endpoints: Sequence[Item] = SPREAD, **fields: Any) -> list[Item]:
    """Return a Service with a cluster IP, and its slice."""
    return web(endpoints, cluster_ips=("10.96.0.7",), **fields)


def policy(key: str, mode: str | None = "required", *, name: str = "near", app: str = "web") -> Item:
    """Return a ServicePolicy for the Service *app*."""
    topology = {"key": key} | ({"mode": mode} if mode is not None else {})
    return item("ServicePolicy", name, "shop", spec={"serviceSelector": {"matchLabels": {"app": app}},
                                                     "topology": topology})  # fmt: skip


def hinted(zone: str) -> dict[str, Any]:
    return {"hints": {"forZones": [{"name": zone}]}}


class Row(NamedTuple):
    """A cluster, and the findings in it: code, severity, object, field, and a part of the message or expectation."""

    name: str
    cluster: list[Item]
    found: Sequence[tuple[str, str, str, str, str]] = ()
    flags: Mapping[str, Any] = {}


def key_missing(severity: str, where: str, field: str, key: str) -> tuple[str, str, str, str, str]:
    return "KeyOnNoNode", severity, where, field, f"no node has the label {key}"


WEB, NEAR = "Service shop/web", "ServicePolicy shop/near"
TYPO = "topology.kubernetes.io/zones"

INVALID = [
    Row("invalid-annotation", [*HEALTHY, *web(keys="*,a")],
        [("InvalidTopologyKeys", ERROR, WEB, ANNOTATION, "last key")]),
    Row("invalid-field", [*HEALTHY, *web(field=["a", "a"])],
        [("InvalidTopologyKeys", ERROR, WEB, FIELD, "twice")]),
    Row("invalid-and-not-headless", [*HEALTHY, *virtual(keys="*,a")],
        [("InvalidTopologyKeys", ERROR, WEB, ANNOTATION, "last key")]),
    Row("invalid-policy", [*HEALTHY, *web(), policy("a b")],
        [("InvalidServicePolicy", ERROR, NEAR, POLICY, "'a b'"),
         ("InvalidServicePolicy", ERROR, WEB, LABELS, "ServicePolicy near")]),
    Row("invalid-policy-for-no-headless-service", [*HEALTHY, *virtual(), policy("a b")],
        [("InvalidServicePolicy", ERROR, NEAR, POLICY, "'a b'"),
         ("ConstraintWithoutEffect", WARNING, NEAR, "spec.serviceSelector", "no headless Service")]),
    Row("unreadable", [*HEALTHY, *web(), node("c1", {ZONE: "a"}, addresses=["10.0.0.300"])],
        [("UnreadableObject", ERROR, "Node c1", "status.addresses[0].address", "10.0.0.300")]),
    Row("policy-without-mode", [*HEALTHY, *web(), policy(ZONE, None)],
        [("PolicyWithoutMode", WARNING, NEAR, "spec.topology.mode", "Required, Preferred, Ignored")]),
    Row("policy-written-ignored", [*HEALTHY, *web(), policy(ZONE, "ignored")]),
    Row("policy-for-nothing", [*HEALTHY, *web(), policy(ZONE, app="none")],
        [("PolicySelectsNothing", WARNING, NEAR, "spec.serviceSelector", "no Service")]),
    Row("empty-annotation", [*HEALTHY, *web(keys=" ")],
        [("EmptyTopologyKeys", WARNING, WEB, ANNOTATION, "empty")]),
    Row("unknown-annotation", [*HEALTHY, *web(annotations={"topodns.io/topologykeys": ZONE})],
        [("UnknownAnnotation", WARNING, WEB, "metadata.annotations[topodns.io/topologykeys]", TOPOLOGY_KEYS)]),
    Row("label-as-annotation", [*HEALTHY, *web(annotations={"topodns.io/hints": "true"})],
        [("UnknownAnnotation", WARNING, WEB, "metadata.annotations[topodns.io/hints]", "the label topodns.io/hints")]),
    Row("annotation-as-label", [*HEALTHY, *web(labels={MIN_ENDPOINTS: "3"})],
        [("UnknownAnnotation", WARNING, WEB, f"metadata.labels[{MIN_ENDPOINTS}]", f"the annotation {MIN_ENDPOINTS}")]),
    Row("unknown-label", [*HEALTHY, *web(labels={"topodns.io/hint": "true"})],
        [("UnknownAnnotation", WARNING, WEB, "metadata.labels[topodns.io/hint]", "expected topodns.io/hints [")]),
    Row("hints-label-with-another-value", [*HEALTHY, *web(labels={"topodns.io/hints": "yes"})],
        [("UnknownAnnotation", WARNING, WEB, "metadata.labels[topodns.io/hints]", "'yes' counts as false")]),
    Row("federated-with-another-value", [*HEALTHY, *web(annotations={"topodns.io/federated": "True"})],
        [("UnknownAnnotation", WARNING, WEB, "metadata.annotations[topodns.io/federated]", "true or false")]),
    Row("health", [*HEALTHY, *web(annotations={"topodns.io/health": "ping"})],
        [("InvalidHealth", WARNING, WEB, "metadata.annotations[topodns.io/health]", "'ping' counts as none")]),
    Row("health-at-another-port", [*HEALTHY, *web(annotations={"topodns.io/health": "http:10250/pods"})],
        [("InvalidHealth", WARNING, WEB, "metadata.annotations[topodns.io/health]",
          "10250 is none of the Service's own TCP ports, expected PORT to be one of 80")]),
    Row("min-endpoints", [*HEALTHY, *web(keys=f"{ZONE},*", least="0")],
        [("InvalidMinEndpoints", WARNING, WEB, f"metadata.annotations[{MIN_ENDPOINTS}]", "'0' counts as 1")]),
]  # fmt: skip

KEYS = [
    Row("hard", [*HEALTHY, *web(keys=TYPO)], [key_missing(ERROR, WEB, ANNOTATION, TYPO)]),
    Row("nearest", [*HEALTHY, *web(keys=TYPO)], [("KeyOnNoNode", ERROR, WEB, ANNOTATION, f"expected {ZONE} [")]),
    Row("soft", [*HEALTHY, *web(keys=f"{TYPO},{ZONE},*")], [key_missing(WARNING, WEB, ANNOTATION, TYPO)]),
    Row("field", [*HEALTHY, *web(field=[ZONE, TYPO])], [key_missing(ERROR, WEB, FIELD, TYPO)]),
    Row("two", [*HEALTHY, *web(keys="a,b,*")],
        [key_missing(WARNING, WEB, ANNOTATION, "a"), key_missing(WARNING, WEB, ANNOTATION, "b")]),
    Row("required", [*HEALTHY, *web(), policy(TYPO)], [key_missing(ERROR, NEAR, POLICY, TYPO)]),
    Row("preferred", [*HEALTHY, *web(), policy(TYPO, "preferred"), policy(ZONE, name="p")],
        [key_missing(WARNING, NEAR, POLICY, TYPO)]),
    Row("policy-of-many", [*HEALTHY, *web(), service("other", labels={"app": "web"}), policy(TYPO)],
        [key_missing(ERROR, NEAR, POLICY, TYPO)]),
    Row("old-name", [*HEALTHY, *web([], keys="failure-domain.beta.kubernetes.io/zone")]),
    Row("policy-on-peers", [*HEALTHY, *web(publishNotReadyAddresses=True), policy(TYPO)],
        [("ConstraintWithoutEffect", WARNING, WEB, LABELS, TOPOLOGY_KEYS)]),
    Row("policy-overridden", [*HEALTHY, *web(keys=ZONE, publishNotReadyAddresses=True), policy(TYPO)],
        [("SourceNotHeard", INFO, WEB, LABELS, "comes first")]),
    Row("hostname-is-never-missing", [*BARE, *DNS, *web(keys=HOSTNAME)]),
    Row("cluster", [*HEALTHY, *web(keys=f"topodns.io/cluster,{ZONE},*")]),
    Row("invalid", [*HEALTHY, *web(keys=f"*,{TYPO}")], [("InvalidTopologyKeys", ERROR, WEB, ANNOTATION, "last key")]),
    Row("overridden", [*HEALTHY, *web(keys=ZONE, field=[TYPO])],
        [("SourceNotHeard", INFO, WEB, FIELD, "the annotation")]),
    Row("without-effect", [*HEALTHY, *virtual(keys=TYPO)],
        [("ConstraintWithoutEffect", WARNING, WEB, ANNOTATION, "not headless")]),
    Row("ignored-policy", [*HEALTHY, *web(), policy(TYPO, "ignored")]),
    Row("distribution", [*BARE, *DNS, *web(trafficDistribution="PreferSameZone")],
        [key_missing(WARNING, WEB, DISTRIBUTION, ZONE)]),
    Row("distribution-of-a-cluster-ip", [*BARE, *DNS, *virtual(trafficDistribution="PreferSameZone")]),
    Row("distribution-ignored", [*BARE, *DNS, *web(trafficDistribution="PreferSameZone")], (),
        {"traffic-distribution": "ignore"}),
    Row("hints", [*BARE, *DNS, *web([endpoint("10.0.1.1", nodeName="a1", **hinted("a")),
                                     endpoint("10.0.2.1", nodeName="b1", **hinted("b"))])],
        [key_missing(WARNING, WEB, "endpoints[].hints", ZONE)]),
    Row("zone-default", [*BARE, *DNS, *web()],
        [("KeyOnNoNode", ERROR, "", "--default-topology-keys", f"cluster.local: no node has the label {TYPO}")],
        {"default-topology-keys": f"cluster.local={HOSTNAME},{TYPO}"}),
    Row("soft-zone-default", [*BARE, *DNS, *web()],
        [("KeyOnNoNode", WARNING, "", "--default-topology-keys", f"expected {HOSTNAME} [")],
        {"default-topology-keys": f"cluster.local={ZONE},*"}),
    Row("subnets-carry-no-endpoints", [*HEALTHY, *web(keys=TYPO)], [key_missing(ERROR, WEB, ANNOTATION, TYPO)],
        {"subnet": f"192.0.2.0/24={TYPO}=a"}),
    Row("slice's-own-word", [*BARE, *DNS, *web([endpoint("10.0.1.1", zone="a"), endpoint("10.0.2.1", zone="b")],
                                               keys=ZONE)]),
    Row("no-node-known", [*DNS, *web(keys=TYPO)], (), {"client-source": "pods"}),
    Row("locators-alone", [*DNS, *web([endpoint("10.0.1.1", targetRef=POD)], keys=TYPO),
                           pod_locator("web-0", "shop", ["10.0.1.1"], nodeName="a1", nodeLabels={ZONE: "a"})],
        [key_missing(ERROR, WEB, ANNOTATION, TYPO), ("SingleEndpoint", INFO, WEB, ANNOTATION, "only one")],
        {"client-source": "podlocators"}),
    Row("locators-carry-it", [*DNS, *web([endpoint("10.0.1.1", targetRef=POD)], keys=ZONE),
                              pod_locator("web-0", "shop", ["10.0.1.1"], nodeName="a1", nodeLabels={ZONE: "a"})],
        [("SingleEndpoint", INFO, WEB, ANNOTATION, "only one")], {"client-source": "podlocators"}),
    Row("for-hints", [*HEALTHY, *virtual(keys=TYPO, labels={"topodns.io/hints": "true"})],
        [key_missing(ERROR, WEB, ANNOTATION, TYPO)]),
]  # fmt: skip

EFFECT = [
    Row("annotation-on-a-cluster-ip", [*HEALTHY, *virtual(keys=ZONE)],
        [("ConstraintWithoutEffect", WARNING, WEB, ANNOTATION, "clusterIP: None")]),
    Row("field-on-a-cluster-ip", [*HEALTHY, *virtual(field=[ZONE])],
        [("ConstraintWithoutEffect", WARNING, WEB, FIELD, "not headless")]),
    Row("annotation-and-policy", [*HEALTHY, *virtual(keys=ZONE), *web(name="api"), policy(ZONE),
                                  policy(ZONE, name="api", app="api")],
        [("ConstraintWithoutEffect", WARNING, WEB, ANNOTATION, "not headless"),
         ("ConstraintWithoutEffect", WARNING, NEAR, "spec.serviceSelector", "no headless Service")]),
    Row("min-endpoints-on-a-cluster-ip", [*HEALTHY, *virtual(least="2")],
        [("ConstraintWithoutEffect", WARNING, WEB, f"metadata.annotations[{MIN_ENDPOINTS}]", "not headless")]),
    Row("federated", [*HEALTHY, *virtual(keys=ZONE, annotations=FEDERATED)]),
    Row("hints-wanted", [*HEALTHY, *virtual(keys=ZONE, labels={GARDENER: "true"})]),
    Row("hints-not-wanted", [*HEALTHY, *virtual(keys=ZONE, labels={GARDENER: "false"})],
        [("ConstraintWithoutEffect", WARNING, WEB, ANNOTATION, "not headless")]),
    Row("distribution-on-a-cluster-ip", [*HEALTHY, *virtual(trafficDistribution="PreferClose")]),
    Row("hints-on-a-cluster-ip", [*HEALTHY, *virtual(endpoints=[endpoint("10.0.1.1", nodeName="a1", **hinted("a"))])]),
    Row("policy-on-peers", [*HEALTHY, *web(publishNotReadyAddresses=True), policy(ZONE)],
        [("ConstraintWithoutEffect", WARNING, WEB, LABELS, TOPOLOGY_KEYS)]),
    Row("policy-for-cluster-ips-alone", [*HEALTHY, *virtual(), policy(ZONE)],
        [("ConstraintWithoutEffect", WARNING, NEAR, "spec.serviceSelector", "no headless Service")]),
    Row("policy-for-headless-ones-too",
        [*HEALTHY, *web(), service("db", labels={"app": "web"}, cluster_ips=("10.96.0.8",)), policy(ZONE)]),
    Row("policy-for-federated-ones", [*HEALTHY, *virtual(annotations=FEDERATED), policy(ZONE)]),
]  # fmt: skip

OVERRIDDEN = [
    Row("annotation-beside-a-policy", [*HEALTHY, *web(keys=ZONE), policy(ZONE)],
        [("SourceNotHeard", INFO, WEB, ANNOTATION, "ServicePolicy near comes first")]),
    Row("all-three", [*HEALTHY, *web(keys=ZONE, field=[ZONE]), policy(ZONE)],
        [("SourceNotHeard", INFO, WEB, ANNOTATION, "near"), ("SourceNotHeard", INFO, WEB, FIELD, "near")]),
    Row("policy-beside-the-word-of-peers", [*HEALTHY, *web(keys=ZONE, publishNotReadyAddresses=True), policy(ZONE)],
        [("SourceNotHeard", INFO, WEB, LABELS, f"the annotation {TOPOLOGY_KEYS}")]),
    Row("invalid-one", [*HEALTHY, *web(keys="*,a"), policy(ZONE)],
        [("SourceNotHeard", INFO, WEB, ANNOTATION, "invalid, too: ")]),
    Row("beside-an-ignored-policy", [*HEALTHY, *web(keys=ZONE), policy(ZONE, "ignored")]),
    Row("distribution-overridden", [*HEALTHY, *web(keys=ZONE, trafficDistribution="PreferClose")]),
]  # fmt: skip

NO_RACK = node("c1", {ZONE: "c"})
ON_C = [endpoint("10.0.3.1", nodeName="c1")]
NOBODY = "no ready endpoint has the label example.com/rack: nobody gets any"

GAIN = [
    Row("nobody-gets-any", [*HEALTHY, NO_RACK, *web(ON_C, keys=RACK)],
        [("KeyOnNoEndpoint", ERROR, WEB, ANNOTATION, NOBODY)]),
    Row("nobody-gets-any-by-policy", [*HEALTHY, NO_RACK, *web(ON_C), policy(RACK)],
        [("KeyOnNoEndpoint", ERROR, WEB, LABELS, NOBODY)]),
    Row("another-key-may-match", [*HEALTHY, NO_RACK, *web([*ON_C, *ON_C], keys=f"{RACK},{ZONE}")],
        [("SingleEndpoint", INFO, WEB, ANNOTATION, "only one")]),
    Row("soft-keys-of-no-endpoint", [*HEALTHY, NO_RACK, *web(ON_C, keys=f"{RACK},*")],
        [("SingleEndpoint", INFO, WEB, ANNOTATION, "only one")]),
    Row("in-one-zone", [*HEALTHY, *web([endpoint("10.0.1.1", nodeName="a1"), endpoint("10.0.1.2", nodeName="a1")],
                                       keys=f"{ZONE},*")],
        [("EndpointsInOneDomain", INFO, WEB, ANNOTATION, f"all 2 ready endpoints have {ZONE}=a")]),
    Row("in-one-zone-on-two-nodes",
        [*HEALTHY, node("a2", {ZONE: "a"}),
         *web([endpoint("10.0.1.1", nodeName="a1"), endpoint("10.0.1.2", nodeName="a2")], keys=f"{HOSTNAME},*")]),
    Row("one-is-not-ready", [*HEALTHY, *web([SPREAD[0], endpoint("10.0.2.1", nodeName="b1", ready=False)],
                                            keys=f"{ZONE},*")],
        [("SingleEndpoint", INFO, WEB, ANNOTATION, "only one endpoint is ready")]),
    Row("both-families-of-one",
        [*HEALTHY, *web([endpoint("10.0.1.1", nodeName="a1", targetRef=POD)], trafficDistribution="PreferClose"),
         endpoint_slice("web", 2, [endpoint("fd00::1", nodeName="a1", targetRef=POD)], family="IPv6")],
        [("SingleEndpoint", INFO, WEB, DISTRIBUTION, "only one")]),
    Row("none-ready", [*HEALTHY, *web([], keys=ZONE)]),
    Row("by-policy", [*HEALTHY, *web(SPREAD[:1]), policy(ZONE)], [("SingleEndpoint", INFO, WEB, LABELS, "only one")]),
    Row("by-hints", [*HEALTHY, *web([endpoint(f"10.0.1.{host}", nodeName="a1", **hinted("a")) for host in (1, 2)])],
        [("EndpointsInOneDomain", INFO, WEB, "endpoints[].hints", f"{ZONE}=a")]),
    Row("any-alone", [*HEALTHY, *web(SPREAD[:1], keys="*")]),
    Row("unconstrained", [*HEALTHY, *web(SPREAD[:1])]),
    Row("too-many", [*HEALTHY, *web([endpoint(f"10.1.{row // 250}.{row % 250 + 1}") for row in range(1300)])],
        [("AnswerTooLarge", WARNING, WEB, "", "1300 SRV records, of which a reply holds about 11")]),
    Row("of-a-cluster-ip", [*HEALTHY, *virtual(endpoints=SPREAD[:1], trafficDistribution="PreferClose")]),
    Row("invalid-keys", [*HEALTHY, *web(SPREAD[:1], keys=f"{ZONE},{ZONE}")],
        [("InvalidTopologyKeys", ERROR, WEB, ANNOTATION, "twice")]),
]  # fmt: skip

AUTO, AWARE = "service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"
MODE, HINTS = f"metadata.annotations[{AUTO}]", "endpoints[].hints"
ON_A, ON_B = (
    endpoint(f"10.0.{number}.1", nodeName=f"{zone}1", **hinted(zone)) for number, zone in ((1, "a"), (2, "b"))
)
FOR_B = endpoint("10.0.1.2", nodeName="a1", **hinted("b"))
PEERS = {"publishNotReadyAddresses": True}
EACH = "expected hints at each ready endpoint, not at some alone"
LACKING = ("HintsIncomplete", WARNING, WEB, HINTS, "1 of 2 ready endpoints have none for a zone: 10.0.2.1 on node b1")
TWIN = ("TwinWithoutConstraint", INFO, "Service shop/all", "spec.selector", "Service shop/web")


def region(name: str, zone: str, of: str) -> Item:
    return node(name, {ZONE: zone, "topology.kubernetes.io/region": of})


NEARNESS = [
    Row("hints-of-some", [*HEALTHY, *web([ON_A, SPREAD[1]], trafficDistribution="PreferClose")], [LACKING]),
    Row("hints-of-some-alone", [*HEALTHY, *web([ON_A, SPREAD[1]])], [LACKING]),
    Row("hints-of-some-for-nodes",
        [*HEALTHY, *web([{**ON_A, "hints": {"forNodes": [{"name": "a1"}]}}, SPREAD[1]])],
        [("HintsIncomplete", WARNING, WEB, HINTS, "none for a node: 10.0.2.1")]),
    Row("hints-of-some-for-nodes-are-of-some-slices",
        [*HEALTHY, *web([{**ON_A, "hints": {"forNodes": [{"name": "a1"}]}}, SPREAD[1]])],
        [("HintsIncomplete", WARNING, WEB, HINTS, EACH)]),
    Row("hints-of-some-where-all-have-zones", [*HEALTHY, *web([ON_A, SPREAD[1]])],
        [("HintsIncomplete", WARNING, WEB, HINTS, EACH)]),
    Row("hints-of-some-where-one-has-no-zone", [*HEALTHY, *web([ON_A, endpoint("10.0.9.1")])],
        [("HintsIncomplete", WARNING, WEB, HINTS, "which needs a node with a zone")]),
    Row("hints-of-some-without-endpoint-records", [*HEALTHY, *web([ON_A, SPREAD[1]])], (), {"no-endpoints": True}),
    Row("hints-of-many-missing",
        [*HEALTHY, *web([ON_A, *(endpoint(f"10.0.2.{host}", nodeName="b1") for host in range(1, 8))])],
        [("HintsIncomplete", WARNING, WEB, HINTS, "10.0.2.5 on node b1 and 2 more")]),
    Row("hints-of-all-that-are-ready",
        [*HEALTHY, *web([ON_A, ON_B, endpoint("10.0.2.2", nodeName="b1", ready=False)])]),
    Row("hints-of-some-and-keys", [*HEALTHY, *web([ON_A, SPREAD[1]], keys=ZONE)]),
    Row("hints-of-some-and-a-policy", [*HEALTHY, *web([ON_A, SPREAD[1]]), policy(ZONE)]),
    Row("hints-of-some-behind-a-cluster-ip", [*HEALTHY, *virtual([ON_A, SPREAD[1]])]),
    Row("hints-of-some-ignored", [*HEALTHY, *web([ON_A, SPREAD[1]])], (), {"traffic-distribution": "ignore"}),
    Row("hints-of-one-family",
        [*HEALTHY, *web([{**ON_A, "targetRef": POD}, {**ON_B, "targetRef": {"kind": "Pod", "name": "web-1"}}]),
         endpoint_slice("web", 6, [endpoint("fd00::1", nodeName="a1", targetRef=POD)], family="IPv6")]),
    Row("auto", [*HEALTHY, *web(annotations={AUTO: "Auto"})],
        [("AutoWithoutHints", INFO, WEB, MODE, "spec.trafficDistribution")]),
    Row("auto-by-its-older-name", [*HEALTHY, *web(annotations={AWARE: "auto"})],
        [("AutoWithoutHints", INFO, WEB, MODE, TOPOLOGY_KEYS)]),
    Row("auto-beside-the-field", [*HEALTHY, *web(annotations={AUTO: "Auto"}, trafficDistribution="PreferClose")],
        [("AutoWithoutHints", INFO, WEB, MODE, "no ready endpoint a hint")]),
    Row("auto-with-hints", [*HEALTHY, *web([ON_A, ON_B], annotations={AUTO: "Auto"})]),
    Row("auto-without-endpoints", [*HEALTHY, *web([], annotations={AUTO: "Auto"})]),
    Row("auto-and-keys", [*HEALTHY, *web(annotations={AUTO: "Auto"}, keys=ZONE)]),
    Row("auto-on-a-cluster-ip", [*HEALTHY, *virtual(annotations={AUTO: "Auto"})]),
    Row("auto-switched-off", [*HEALTHY, *web(annotations={AUTO: "Auto", AWARE: "Disabled"})]),
    Row("auto-ignored", [*HEALTHY, *web(annotations={AUTO: "Auto"})], (), {"traffic-distribution": "ignore"}),
    Row("hints-elsewhere", [*HEALTHY, *web([ON_A, ON_B, FOR_B])],
        [("HintsElsewhere", INFO, WEB, HINTS, "1 of 3 ready endpoints name other zones: 10.0.1.2 on node")]),
    Row("hints-here-and-elsewhere",
        [*HEALTHY, *web([ON_A, {**ON_B, "hints": {"forZones": [{"name": "a"}, {"name": "b"}]}}])]),
    Row("hints-elsewhere-overridden", [*HEALTHY, *web([ON_A, ON_B, FOR_B], keys=ZONE)]),
    Row("hints-elsewhere-behind-a-cluster-ip", [*HEALTHY, *virtual([ON_A, ON_B, FOR_B])]),
    Row("peers-and-the-field", [*HEALTHY, *web(trafficDistribution="PreferSameZone", **PEERS)],
        [("ConstraintWithoutEffect", WARNING, WEB, DISTRIBUTION, TOPOLOGY_KEYS)]),
    Row("peers-with-hints", [*HEALTHY, *web([ON_A, ON_B], trafficDistribution="PreferSameZone", **PEERS)],
        [("ConstraintWithoutEffect", WARNING, WEB, DISTRIBUTION, "not ready")]),
    Row("peers-and-auto", [*HEALTHY, *web(annotations={AUTO: "Auto"}, **PEERS)],
        [("ConstraintWithoutEffect", WARNING, WEB, MODE, TOPOLOGY_KEYS)]),
    Row("peers-with-hints-that-nobody-asked-for", [*HEALTHY, *web([ON_A, ON_B], **PEERS)]),
    Row("peers-with-keys", [*HEALTHY, *web(trafficDistribution="PreferSameZone", keys=ZONE, **PEERS)]),
    Row("peers-and-the-field-ignored", [*HEALTHY, *web(trafficDistribution="PreferSameZone", **PEERS)], (),
        {"traffic-distribution": "ignore"}),
    Row("peers-of-a-cluster-ip", [*HEALTHY, *virtual(trafficDistribution="PreferSameZone", **PEERS)]),
    Row("twin-of-a-cluster-ip",
        [*HEALTHY, *virtual([ON_A, ON_B], trafficDistribution="PreferClose"), *web(name="all")], [TWIN]),
    Row("twin-whose-zone-has-a-default", [*HEALTHY, *web(keys=f"{ZONE},*"), *web(SPREAD[::-1], name="all")], (),
        {"default-topology-keys": f"cluster.local={ZONE},*"}),
    Row("twin-of-peers", [*HEALTHY, *web(keys=f"{ZONE},*"), *web(SPREAD[::-1], name="all", **PEERS)]),
    Row("twin-of-a-headless-one", [*HEALTHY, *web(keys=f"{ZONE},*"), *web(SPREAD[::-1], name="all")], [TWIN]),
    Row("twin-by-pods",
        [*HEALTHY, *web([{**SPREAD[0], "targetRef": POD}, SPREAD[1]], keys=f"{ZONE},*"),
         *web([endpoint("fd00::1", nodeName="a1", targetRef=POD), SPREAD[1]], name="all")], [TWIN]),
    Row("twin-that-asks", [*HEALTHY, *web(keys=f"{ZONE},*"), *web(name="all", trafficDistribution="PreferClose")]),
    Row("twin-with-other-pods", [*HEALTHY, *web(keys=f"{ZONE},*"), *web(SPREAD[:1], name="all")]),
    Row("twin-of-nobody-who-asks", [*HEALTHY, *virtual(), *web(name="all")]),
    Row("twin-with-a-cluster-ip", [*HEALTHY, *web(keys=f"{ZONE},*"), *virtual(name="all")]),
    Row("twin-without-pods", [*HEALTHY, *web([], keys=f"{ZONE},*"), *web([], name="all")]),
    Row("zone-in-two-regions", [region("n1", "a", "r1"), region("n2", "a", "r1"), region("a1", "a", "r2"), *DNS],
        [("ZoneInTwoRegions", WARNING, "Node a1", f"metadata.labels[{ZONE}]", "r1 (n1 and 1 more), r2 (a1)")]),
    Row("zone-in-one-region", [region("a1", "a", "r1"), region("n2", "a", "r1"), node("n3", {ZONE: "a"}), *DNS]),
    Row("empty-zones", [node("n1", {ZONE: ""}), node("n2", {ZONE: "", "failure-domain.beta.kubernetes.io/zone": "a"}),
                        *DNS],
        [("NodeWithoutZone", WARNING, "Node n1", f"metadata.labels[{ZONE}]", "node without zone")]),
    Row("all-zones-empty", [node("a1", {ZONE: ""}), node("b1", {ZONE: ""}), *DNS, *web(keys=f"{ZONE},*")],
        [key_missing(WARNING, WEB, ANNOTATION, ZONE)]),
    Row("empty-regions", [region("a1", "a", ""), region("n2", "a", "r1"), *DNS]),
]  # fmt: skip

GONE = endpoint("10.0.3.1", nodeName="gone")
SLICE = "EndpointSlice shop/web-1"

PLACES = [
    Row("no-dns", [*RACKS, *web()], [("NoTrustedForwarder", WARNING, "", "", "no trusted forwarder")]),
    Row("forwarder-given", [*RACKS, *web()], (), {"trusted-forwarder": "10.0.9.53/32"}),
    Row("one-node-without-zone", [*HEALTHY, node("c1")],
        [("NodeWithoutZone", WARNING, "Node c1", f"metadata.labels[{ZONE}]", "node without zone")]),
    Row("no-node-with-zone", [*BARE, *DNS]),
    Row("endpoint-on-an-unknown-node", [*HEALTHY, *web([*SPREAD, GONE], keys=f"{ZONE},*")],
        [("EndpointWithoutLocation", WARNING, SLICE, "endpoints[2].nodeName", "there is no Node gone")]),
    Row("endpoint-anywhere", [*HEALTHY, *web([*SPREAD, endpoint("10.0.3.1")], trafficDistribution="PreferClose")],
        [("EndpointWithoutLocation", WARNING, SLICE, "endpoints[2].nodeName", "endpoint without location")]),
    Row("endpoint-of-a-pod-without-zones",
        [*HOSTS, pod("web-0", ["10.0.3.1"], "a1"),
         *web([*SPREAD, endpoint("10.0.3.1", targetRef=POD)], keys=HOSTNAME)]),
    Row("endpoint-at-a-node-without-zones",
        [*HOSTS, node("c1", {HOSTNAME: "c1"}, addresses=["10.0.3.1"]),
         *web([*SPREAD, endpoint("10.0.3.1")], keys=HOSTNAME)]),
    Row("endpoint-of-an-unknown-pod",
        [*HEALTHY, *web([*SPREAD, endpoint("10.0.3.1", targetRef={**POD, "namespace": "east"})], keys=ZONE)],
        [("EndpointWithoutLocation", WARNING, SLICE, "endpoints[2].nodeName", "a targetRef, a zone, or --subnet")]),
    Row("endpoint-that-terminates-at-an-address-of-the-living",
        [*HEALTHY, *web([{"addresses": ["10.0.1.1"], "conditions": {"ready": True, "terminating": True}}, *SPREAD],
                        keys=ZONE)]),
    Row("endpoint-with-a-zone", [*HEALTHY, *web([*SPREAD, {**GONE, "zone": "a"}], keys=ZONE)]),
    Row("endpoint-of-an-unconstrained-service", [*HEALTHY, *web([*SPREAD, GONE])]),
    Row("endpoint-of-a-cluster-ip", [*HEALTHY, *virtual(endpoints=[*SPREAD, GONE], trafficDistribution="PreferClose")]),
    Row("lying-pod-cidr",
        [*HEALTHY, *web(), pod("web-0", ["10.0.1.1"], "a1"), node("c1", {ZONE: "a"}, cidrs=["10.0.1.0/24"])],
        [("PodCidrDistrusted", WARNING, "Node c1", "spec.podCIDRs", "10.0.1.1")]),
    Row("slice-without-service", [*HEALTHY, endpoint_slice("web", 1, SPREAD)],
        [("SliceWithoutService", WARNING, SLICE, "metadata.labels[kubernetes.io/service-name]", "shop/web")]),
    Row("imported-slices-without-multicluster", [*HEALTHY, *IMPORTED, imported_slice("gone", "east", SPREAD)]),
    Row("imported-slices", [*HEALTHY, *IMPORTED], flags=MULTICLUSTER),
    Row("imported-slice-without-import", [*HEALTHY, imported_slice("gone", "east", SPREAD)],
        [("SliceWithoutService", WARNING, "EndpointSlice shop/gone-east-1",
          "metadata.labels[multicluster.kubernetes.io/service-name]", "there is no ServiceImport shop/gone")],
        MULTICLUSTER),
    Row("slice-of-a-service-and-of-no-import", [*HEALTHY, service("web"), imported_slice(
        "gone", "east", SPREAD, labels={SERVICE_NAME: "web"})], flags=MULTICLUSTER),
    Row("headless-import-without-slices", [*HEALTHY, service_import("db"), service_import("vip", ips=["10.97.0.1"])],
        [("ServiceImportWithoutSlices", WARNING, "ServiceImport shop/db", "spec.type", "no slice was imported")],
        MULTICLUSTER),
    Row("invalid-keys-of-an-import", [*HEALTHY, service_import("web", keys="*,rack"), IMPORTED[1]],
        [("InvalidTopologyKeys", ERROR, "ServiceImport shop/web", ANNOTATION, "'*' is key 1 of 2")], MULTICLUSTER),
    Row("keys-of-a-cluster-set-ip", [*HEALTHY, service_import("web", keys=ZONE, ips=["10.97.0.1"])],
        [("ConstraintWithoutEffect", WARNING, "ServiceImport shop/web", ANNOTATION, "type: Headless")], MULTICLUSTER),
    Row("keys-of-a-cluster-ip-that-count-for-its-import", [*HEALTHY, *virtual(keys=ZONE), *IMPORTED],
        flags=MULTICLUSTER),
    Row("endpoints-cut-off", [*HEALTHY, service("web"), endpoints(
        "web", {"addresses": [{"ip": "10.0.1.1", "nodeName": "a1"}]},
        annotations={"endpoints.kubernetes.io/over-capacity": "truncated"})],
        [("EndpointsTruncated", WARNING, "Endpoints shop/web", "subsets", "missing")]),
    Row("twice", [*HEALTHY, *web(), *web()]),
    Row("twice-and-different", [*HEALTHY, *web(), *web(keys=f"{ZONE},*")], [("ObjectTwice", WARNING, WEB, "", "")]),
]  # fmt: skip

NO_SLICES = ("KindMissing", ERROR, "EndpointSlice", "", "neither EndpointSlices nor Endpoints")
NO_NODES = ("KindMissing", ERROR, "Node", "", "no Nodes")
NO_SERVICES = ("KindMissing", ERROR, "Service", "", "no Services")
ENDPOINT_KINDS = ("EndpointSlice", "Endpoints")


def without(*kinds: str, items: Sequence[Item] = (*HEALTHY, *web(keys=f"{ZONE},*"))) -> list[Item]:
    return [item for item in items if item["kind"] not in kinds]


def none_of(kind: str, version: str = "v1") -> Item:
    """Return what kubectl prints of a kind of which the cluster has no object."""
    return {"apiVersion": version, "kind": f"{kind}List", "items": []}


IN_DUMPS = [
    Row("whole", without()),
    Row("no-slices", without(*ENDPOINT_KINDS), [NO_SLICES]),
    Row("no-slices-of-external-names",
        [*RACKS, service("away", cluster_ips=(), type="ExternalName", externalName="example.com")],
        [("NoTrustedForwarder", WARNING, "", "", "")]),
    Row("slices-listed", [*without(*ENDPOINT_KINDS), none_of("EndpointSlice", "discovery.k8s.io/v1")],
        [("NoTrustedForwarder", WARNING, "", "", "")]),
    Row("endpoints-listed", [*without(*ENDPOINT_KINDS), none_of("Endpoints")],
        [("NoTrustedForwarder", WARNING, "", "", "")]),
    Row("no-nodes", without("Node"), [NO_NODES]),
    Row("no-nodes-and-a-key-that-none-carries", without("Node", items=[*HEALTHY, *web(keys=RACK)]), [NO_NODES]),
    Row("no-nodes-but-locators", without("Node", items=[*HEALTHY, *web()]), [], {"client-source": "podlocators"}),
    Row("no-services", without("Service"), [NO_SERVICES]),
    Row("a-helm-template", [service("web", keys=f"{ZONE},*")], [NO_NODES, NO_SLICES]),
    Row("nothing-to-locate", [namespace("shop")], [("NoTrustedForwarder", WARNING, "", "", "")]),
    Row("a-wrong-group", [*without(), {**namespace("lab"), "apiVersion": "core/v1"}],
        [("PassedOver", INFO, "Namespace", "apiVersion", "core found, expected apiVersion: v1")]),
]  # fmt: skip

SOURCE, STORE = "metadata.labels[multicluster.kubernetes.io/source-cluster]", "EndpointSlice shop/web-west-1"
FROM_WEST = imported_slice("web", "west", [endpoint("10.2.0.1")])

MIRRORING = "endpointslicemirroring-controller.k8s.io"
ALIVE = pod("web-0", ["10.0.1.1"], "a1")
AT_WORK, OF_A_DEAD_POD = endpoint("10.0.1.1", targetRef=POD), endpoint("10.0.1.9", targetRef={**POD, "name": "web-9"})


def after_a_selector(
    *mirrored: Item, pods: Sequence[Item] = (ALIVE,), by: str = SLICE_CONTROLLER, selects: bool = True
) -> list[Item]:
    """Return a Service, its slice, which is kept *by* a controller, and one that was mirrored."""
    slices = (endpoint_slice("web", 1, [AT_WORK], by=by), endpoint_slice("web", 2, mirrored, by=MIRRORING))
    return [*HEALTHY, service("web", selects=selects), *slices, *pods]


BEHIND, KEEPER = "EndpointSlice shop/web-2", f"metadata.labels[{MANAGED_BY}]"
IN_LAB = pod("web-0", ["10.0.1.1"], "a1", where="lab")
ALL_GONE = ("SliceLeftBehind", WARNING, BEHIND, KEEPER, "there is no Pod shop/web-9 with 10.0.1.9,")

LEFT_BEHIND = [
    Row("pod-gone", after_a_selector(OF_A_DEAD_POD), [ALL_GONE]),
    Row("some-pods-gone", after_a_selector(AT_WORK, OF_A_DEAD_POD, {**OF_A_DEAD_POD, "addresses": ["10.0.1.8"]}),
        [("SliceLeftBehind", WARNING, BEHIND, KEEPER, "shop/web-9 with 10.0.1.9 (and 1 more)")]),
    Row("pod-with-another-address", after_a_selector({**AT_WORK, "addresses": ["10.0.1.7"]}),
        [("SliceLeftBehind", WARNING, BEHIND, KEEPER, "shop/web-0 with 10.0.1.7")]),
    Row("pod-finished", after_a_selector(OF_A_DEAD_POD, pods=[ALIVE, pod("web-9", ["10.0.1.9"], "a1", phase="Failed")]),
        [("SliceLeftBehind", WARNING, BEHIND, KEEPER, "shop/web-9")]),
    Row("pod-there", after_a_selector(AT_WORK)),
    Row("pod-without-address-yet", after_a_selector(AT_WORK, pods=[pod("web-0", [], "a1")])),
    Row("no-pod-named", after_a_selector(endpoint("10.0.1.9"))),
    Row("no-pods-of-the-namespace", after_a_selector(OF_A_DEAD_POD, pods=[IN_LAB]), [ALL_GONE]),
    Row("pod-in-the-slice-of-the-selector", after_a_selector(AT_WORK, pods=[pod("web-1", ["10.0.1.2"], "a1")])),
    Row("no-pods", after_a_selector(OF_A_DEAD_POD, pods=[]), [ALL_GONE]),
    Row("pods-not-read", after_a_selector(OF_A_DEAD_POD), flags={"client-source": "nodes"}),
    Row("no-slice-of-the-selector", after_a_selector(OF_A_DEAD_POD, by="somebody.example.com")),
    Row("no-selector", after_a_selector(OF_A_DEAD_POD, selects=False)),
    Row("own-slice-is-late", [*HEALTHY, *web([OF_A_DEAD_POD]), ALIVE]),
]  # fmt: skip
IN_DUMPS += [
    Row("pod-gone", after_a_selector(OF_A_DEAD_POD), [ALL_GONE]),
    Row("no-pods-of-the-namespace", after_a_selector(OF_A_DEAD_POD, pods=[IN_LAB])),
    Row("no-pods", after_a_selector(OF_A_DEAD_POD, pods=[])),
]

NAMES = [
    Row("service-without-address", [*HEALTHY, service("web", cluster_ips=())],
        [("NameWithoutAddress", INFO, WEB, "spec.clusterIP", "no address is written in the Service")]),
    Row("address-that-is-empty", [*HEALTHY, service("web", cluster_ips=("",))],
        [("NameWithoutAddress", INFO, WEB, "spec.clusterIP", "no address")]),
    Row("alias-needs-no-address", [*HEALTHY, external("web", "example.org")]),
    Row("import-without-address", [*HEALTHY, service_import("web", type="ClusterSetIP"), IMPORTED[1]],
        [("NameWithoutAddress", INFO, "ServiceImport shop/web", "spec.ips", "no address is written in the ServiceImp")],
        MULTICLUSTER),
    Row("import-without-multicluster", [*HEALTHY, service_import("web", type="ClusterSetIP"), IMPORTED[1]]),
    Row("import-with-address", [*HEALTHY, service_import("web", ips=["10.97.0.1"])], flags=MULTICLUSTER),
    Row("a-cluster-that-left", [*HEALTHY, service_import("web", clusters=["east"]), IMPORTED[1], FROM_WEST],
        [("ImportWithoutCluster", WARNING, STORE, SOURCE, "west is no cluster of ServiceImport shop/web")],
        MULTICLUSTER),
    Row("all-clusters-listed", [*HEALTHY, service_import("web", clusters=["West", "east"]), IMPORTED[1], FROM_WEST],
        flags=MULTICLUSTER),
    Row("no-cluster-listed", [*HEALTHY, service_import("web", clusters=[]), FROM_WEST], flags=MULTICLUSTER),
    Row("no-cluster-named", [*HEALTHY, service_import("web", clusters=["east"]), imported_slice("web", None, SPREAD)],
        flags=MULTICLUSTER),
    Row("nothing-of-a-cluster-that-left", [*HEALTHY, service_import("web", clusters=["east"]), IMPORTED[1],
                                           imported_slice("web", "west", [])], flags=MULTICLUSTER),
]  # fmt: skip

ROWS = [*INVALID, *KEYS, *EFFECT, *OVERRIDDEN, *GAIN, *NEARNESS, *PLACES, *NAMES, *LEFT_BEHIND]


def where(finding: Finding) -> str:
    return f"{finding.kind} {object_key(finding.namespace, finding.name)}".strip()


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_findings(row: Row) -> None:
    """Exactly these, each with its code, severity, object and field."""
    findings = checked(row.cluster, row.flags)
    found = [(finding.code, finding.severity, where(finding), finding.field) for finding in findings]
    assert sorted(found) == sorted(expected[:4] for expected in row.found), findings
    for *_, words in row.found:
        assert any(words in str(finding) for finding in findings), findings


AMONG_CLUSTERS = {  # tests/programs/test_several_clusters.py shows these
    "ExportedInOneCluster", "ExportWithoutService", "LoadBalancerWithoutAddress", "HostNameWithoutUpstream",
    "ExternalNameExported", "FederatedConstraintsDiffer", "FlatNetworkOverlaps", "ClusterUnreachable",
    "ExportsDisagree",
}  # fmt: skip


@pytest.mark.parametrize("row", IN_DUMPS, ids=[row.name for row in IN_DUMPS])
def test_findings_in_a_dump(row: Row) -> None:
    """A dump without a kind says nothing about it: that is an error, and nothing that follows from it is found."""
    findings = checked(row.cluster, row.flags, as_dump=True)
    found = [(finding.code, finding.severity, where(finding), finding.field) for finding in findings]
    assert sorted(found) == sorted(expected[:4] for expected in row.found), findings
    for *_, words in row.found:
        assert any(words in str(finding) for finding in findings), findings


OF_ONE_CLUSTER = [code for code in ClusterCode if code.name not in AMONG_CLUSTERS]


@pytest.mark.parametrize("code", OF_ONE_CLUSTER, ids=lambda code: code.name)
def test_every_code_has_a_row(code: ClusterCode) -> None:
    """What no row shows would be a promise of the page alone."""
    severities = {severity for row in (*ROWS, *IN_DUMPS) for name, severity, *_ in row.found if name == code.name}
    assert code.severity in severities


NEXT_DOOR = [
    *HEALTHY,
    namespace("lab", {"team": "x"}),
    service("bad", where="lab", keys=TYPO),
    service("single", where="lab", keys=ZONE),
    endpoint_slice("single", 1, SPREAD[:1], where="lab"),
    endpoint_slice("gone", 1, [], where="lab"),
    pod("unreadable", ["10.0.0.300"], "a1", where="lab"),
    item("ServicePolicy", "vain", "lab", spec={"serviceSelector": {"matchLabels": {"app": "none"}},
                                               "topology": {"key": ZONE, "mode": "required"}}),
    node("c1"),
]  # fmt: skip
OF_THE_LAB = ["KeyOnNoNode", "PolicySelectsNothing", "SingleEndpoint", "SliceWithoutService", "UnreadableObject"]


@pytest.mark.parametrize(
    ("flags", "codes"),
    [
        ({}, [*OF_THE_LAB, "NodeWithoutZone"]),
        ({"serve-namespace": "lab"}, [*OF_THE_LAB, "NodeWithoutZone"]),
        ({"namespace-selector": "team=x"}, [*OF_THE_LAB, "NodeWithoutZone"]),
        ({"serve-namespace": "shop"}, ["NodeWithoutZone"]),
        ({"namespace-selector": "team=y"}, ["NodeWithoutZone"]),
        ({"serve-namespace": "shop", "forwarder-service": "dns/none"}, ["NoTrustedForwarder", "NodeWithoutZone"]),
        ({"service-selector": "app"}, sorted({*OF_THE_LAB, "NodeWithoutZone"} - {"KeyOnNoNode", "SingleEndpoint"})),
    ],
    ids=lambda value: " ".join(f"{key}={text}" for key, text in value.items()) if isinstance(value, dict) else "",
)
def test_only_what_is_served_is_checked(flags: Mapping[str, Any], codes: list[str]) -> None:
    """Findings about objects in other namespaces are left out; those about nodes and forwarders stay."""
    assert sorted(finding.code for finding in checked(NEXT_DOOR, flags)) == sorted(codes)


LIVE: list[tuple[str, list[Item], list[Item], list[str], list[str], Mapping[str, Any]]] = [
    # name, cluster, what changes in it, codes before, codes after, flags
    ("node-gains-the-key", [*BARE, *DNS, *web(keys=RACK)], [node("b1", {RACK: "r2"})],
     ["KeyOnNoNode"], [], {}),
    ("node-gains-the-key-of-a-policy", [*BARE, *DNS, *web(), policy(RACK)], [node("b1", {RACK: "r2"})],
     ["KeyOnNoNode"], [], {}),
    ("node-gains-the-key-of-a-zone", [*BARE, *DNS], [node("b1", {RACK: "r2"})],
     ["KeyOnNoNode"], [], {"default-topology-keys": f"cluster.local={RACK}"}),
    ("locator-gains-the-key", [*DNS, *web([], keys=RACK), pod_locator("p", "shop", [], nodeName="a1")],
     [pod_locator("p", "shop", [], nodeName="a1", nodeLabels={RACK: "r1"})], ["KeyOnNoNode"], [],
     {"client-source": "podlocators"}),
    ("first-node-gains-a-zone", [*BARE, *DNS], [node("a1", {ZONE: "a"})], [], ["NodeWithoutZone"], {}),
    ("service-gains-a-constraint", [*HEALTHY, *web([*SPREAD, GONE])], web(keys=ZONE)[:1],
     [], ["EndpointWithoutLocation"], {}),
    ("service-asks-for-hints", [*HEALTHY, *virtual(keys=ZONE)], virtual(keys=ZONE, labels={GARDENER: "true"})[:1],
     ["ConstraintWithoutEffect"], [], {}),
    ("service-gains-a-wrong-label", [*HEALTHY, *web()], web(labels={"topodns.io/hint": "true"})[:1],
     [], ["UnknownAnnotation"], {}),
    ("service-becomes-headless", [*HEALTHY, *virtual(), policy(ZONE)], web()[:1],
     ["ConstraintWithoutEffect"], [], {}),
    ("service-is-exported", [*HEALTHY, *virtual(), policy(TYPO)], [item("ServiceExport", "web", "shop")],
     ["ConstraintWithoutEffect"], ["KeyOnNoNode"], {"federation": ["fed.example.com"]}),
    ("service-is-imported", [*HEALTHY, *virtual(), policy(TYPO)], [service_import("web")],
     ["ConstraintWithoutEffect"], ["KeyOnNoNode", "ServiceImportWithoutSlices"], MULTICLUSTER),
    ("cluster-leaves-an-import", [*HEALTHY, *IMPORTED], [service_import("web", clusters=["west"])],
     [], ["ImportWithoutCluster"], MULTICLUSTER),
    ("slice-of-a-cluster-that-left", [*HEALTHY, service_import("web", clusters=["east"]), IMPORTED[1]],
     [imported_slice("web", "east", SPREAD, labels={SOURCE_CLUSTER: "west"})],
     [], ["ImportWithoutCluster"], MULTICLUSTER),
]  # fmt: skip


@pytest.mark.parametrize(("cluster", "change", "before", "after", "flags"), [row[1:] for row in LIVE],
                         ids=[row[0] for row in LIVE])  # fmt: skip
def test_findings_follow_a_live_cluster(
    cluster: list[Item], change: list[Item], before: list[str], after: list[str], flags: Mapping[str, Any]
) -> None:
    """A change that brings or ends a finding is worth publishing, and so is its end."""
    store = store_of(settings_of(flags))
    take_in(store, dump_of(cluster).objects)
    assert [finding.code for finding in store.publish(NOW).findings] == before
    (changed,) = dump_of(change).objects
    kind, key = type(changed), changed.key
    known = [Put(each) for each in dump_of(cluster).objects if (type(each), each.key) == (kind, key)]
    for delta, codes in ((Put(changed), after), (known[0] if known else Drop(kind, key), before)):
        assert store.apply(delta)
        assert sorted(finding.code for finding in store.publish(NOW).findings) == codes


WRONG = [
    # scenario, and what is found in it about Services, imports and slices
    ("names-without-address", ["NameWithoutAddress"] * 2),
    ("imports-of-a-cluster-that-left", ["FlatNetworkOverlaps", "ImportWithoutCluster"]),
    ("federated-exports-disagree", ["ExportsDisagree"] * 2),
    ("slices-left-behind", ["SliceLeftBehind"]),
]


@pytest.mark.parametrize(("scenario", "codes"), WRONG, ids=[row[0] for row in WRONG])
def test_what_is_wrong_in_a_scenario(scenario: str, codes: list[str]) -> None:
    """Answers keep to what is written there, and ``check`` says what is wrong with it."""
    path = SCENARIOS / f"{scenario}.yaml"
    head = next(iter(yaml.safe_load_all(path.read_text())))
    flags = {"forwarder-service": "off", **head.get("flags", {})}
    others = {name: (SCENARIOS / other).read_text() for name, other in head.get("clusters", {}).items()}
    if others or "multicluster" in flags:
        found = ClustersInMemory(path.read_text(), others, flags).checked()
    else:
        found = checked(path.read_text(), flags)
    assert sorted(finding.code for finding in found) == codes, found


def test_there_are_clean_clusters() -> None:
    """A rule over no files would hold for ever."""
    assert [path.stem for path in CLEAN] == ["eks", "gke", "kind", "kubeadm"]


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
@pytest.mark.parametrize("source", ["pods,nodes", "nodes", "pods"])
def test_a_clean_cluster_has_no_findings(path: Path, source: str) -> None:
    """As a provider makes it: with endpoints on no node, Services that ask for nothing, perhaps without zones."""
    assert checked(path.read_text(), {"client-source": source}) == []


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_subnets_are_proposed_on_eks_alone(path: Path) -> None:
    """The proposals are the subnets of the cluster's VPC; elsewhere pods have pod CIDRs."""
    subnets = {"192.168.0.0/19": "eu-west-1a", "192.168.32.0/19": "eu-west-1b", "192.168.64.0/19": "eu-west-1c"}
    proposed = proposed_subnets(snapshot_of(path.read_text()).addresses)
    found = {network_text(network): zone.zone for network, zone in proposed.items()}
    assert found == (subnets if path.stem == "eks" else {})
