# SPDX-License-Identifier: Apache-2.0

"""Clusters and what ``check`` finds in them: what Services and policies ask for, and what they gain by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from locator.model import ERROR, INFO, WARNING
from locator.topology.annotations import CLIENTS, MAX_OVERLOAD
from tests.kit.api_objects import (
    HOSTNAME,
    MIN_ENDPOINTS,
    RACK,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    imported_slice,
    namespace,
    node,
    pod,
    pod_locator,
    service,
    service_import,
    service_policy,
)

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
OF_IMPORT = service_import("web")
OF_IMPORT["spec"]["trafficDistribution"] = "Close"
POD = {"kind": "Pod", "name": "web-0"}
GARDENER = "endpoint-slice-hints.resources.gardener.cloud/consider"
OVERLOAD, ASKING = f"metadata.annotations[{MAX_OVERLOAD}]", f"metadata.annotations[{CLIENTS}]"
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


def policy(key: str | None, mode: str | None = "required", *, name: str = "near", app: str = "web") -> Item:
    return service_policy(name, key, mode, app=app)


def hinted(zone: str) -> dict[str, Any]:
    return {"hints": {"forZones": [{"name": zone}]}}


class Row(NamedTuple):
    """A cluster, and the findings in it: code, severity, object, field, and parts of the text, separated by " ... "."""

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
    Row("policy-without-key", [*HEALTHY, *web(), policy(None)],
        [("EmptyTopologyKeys", WARNING, NEAR, POLICY, "policy without a key")]),
    Row("policy-without-key-written-ignored", [*HEALTHY, *web(), policy(None, "ignored")]),
    Row("policy-without-topology", [*HEALTHY, *web(), policy(None, None)],
        [("PolicyWithoutMode", WARNING, NEAR, "spec.topology.mode", "Required, Preferred, Ignored")]),
    Row("policy-for-nothing", [*HEALTHY, *web(), policy(ZONE, app="none")],
        [("PolicySelectsNothing", WARNING, NEAR, "spec.serviceSelector", "no Service")]),
    Row("empty-annotation", [*HEALTHY, *web(keys=" ")],
        [("EmptyTopologyKeys", WARNING, WEB, ANNOTATION, "empty")]),
    Row("unknown-annotation", [*HEALTHY, *web(annotations={"topodns.io/topologykeys": ZONE})],
        [("UnknownAnnotation", WARNING, WEB, "metadata.annotations[topodns.io/topologykeys]", TOPOLOGY_KEYS)]),
    Row("annotation-with-another-prefix", [*HEALTHY, *web(annotations={"topodns/max-overload": "1.5"})],
        [("UnknownAnnotation", WARNING, WEB, "metadata.annotations[topodns/max-overload]", "topodns.io/max-overload")]),
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
    Row("copy-of-a-federation", [*HEALTHY, *web(labels={"topodns.io/federation": "fed.example.com"})]),
    Row("of-a-federation-api", [*HEALTHY, *web(annotations={"topodns.io/cluster-weights": "a=2,b=1"})]),
    Row("invalid-federation", [*HEALTHY, *web(annotations={"topodns.io/cluster-weights": "a"})],
        [("InvalidFederation", ERROR, WEB, "metadata.annotations[topodns.io/cluster-weights]", "CLUSTER=WEIGHT")]),
    *(Row(f"distribution-{written}", [*HEALTHY, *made(trafficDistribution=written)],
          [("UnknownTrafficDistribution", WARNING, WEB, DISTRIBUTION,
            f"'{written}' counts as none: Kubernetes does not know it, expected {nearest} [")])
      for written, nearest, made in (
          ("preferClose", "PreferClose", web), ("PREFERSAMENODE", "PreferSameNode", virtual),
          ("PreferZone", "PreferSameZone", web),
      )),
    Row("distribution-of-an-import", [*HEALTHY, OF_IMPORT, IMPORTED[1]],
        [("UnknownTrafficDistribution", WARNING, "ServiceImport shop/web", DISTRIBUTION, "expected PreferClose [")],
        MULTICLUSTER),
    Row("health", [*HEALTHY, *web(annotations={"topodns.io/health": "ping"})],
        [("InvalidHealth", WARNING, WEB, "metadata.annotations[topodns.io/health]",
          "'ping' counts as none, expected tcp, tcp:PORT, http:PORT/PATH or https:PORT/PATH")]),
    Row("health-at-another-port", [*HEALTHY, *web(annotations={"topodns.io/health": "http:10250/pods"})],
        [("InvalidHealth", WARNING, WEB, "metadata.annotations[topodns.io/health]",
          "10250 is none of the Service's own TCP ports, expected PORT to be one of 80")]),
    Row("min-endpoints", [*HEALTHY, *web(keys=f"{ZONE},*", least="0")],
        [("InvalidMinEndpoints", WARNING, WEB, f"metadata.annotations[{MIN_ENDPOINTS}]", "'0' counts as 1")]),
    Row("max-overload", [*HEALTHY, *web(keys=f"{ZONE},*", annotations={MAX_OVERLOAD: "1"})],
        [("InvalidMaxOverload", WARNING, WEB, OVERLOAD, "'1' counts as none, expected a decimal number from 1.1")]),
    Row("clients", [*HEALTHY, *web(annotations={CLIENTS: "shop;"})],
        [("InvalidClients", WARNING, WEB, ASKING, "'shop;' counts as none, expected NAMESPACE[/SELECTOR]")]),
]  # fmt: skip
KEYS = [
    Row("hard", [*HEALTHY, *web(keys=TYPO)],
        [("KeyOnNoNode", ERROR, WEB, ANNOTATION, f"no node has the label {TYPO} ... expected {ZONE} [")]),
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
    Row("overridden", [*HEALTHY, *web(keys=ZONE, field=[TYPO])],
        [("SourceNotHeard", INFO, WEB, FIELD, "the annotation")]),
    Row("without-effect", [*HEALTHY, *virtual(keys=TYPO)],
        [("ConstraintWithoutEffect", WARNING, WEB, ANNOTATION,
          "not headless, so kube-proxy chooses ... clusterIP: None, or for kube-proxy the label topodns.io/hints")]),
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
    Row("hints-on-a-cluster-ip", [*HEALTHY, *virtual(endpoints=[endpoint("10.0.1.1", nodeName="a1", **hinted("a"))])]),
    Row("policy-for-cluster-ips-alone", [*HEALTHY, *virtual(), policy(ZONE)],
        [("ConstraintWithoutEffect", WARNING, NEAR, "spec.serviceSelector", "no headless Service")]),
    Row("policy-for-headless-ones-too",
        [*HEALTHY, *web(), service("db", labels={"app": "web"}, cluster_ips=("10.96.0.8",)), policy(ZONE)]),
    Row("policy-for-federated-ones", [*HEALTHY, *virtual(annotations=FEDERATED), policy(ZONE)]),
]  # fmt: skip
MAX, BY_WEB, SOFT = {MAX_OVERLOAD: "1.5"}, {CLIENTS: "shop/app=web"}, f"{ZONE},*"
UNHEARD = ("BalanceWithoutEffect", WARNING, WEB, OVERLOAD)
UNASKED = ("BalanceWithoutEffect", WARNING, WEB, ASKING)
TO_A, TO_B = ({**SPREAD[number], **hinted(zone)} for number, zone in enumerate("ab"))
NODES_ALONE = "clients without effect: topodns counts each node as one client, expected --client-source pods"
BALANCED_IMPORT = service_import("web", keys=SOFT)
BALANCED_IMPORT["metadata"]["annotations"] |= MAX
NOBODY_ASKS = ("BalanceWithoutClients", WARNING, WEB)
CROWDED = [*HEALTHY, pod("asks", ["10.0.1.7"], "a1", labels={"app": "web"}),
           pod_locator("asks", "shop", ["10.0.1.7"], nodeName="a1", nodeLabels={ZONE: "a"})]  # fmt: skip
CROWD = [pod(f"asks-{number}", [f"10.0.1.{number}"], "a1") for number in range(20, 40)]
ELSEWHERE = [pod(f"asks-{number}", [f"10.0.2.{number}"], "b1") for number in range(40, 50)]
BALANCE = [
    Row("balanced", [*CROWDED, *web(keys=SOFT, annotations=MAX | BY_WEB)]),
    Row("balanced-by-policy", [*CROWDED, *web(annotations=MAX), policy(ZONE)]),
    Row("balanced-by-distribution", [*CROWDED, *web(trafficDistribution="PreferClose", annotations=MAX)]),
    Row("balanced-by-hints", [*CROWDED, *web([TO_A, TO_B], annotations=MAX)]),
    Row("balanced-peers", [*CROWDED, *web(keys=SOFT, annotations=MAX, publishNotReadyAddresses=True)]),
    Row("balanced-by-a-default", [*CROWDED, *web(annotations=MAX)],
        flags={"default-topology-keys": f"cluster.local={SOFT}"}),
    Row("balanced-and-federated", [*CROWDED, *web(keys=SOFT, annotations=MAX | FEDERATED)]),
    Row("no-constraint-to-balance", [*CROWDED, *web(annotations=MAX | BY_WEB)],
        [(*UNHEARD, "max-overload without effect: the Service asks for no near endpoints, expected topology keys")]),
    Row("invalid-constraint-to-balance", [*CROWDED, *web(keys="*,a", annotations=MAX)],
        [("InvalidTopologyKeys", ERROR, WEB, ANNOTATION, ""), (*UNHEARD, "its constraint is invalid")]),
    Row("balance-of-a-cluster-ip", [*CROWDED, *virtual(annotations=MAX)],
        [(*UNHEARD, "the Service is not headless, expected clusterIP: None")]),
    Row("balance-of-a-federated-name", [*CROWDED, *virtual(keys=ZONE, annotations=MAX | FEDERATED)],
        [(*UNHEARD, "its federated name is not balanced")]),
    Row("balance-by-the-webhook",
        [*CROWDED, *virtual(keys=ZONE, labels={"topodns.io/hints": "true"}, annotations=MAX)],
        [(*UNHEARD, "hints for kube-proxy cannot split a zone")]),
    Row("balance-of-peers-by-a-default", [*CROWDED, *web(annotations=MAX, publishNotReadyAddresses=True)],
        [(*UNHEARD, f"the Service publishes addresses that are not ready ... expected the annotation {TOPOLOGY_KEYS}")],
        {"default-topology-keys": f"cluster.local={SOFT}"}),
    Row("balance-by-other-hints", [*CROWDED, *web([TO_A, {**TO_B, **hinted("a")}], annotations=MAX)],
        [(*UNHEARD, f"hints decide ... own zone of each ... expected the annotation {TOPOLOGY_KEYS}"),
         ("HintsElsewhere", INFO, WEB, "endpoints[].hints", "")]),
    Row("balance-of-a-multi-cluster-name",
        [*CROWDED, BALANCED_IMPORT, IMPORTED[1]],
        [("BalanceWithoutEffect", WARNING, "ServiceImport shop/web", OVERLOAD, "the annotation at a Service")],
        MULTICLUSTER),
    Row("clients-alone", [*CROWDED, *web(keys=SOFT, annotations=BY_WEB)],
        [(*UNASKED, f"clients without effect: there is no valid {MAX_OVERLOAD}")]),
    Row("clients-beside-an-invalid-one", [*CROWDED, *web(keys=SOFT, annotations={MAX_OVERLOAD: "0"} | BY_WEB)],
        [("InvalidMaxOverload", WARNING, WEB, OVERLOAD, ""), (*UNASKED, "no valid")]),
    Row("clients-of-nodes", [*CROWDED, *web(keys=SOFT, annotations=MAX | BY_WEB)], [(*UNASKED, NODES_ALONE)],
        {"client-source": "nodes"}),
    Row("nodes-without-clients", [*CROWDED, *web(keys=SOFT, annotations=MAX)], flags={"client-source": "nodes"}),
    Row("labels-of-locators", [*CROWDED, *web(keys=SOFT, annotations=MAX | BY_WEB)],
        [(*UNASKED, "label selector without effect: topodns counts PodLocators ... expected a namespace alone")],
        {"client-source": "podlocators,nodes"}),
    Row("namespace-of-locators", [*CROWDED, *web(keys=SOFT, annotations=MAX | {CLIENTS: "shop"})],
        flags={"client-source": "podlocators,nodes"}),
    Row("nobody-to-balance", [*HEALTHY, *web(keys=SOFT, annotations=MAX)],
        [(*NOBODY_ASKS, OVERLOAD, f"no running pod but the Service's own endpoints, expected pods ... or {CLIENTS}")]),
    Row("clients-of-no-namespace", [*CROWDED, *web(keys=SOFT, annotations=MAX | {CLIENTS: "shp"})],
        [(*NOBODY_ASKS, ASKING, "shp: no running pod in namespace shp, expected shop")]),
    Row("clients-that-do-not-match", [*CROWDED, *web(keys=SOFT, annotations=MAX | {CLIENTS: "shop/app=wb"})],
        [(*NOBODY_ASKS, ASKING, "shop/app=wb: no running pod in shop matches, expected shop/app=web")]),
    Row("too-many-for-a-hard-constraint", [*CROWDED, *CROWD, *web(keys=ZONE, annotations=MAX)],
        [("BalanceImpossible", WARNING, WEB, OVERLOAD, "10.0.1.1: the constraint is hard, so they get no others")]),
    Row("one-endpoint-to-balance", [*CROWDED, *web([SPREAD[0]], keys=SOFT, annotations=MAX)],
        [("SingleEndpoint", INFO, WEB, ANNOTATION, "")]),
    Row("too-many-on-one-node", [*CROWDED, *CROWD, *ELSEWHERE, *web(keys=SOFT, annotations={MAX_OVERLOAD: "1.1"})],
        [("BalanceImpossible", INFO, WEB, OVERLOAD, "10.0.2.1: no other has room for them, expected more endpoints")]),
]  # fmt: skip
OVERRIDDEN = [
    Row("all-three", [*HEALTHY, *web(keys=ZONE, field=[ZONE]), policy(ZONE)],
        [("SourceNotHeard", INFO, WEB, ANNOTATION, "ServicePolicy near comes first"),
         ("SourceNotHeard", INFO, WEB, FIELD, "near")]),
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


ZONE_A = [*HEALTHY, node("a2", {ZONE: "a", RACK: "r2"})]  # two nodes, of two racks
ASKS = {"labels": {"app": "web", GARDENER: "true"}}
UNSAID = ("HintsCannotSay", WARNING, WEB, ANNOTATION)
RACK_UNSAID = f"hints cannot say {RACK}, which tells nodes of one zone apart: in zone a kube-proxy"
HOST_UNSAID = f"hints cannot say {HOSTNAME}, a hard host name:"
FOR_HINTS = [
    Row("hints-say-zones", [*ZONE_A, *virtual(keys=f"{ZONE},*", **ASKS)]),
    Row("hints-say-a-hard-zone", [*ZONE_A, *virtual(keys=ZONE, **ASKS)]),
    Row("hints-say-a-soft-host", [*ZONE_A, *virtual(keys=f"{HOSTNAME},{ZONE},*", **ASKS)]),
    Row("hints-say-a-soft-host-of-a-hard-list", [*ZONE_A, *virtual(keys=f"{HOSTNAME},{ZONE}", **ASKS)]),
    Row("hints-say-a-preferred-host", [*ZONE_A, *virtual(**ASKS), policy(HOSTNAME, "preferred")]),
    Row("hints-cannot-say-a-hard-host", [*ZONE_A, *virtual(keys=HOSTNAME, **ASKS)],
        [(*UNSAID, f"{HOST_UNSAID} in zone a kube-proxy uses all endpoints, expected keys of which ... host")]),
    Row("hints-cannot-say-a-hard-host-in-zones-of-one-node", [*HEALTHY, *virtual(keys=HOSTNAME, **ASKS)],
        [(*UNSAID, f"{HOST_UNSAID} where a node has no endpoint kube-proxy uses all endpoints")]),
    Row("hints-cannot-say-a-required-host", [*ZONE_A, *virtual(**ASKS), policy(HOSTNAME)],
        [("HintsCannotSay", WARNING, WEB, LABELS, f"{HOST_UNSAID} in zone a kube-proxy uses all endpoints")]),
    Row("hints-cannot-say-a-host-that-comes-later", [*ZONE_A, *virtual(keys=f"{ZONE},{HOSTNAME}", **ASKS)],
        [(*UNSAID, f"goes by {ZONE} alone, and uses all endpoints where that gives none")]),
    Row("hints-cannot-say-racks", [*ZONE_A, *virtual(keys=f"{RACK},{ZONE},*", **ASKS)],
        [(*UNSAID, f"{RACK_UNSAID} goes by {ZONE} alone, expected")]),
    Row("hints-cannot-say-racks-after-the-host", [*ZONE_A, *virtual(keys=f"{HOSTNAME},{RACK},*", **ASKS)],
        [(*UNSAID, f"{RACK_UNSAID} goes by {HOSTNAME} alone, expected")]),
    Row("hints-cannot-say-racks-alone", [*ZONE_A, *virtual(keys=f"{RACK},*", **ASKS)],
        [(*UNSAID, f"{RACK_UNSAID} uses all endpoints")]),
    Row("hints-cannot-say-what-some-nodes-lack", [*HEALTHY, node("a2", {ZONE: "a"}), *virtual(keys=RACK, **ASKS)],
        [(*UNSAID, f"{RACK_UNSAID} uses all endpoints")]),
    Row("hints-cannot-say-required-racks",
        [*ZONE_A, *virtual(**ASKS), policy(RACK), policy(ZONE, "preferred", name="zones")],
        [("HintsCannotSay", WARNING, WEB, LABELS, f"{RACK_UNSAID} uses all endpoints")]),
    Row("hints-cannot-say-racks-in-many-zones",
        [*HEALTHY, *(node(f"{zone}-{rack}", {ZONE: zone, RACK: rack}) for zone in "cdefgh" for rack in "rs"),
         *virtual(keys=f"{RACK},*", **ASKS)],
        [(*UNSAID, "in zone c, d, e, f, g and 1 more kube-proxy")]),
    Row("hints-say-racks-of-one-zone-each", [*HEALTHY, *virtual(keys=f"{RACK},*", **ASKS)]),
    Row("racks-of-a-headless-service-with-hints", [*ZONE_A, *web(keys=f"{RACK},*", **ASKS)]),
    Row("racks-of-peers-by-a-policy", [*ZONE_A, *virtual(**ASKS, **PEERS), policy(RACK, "preferred")]),
    Row("an-invalid-constraint-for-hints", [*ZONE_A, *virtual(keys=f"{HOSTNAME},{HOSTNAME}", **ASKS)],
        [("InvalidTopologyKeys", ERROR, WEB, ANNOTATION, "twice")]),
]  # fmt: skip
NEARNESS = [
    *FOR_HINTS,
    Row("hints-of-some", [*HEALTHY, *web([ON_A, SPREAD[1]], trafficDistribution="PreferClose")], [LACKING]),
    Row("hints-of-some-alone", [*HEALTHY, *web([ON_A, SPREAD[1]])], [(*LACKING[:4], f"{LACKING[4]} ... {EACH}")]),
    Row("hints-of-some-for-nodes",
        [*HEALTHY, *web([{**ON_A, "hints": {"forNodes": [{"name": "a1"}]}}, SPREAD[1]])],
        [("HintsIncomplete", WARNING, WEB, HINTS, f"none for a node: 10.0.2.1 ... {EACH}")]),
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
