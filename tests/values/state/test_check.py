# SPDX-License-Identifier: Apache-2.0

"""``check``: which findings a cluster has, and that a healthy one has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dnsserver.programs.from_settings import store_of
from locator.api.deltas import Drop, Put
from locator.findings import ClusterCode
from locator.ip import network_text
from locator.model import ERROR, INFO, WARNING, Finding, object_key
from locator.places.subnet_proposals import proposed_subnets
from tests.kit.api_objects import (
    HOSTNAME,
    MANAGED_BY,
    RACK,
    SERVICE_NAME,
    SLICE_CONTROLLER,
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
from tests.kit.finding_rows import (
    ANNOTATION,
    BALANCE,
    BARE,
    CROWDED,
    DNS,
    EFFECT,
    GAIN,
    GARDENER,
    HEALTHY,
    HOSTS,
    IMPORTED,
    INVALID,
    KEYS,
    MAX,
    MULTICLUSTER,
    NEARNESS,
    OVERRIDDEN,
    POD,
    RACKS,
    SPREAD,
    TO_A,
    TO_B,
    TYPO,
    WEB,
    Row,
    hinted,
    policy,
    virtual,
    web,
)
from tests.kit.in_memory import NOW, checked, dump_of, settings_of, snapshot_of, take_in
from tests.kit.this_machine import ROOT

CLEAN = [ROOT / "tests" / "clean_clusters" / f"{name}.yaml" for name in ("eks", "gke", "kind", "kubeadm")]


GONE = endpoint("10.0.3.1", nodeName="gone")
SLICE = "EndpointSlice shop/web-1"

PLACES = [
    Row("no-dns", [*RACKS, *web()],
        [("NoTrustedForwarder", WARNING, "", "",
          "no trusted forwarder: there is no ... kube-system/kube-dns ... k8s-app: ... --trusted-forwarder")]),
    Row("no-dns-as-configured", HEALTHY, [("NoTrustedForwarder", WARNING, "", "", "dns/a ... dns/b")],
        {"forwarder-service": ["dns/a", "dns/b"]}),
    Row("no-forwarder-wanted", [*RACKS, *web()], (), {"forwarder-service": "off"}),
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
        [("PodCidrDistrusted", WARNING, "Node c1", "spec.podCIDRs", "10.0.1.0/24 ... 10.0.1.1 ... a1")]),
    Row("shared-pod-cidr",
        [*HEALTHY, *web(), *(node(name, {ZONE: "a"}, cidrs=["10.0.1.0/24"]) for name in ("c1", "d1"))],
        [("PodCidrDistrusted", WARNING, f"Node {one}", "spec.podCIDRs", f"10.0.1.0/24 ... {other}")
         for one, other in (("c1", "d1"), ("d1", "c1"))]),
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

ROWS = [*INVALID, *KEYS, *EFFECT, *BALANCE, *OVERRIDDEN, *GAIN, *NEARNESS, *PLACES, *NAMES, *LEFT_BEHIND]


def where(finding: Finding) -> str:
    return f"{finding.kind} {object_key(finding.namespace, finding.name)}".strip()


@pytest.mark.parametrize(
    ("row", "as_dump"),
    [pytest.param(row, False, id=row.name) for row in ROWS]
    + [pytest.param(row, True, id=f"dump-{row.name}") for row in IN_DUMPS],
)
def test_findings(row: Row, as_dump: bool) -> None:
    """Exactly these, each with its code, severity, object and field.

    A dump without a kind says nothing about it: that is an error, and nothing that follows from it is found.
    """
    findings = checked(row.cluster, row.flags, as_dump=as_dump)
    found = [(finding.code, finding.severity, where(finding), finding.field) for finding in findings]
    assert sorted(found) == sorted(expected[:4] for expected in row.found), findings
    for *_, words in row.found:
        assert any(all(part in str(finding) for part in words.split(" ... ")) for finding in findings), findings


AMONG_CLUSTERS = {  # tests/programs/test_several_clusters.py shows these
    "ExportedInOneCluster", "ExportWithoutService", "LoadBalancerWithoutAddress", "HostNameWithoutUpstream",
    "ExternalNameExported", "FederatedConstraintsDiffer", "FlatNetworkOverlaps", "ClusterUnreachable",
    "ExportsDisagree", "InvalidClusterFile", "PortsDiffer", "HealthWithoutMajority",
}  # fmt: skip


OF_CLIENTS = {"UnmetClients", "ZoneWithoutEndpoints"}  # tests/programs/test_check_clients.py shows these
OF_FEDERATIONS = {"NotDistributed", "NotOurs", "Refused"}  # tests/values/distribution shows these
OF_ONE_CLUSTER = [code for code in ClusterCode if code.name not in AMONG_CLUSTERS | OF_CLIENTS | OF_FEDERATIONS]


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
    ("service-asks-for-hints-that-cannot-say-it", [*HEALTHY, *virtual(keys=HOSTNAME)],
     virtual(keys=HOSTNAME, labels={GARDENER: "true"})[:1], ["ConstraintWithoutEffect"], ["HintsCannotSay"], {}),
    ("zone-gains-another-rack", [*HEALTHY, *virtual(keys=f"{RACK},*", labels={GARDENER: "true"})],
     [node("a2", {ZONE: "a", RACK: "r2"})], [], ["HintsCannotSay"], {}),
    ("rack-leaves-its-zone", [*HEALTHY, node("a2", {ZONE: "a", RACK: "r2"}),
                              *virtual(keys=f"{RACK},*", labels={GARDENER: "true"})],
     [node("a2", {ZONE: "c", RACK: "r2"})], ["HintsCannotSay"], [], {}),
    ("service-gains-a-wrong-label", [*HEALTHY, *web()], web(labels={"topodns.io/hint": "true"})[:1],
     [], ["UnknownAnnotation"], {}),
    ("service-is-exported", [*HEALTHY, *virtual(), policy(TYPO)], [item("ServiceExport", "web", "shop")],
     ["ConstraintWithoutEffect"], ["KeyOnNoNode"], {"federation": ["fed.example.com"]}),
    ("service-is-imported", [*HEALTHY, *virtual(), policy(TYPO)], [service_import("web")],
     ["ConstraintWithoutEffect"], ["KeyOnNoNode", "ServiceImportWithoutSlices"], MULTICLUSTER),
    ("hints-name-another-zone", [*CROWDED, *web([TO_A, TO_B], annotations=MAX)],
     [endpoint_slice("web", 1, [TO_A, {**TO_B, **hinted("a")}])], [], ["BalanceWithoutEffect"], {}),
    ("service-gains-a-constraint-to-balance", [*CROWDED, *web(annotations=MAX)], [policy(ZONE)],
     ["BalanceWithoutEffect"], [], {}),
    ("cluster-leaves-an-import", [*HEALTHY, *IMPORTED], [service_import("web", clusters=["west"])],
     [], ["ImportWithoutCluster"], MULTICLUSTER),
    ("slice-of-the-selector-gains-what-is-mirrored", after_a_selector(OF_A_DEAD_POD),
     [endpoint_slice("web", 1, [AT_WORK, OF_A_DEAD_POD], by=SLICE_CONTROLLER)], ["SliceLeftBehind"], [], {}),
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
