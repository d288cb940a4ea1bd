# SPDX-License-Identifier: Apache-2.0

"""Several clusters: what ``check`` finds between them, which settings are wrong, and who else suffers: nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dnsserver.settings.reading import read_settings
from locator.api.deltas import DeltaBatch
from locator.cluster import api_client
from locator.cluster.responses import Unreachable
from locator.findings import ClusterCode
from locator.model import INFO, WARNING, Finding
from locator.state.store import Store, StoreOptions
from tests.kit.api_objects import (
    HOSTNAME,
    MAIN,
    SLICE_CONTROLLER,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    imported_slice,
    item,
    listed,
    namespace,
    node,
    pod,
    service,
    service_import,
)
from tests.kit.commands_in_process import Run
from tests.kit.in_memory import NOW, ClustersInMemory, dump_of, read_again, take_in
from tests.kit.kube import config_of
from tests.kit.waiting import PATIENCE

FEDERATED = {"topodns.io/federated": "true"}
FLAGS = {"cluster-name": "east", "federation": ["fed.example"], "forwarder-service": "off"}
WEB, ANNOTATION = "Service shop/web", f"metadata.annotations[{TOPOLOGY_KEYS}]"
EXPORTED, INGRESS = "metadata.annotations[topodns.io/federated]", "status.loadBalancer.ingress"
OFF = {"upstream": "off"}


def cluster(
    number: int, *, balancer: Sequence[Mapping[str, str]] = ({"ip": "203.0.113.1"},), ready: bool = True, **fields: Any
) -> list[Item]:
    """Return a cluster with a node, a pod CIDR, and the Service shop/web, which *balancer* makes reachable."""
    web = service("web", **{"cluster_ips": (f"10.96.{number}.1",), "annotations": FEDERATED, "selects": True, **fields})
    web["status"] = {"loadBalancer": {"ingress": list(balancer)}}
    endpoints = [endpoint(f"10.{number}.0.5", nodeName="n1", ready=ready)]
    located = node("n1", {ZONE: f"z{number}"})
    located["spec"] = {"podCIDRs": [f"10.{number}.0.0/24"]}
    return [located, web, endpoint_slice("web", 1, endpoints, by=SLICE_CONTROLLER)]


def without_cidrs(items: Sequence[Item]) -> list[Item]:
    """Return a cluster whose nodes state no pod CIDR."""
    return [found for item in items for found in [{**item, "spec": {}} if item["kind"] == "Node" else item]]


def of_age(items: list[Item], year: int) -> list[Item]:
    """Return a cluster whose Service was created in a year."""
    (web,) = (found for found in items if found["kind"] == "Service")
    web["metadata"]["creationTimestamp"] = f"{year}-01-01T00:00:00Z"
    return items


HOST = [{"hostname": "lb.example.com"}]
EXPORT = item("ServiceExport", "web", "shop")
PROBED = {"annotations": {**FEDERATED, "topodns.io/health": "tcp"}}
EAST_WEST = {"flat-network": "east,west"}
OTHER_PORT = [("main", 8080, "TCP")]  # pods listen at 80
HIGHER = endpoint_slice("web", 2, [endpoint("10.2.0.6", nodeName="n1")], ports=OTHER_PORT, by=SLICE_CONTROLLER)
HIGHER_UNREADY = endpoint_slice(
    "web", 2, [endpoint("10.2.0.6", nodeName="n1", ready=False)], ports=OTHER_PORT, by=SLICE_CONTROLLER
)
PORTLESS = endpoint_slice("web", 2, [endpoint("10.2.0.6", nodeName="n1")], ports=[], by=SLICE_CONTROLLER)
PLAIN = {"annotations": {}}
STARTING = endpoint("10.7.0.1", ready=False)
TWO = [BESIDE := endpoint("10.7.0.2"), THERE := endpoint("10.7.0.1")]


class Row(NamedTuple):
    """Clusters, and the findings between them: code, severity, the cluster (empty: the own one), object and field."""

    name: str
    own: Sequence[Item]
    west: Sequence[Item]
    found: Sequence[tuple[str, str, str, str, str]] = ()
    flags: Mapping[str, Any] = {}


ROWS = [
    Row("healthy", cluster(1), cluster(2)),
    Row("by-service-exports", [*cluster(1, **PLAIN), EXPORT], [*cluster(2, **PLAIN), EXPORT]),
    Row("here-only", cluster(1), cluster(2, **PLAIN), [("ExportedInOneCluster", INFO, "", WEB, EXPORTED)]),
    Row("there-only", cluster(1, **PLAIN), cluster(2), [("ExportedInOneCluster", INFO, "west", WEB, EXPORTED)]),
    Row("export-without-service", [*cluster(1), item("ServiceExport", "wob", "shop")], cluster(2),
        [("ExportWithoutService", WARNING, "", "ServiceExport shop/wob", "metadata.name")]),
    Row("no-balancer", cluster(1, balancer=[]), cluster(2),
        [("LoadBalancerWithoutAddress", WARNING, "", WEB, INGRESS)]),
    Row("headless", cluster(1, balancer=[], cluster_ips=("None",)), cluster(2),
        [("LoadBalancerWithoutAddress", WARNING, "", WEB, "spec.clusterIP"),
         ("ExportsDisagree", WARNING, "west", WEB, "spec.clusterIP")]),
    Row("both-headless", *(cluster(number, cluster_ips=("None",)) for number in (1, 2))),
    Row("other-number-of-one-port", *(cluster(number, ports=[("main", 80 + number, "TCP")]) for number in (1, 2)),
        [("ExportsDisagree", WARNING, "west", WEB, "spec.ports")]),
    Row("other-protocol-of-one-port", *(cluster(number, ports=[("main", 80, protocol)])
        for number, protocol in ((1, "TCP"), (2, "UDP"))), [("ExportsDisagree", WARNING, "west", WEB, "spec.ports")]),
    Row("other-number-of-the-port", *(cluster(number, ports=[(None, 80 + number, "TCP")]) for number in (1, 2)),
        [("ExportsDisagree", WARNING, "west", WEB, "spec.ports")]),
    Row("ports-of-other-names", *(cluster(number, ports=[(name, 80 + number, "TCP"), ("main", 80, "TCP")])
        for number, name in ((1, "one"), (2, "two")))),
    Row("ports-that-differ-where-one-is-not-exported", cluster(1, ports=[("main", 81, "TCP")]), cluster(2, **PLAIN),
        [("ExportedInOneCluster", INFO, "", WEB, EXPORTED)]),
    Row("the-oldest-is-right", of_age(cluster(1, ports=[("main", 81, "TCP")]), 2026), of_age(cluster(2), 2020),
        [("ExportsDisagree", WARNING, "", WEB, "spec.ports")]),
    Row("target-ports-that-differ", cluster(1, ports=OTHER_PORT), cluster(2, ports=OTHER_PORT),
        [("PortsDiffer", WARNING, name, WEB, "spec.ports") for name in ("", "west")], EAST_WEST),
    Row("a-target-port-that-differs-in-one-slice", cluster(1), [*cluster(2), HIGHER],
        [("PortsDiffer", WARNING, "west", WEB, "spec.ports")], EAST_WEST),
    Row("a-port-that-pods-do-not-have", *(cluster(number, ports=[*MAIN, ("more", 81, "TCP")]) for number in (1, 2)),
        [("PortsDiffer", WARNING, name, WEB, "spec.ports") for name in ("", "west")], EAST_WEST),
    Row("target-ports-that-differ-without-a-load-balancer", cluster(1), cluster(2, ports=OTHER_PORT, balancer=[]),
        [("PortsDiffer", WARNING, "west", WEB, "spec.ports"), ("ExportsDisagree", WARNING, "west", WEB, "spec.ports")],
        EAST_WEST),
    Row("target-ports-that-differ-of-pods-that-are-not-ready", cluster(1), [*cluster(2), HIGHER_UNREADY],
        flags=EAST_WEST),
    Row("slices-without-ports", cluster(1), [*cluster(2), PORTLESS], flags=EAST_WEST),
    Row("target-ports-that-differ-of-headless-services",
        *(cluster(number, cluster_ips=("None",), ports=OTHER_PORT) for number in (1, 2)), flags=EAST_WEST),
    Row("target-ports-that-differ-in-no-flat-network", cluster(1, ports=OTHER_PORT), cluster(2, ports=OTHER_PORT)),
    Row("no-balancer-in-a-flat-network", cluster(1, balancer=[]), cluster(2), flags={"flat-network": "east,west"}),
    Row("host-name", cluster(1), cluster(2, balancer=HOST), flags={"upstream": "127.0.0.1"}),
    Row("host-name-that-nobody-resolves", cluster(1), cluster(2, balancer=HOST),
        [("HostNameWithoutUpstream", WARNING, "west", WEB, INGRESS)]),
    Row("host-name-that-is-none", cluster(1), cluster(2, balancer=[{"hostname": "a b"}, {"ip": "203.0.113.2"}]),
        [("UnreadableObject", "error", "west", WEB, f"{INGRESS}[0].hostname")]),
    Row("external-name", cluster(1, balancer=[], type="ExternalName", externalName="db.example.org"), cluster(2),
        [("ExternalNameExported", WARNING, "", WEB, "spec.type")]),
    Row("the-same-constraint", cluster(1, keys=f"{ZONE},*"), cluster(2, keys=f"{ZONE}, *")),
    Row("constraints-that-differ", cluster(1, keys=f"{ZONE},*"), cluster(2, keys="topodns.io/cluster,*"),
        [("FederatedConstraintsDiffer", WARNING, "west", WEB, ANNOTATION)]),
    Row("an-invalid-constraint", cluster(1, keys=f"{ZONE},*"), cluster(2, keys="*,*"),
        [("InvalidTopologyKeys", "error", "west", WEB, ANNOTATION)]),
    Row("local-traffic-is-no-obstacle", cluster(1, keys=f"{HOSTNAME},*", externalTrafficPolicy="Local"),
        cluster(2, keys=f"{HOSTNAME},*")),
    Row("a-key-that-nobody-carries", cluster(1, keys="topology.kubernetes.io/zon,*"), cluster(2),
        [("KeyOnNoNode", WARNING, "", WEB, ANNOTATION)]),
    Row("a-constraint-of-an-exported-service", [*cluster(1, keys=f"{ZONE},*", **PLAIN), EXPORT], cluster(2)),
    Row("flat-networks-that-overlap", cluster(1), cluster(1),
        [("FlatNetworkOverlaps", WARNING, "", "", "--flat-network")], {"flat-network": "east,west"}),
    Row("pod-cidrs-around-pods-of-the-other", without_cidrs(cluster(2)), [*cluster(2), pod("p", ["10.9.0.7"], "n1")],
        [("FlatNetworkOverlaps", WARNING, "", "", "--flat-network")], {"flat-network": "east,west"}),
    Row("pods-without-pod-cidrs-that-overlap", *[[*without_cidrs(cluster(number)), pod("p", ["10.9.0.7"], "n1")]
        for number in (1, 2)], [("FlatNetworkOverlaps", WARNING, "", "", "--flat-network")],
        {"flat-network": "east,west"}),
    Row("pods-without-pod-cidrs", without_cidrs(cluster(1)), without_cidrs(cluster(2)),
        flags={"flat-network": "east,west"}),
    Row("overlaps-elsewhere-are-fine", cluster(1), cluster(1)),
    *(Row(f"imports-{name}", [*cluster(1), service_import("db"), imported_slice("db", "east", TWO), *others],
          cluster(2), found, {"multicluster": "clusterset.local"})
      for name, others, found in [
          ("with-one-address", [imported_slice("db", "west", [THERE, BESIDE])],
           [("FlatNetworkOverlaps", WARNING, "", "ServiceImport shop/db", "")]),
          ("with-one-address-in-three-clusters", [imported_slice("db", name, [THERE]) for name in ("west", "south")],
           [("FlatNetworkOverlaps", WARNING, "", "ServiceImport shop/db", "")] * 3),
          ("of-two-names-with-one-address", [service_import("api"), imported_slice("api", "west", [THERE])],
           [("FlatNetworkOverlaps", WARNING, "", "ServiceImport shop/api", "")]),
          ("of-one-cluster", [imported_slice("db", "East", [THERE], 2)], []),
          ("that-name-no-cluster", [imported_slice("db", None, [THERE])], []),
          ("of-which-one-is-not-ready", [imported_slice("db", "west", [STARTING])], []),
      ]),
    Row("health-that-is-none", cluster(1, annotations={**FEDERATED, "topodns.io/health": "ping"}), cluster(2),
        [("InvalidHealth", WARNING, "", WEB, "metadata.annotations[topodns.io/health]")]),
    *(Row(f"health-of-two-clusters-{name}", cluster(1, **own), cluster(2, **west),
          [("HealthWithoutMajority", WARNING, where, WEB, "metadata.annotations[topodns.io/health]")])
      for name, own, west, where in [
          ("here", PROBED, {}, ""), ("there", {}, PROBED, "west"), ("both", PROBED, PROBED, ""),
      ]),
    Row("health-that-no-export-needs", cluster(1), cluster(2, annotations={"topodns.io/health": "tcp"}),
        [("ExportedInOneCluster", INFO, "", WEB, EXPORTED)]),
]  # fmt: skip


def where(finding: Finding) -> str:
    return f"{finding.kind} {finding.namespace}/{finding.name}" if finding.kind else ""


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_findings(row: Row) -> None:
    """Exactly these, each with its cluster."""
    flags = {**FLAGS, **OFF, **row.flags}
    found = [
        (finding.code, finding.severity, finding.cluster, where(finding), finding.field)
        for finding in ClustersInMemory(list(row.own), {"west": list(row.west)}, flags).checked()
    ]
    assert sorted(found) == sorted(row.found)


AMONG_CLUSTERS = (
    "ExportedInOneCluster", "ExportWithoutService", "LoadBalancerWithoutAddress", "HostNameWithoutUpstream",
    "ExternalNameExported", "FederatedConstraintsDiffer", "FlatNetworkOverlaps", "ExportsDisagree", "PortsDiffer",
    "HealthWithoutMajority",
)  # fmt: skip


def test_every_code_has_a_row() -> None:
    """What no row shows would be a promise of the page alone."""
    shown = {found[:2] for row in ROWS for found in row.found}
    assert {(code, ClusterCode[code].severity) for code in AMONG_CLUSTERS} <= shown


@pytest.mark.parametrize(
    ("flat", "outside"), [((), "cluster east"), (("east,west",), "cluster east and its flat networks")]
)
def test_who_gets_nothing_without_a_load_balancer(flat: Sequence[str], outside: str) -> None:
    """Clients in a flat network with the cluster get its endpoints."""
    others = {"west": cluster(2), "south": cluster(3)}
    flags = {**FLAGS, **OFF, "flat-network": list(flat)}
    (finding,) = ClustersInMemory(cluster(1, balancer=[]), others, flags).checked()
    assert finding.message == f"no address of a load balancer: clients outside of {outside} get nothing of it"


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        ([(None, 8080, "TCP")], "the port is 8080, but pods do not listen there:"),  # that of pods has a name
        ([("main", 8080, "TCP"), ("more", 81, "TCP")], "port main is 8080, but pods listen at 80 (and 1 more):"),
    ],
)
def test_which_ports_differ(ports: Sequence[tuple[str | None, int, str]], message: str) -> None:
    """The finding names the first of them."""
    flags = {**FLAGS, **OFF, **EAST_WEST}
    found = ClustersInMemory(cluster(1, ports=ports), {"west": cluster(2, annotations={})}, flags).checked()
    assert [finding.message[: len(message)] for finding in found if finding.code == "PortsDiffer"] == [message]


def test_a_third_cluster_makes_a_majority() -> None:
    """Whatever is in it; and so does a cluster alone."""
    flags = {**FLAGS, **OFF}
    codes = [
        [finding.code for finding in ClustersInMemory(cluster(1, **PROBED), others, flags).checked()]
        for others in ({}, {"west": cluster(2)}, {"west": cluster(2), "witness": [namespace("x")]})
    ]
    assert codes == [[], ["HealthWithoutMajority"], []]


# The command line


def written(folder: Path, name: str, items: Sequence[Item]) -> str:
    path = folder / f"{name}.json"
    path.write_text(listed(items))
    return str(path)


def test_an_unreachable_cluster_is_a_warning(topodns: Run, tmp_path: Path) -> None:
    """``check`` and ``explain`` go on with the others; the exit status is that of a warning."""
    own, west = written(tmp_path, "own", cluster(1)), written(tmp_path, "west", cluster(2))
    away = tmp_path / "away.config"
    away.write_text(json.dumps(config_of("https://127.0.0.1:1")))
    flags = (
        "--snapshot", own, "--cluster-name", "east", "--cluster", f"west={west}", "--cluster", f"away={away}",
        "--federation", "fed.example", "--forwarder-service", "off",
    )  # fmt: skip
    checked = topodns("check", *flags)
    assert (checked.status, "--cluster away: https://127.0.0.1:1" in checked.out) == (0, True)
    assert "[ClusterUnreachable]" in checked.out
    assert topodns("check", *flags, "--fail-on", "warning").status == 1
    explained = topodns("explain", "web.shop.fed.example", "--client", "10.2.0.9", *flags, "-o", "json")
    assert [answer["data"] for answer in explained.json["answers"]] == ["10.96.2.1", "203.0.113.1"]
    assert explained.err.startswith("topodns: --cluster away: https://127.0.0.1:1: ")
    assert explained.status == 0


def test_clusters_are_read_side_by_side(topodns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that say nothing hold a command up once, not twice. Here, each waits until the other is being read."""
    both = threading.Barrier(2)

    def list_once(*_: object, **__: object) -> DeltaBatch:
        both.wait(PATIENCE)
        raise Unreachable("https://127.0.0.1:1: nothing for 10 s", "silent")

    monkeypatch.setattr(api_client, "list_once", list_once)
    flags = ["--snapshot", written(tmp_path, "own", cluster(1)), "--cluster-name", "east"]
    for number, name in enumerate(("west", "south"), 1):
        (tmp_path / name).write_text(json.dumps(config_of(f"https://127.0.0.1:{number}")))
        flags.append(f"--cluster={name}={tmp_path / name}")
    checked = topodns("check", *flags)
    assert (checked.status, checked.out.count("[ClusterUnreachable]")) == (0, 2)


def test_a_cluster_that_is_given_twice_is_told_of(topodns: Run, tmp_path: Path) -> None:
    """By the address and authority of its API server, or by the file: two names would be two clusters."""
    own, west = written(tmp_path, "own", cluster(1)), written(tmp_path, "west", cluster(2))
    for name in ("one", "other"):
        (tmp_path / name).write_text(json.dumps(config_of("https://127.0.0.1:1", context=name)))
    flags = [f"--cluster={name}={tmp_path / name}" for name in ("one", "other")]
    flags += [f"--cluster={name}={path}" for name, path in (("west", west), ("here", f"{tmp_path}/./own.json"))]
    ran = topodns("check", "--snapshot", own, *flags)
    assert ran.status == 0
    assert [line.partition("WARNING ")[2] for line in ran.err.splitlines()] == [
        "--cluster other: https://127.0.0.1:1 is cluster one, too, expected each cluster once",
        f"--cluster here: {tmp_path}/./own.json is cluster local, too, expected each cluster once",
    ]


def test_findings_between_clusters_name_the_file(topodns: Run, tmp_path: Path) -> None:
    """As those within one do: each cluster has files of its own."""
    paths = {name: written(tmp_path, name, items) for name, items in (
        ("own", cluster(1, keys=f"{ZONE},*")), ("west", cluster(2, keys=f"{HOSTNAME},*", balancer=HOST)),
        ("south", cluster(3, annotations={})),
    )}  # fmt: skip
    others = [word for name in ("west", "south") for word in ("--cluster", f"{name}={paths[name]}")]
    flags = ("--cluster-name", "east", "--federation", "fed.example", "--upstream", "off", *others)
    checked = topodns("check", "--snapshot", paths["own"], *flags, "-o", "json").json
    files = {(found["code"], found["cluster"]): found["file"] for found in checked if found["kind"] == "Service"}
    assert files == {
        ("FederatedConstraintsDiffer", "west"): paths["west"], ("HostNameWithoutUpstream", "west"): paths["west"],
    }  # fmt: skip
    alone = ("--cluster", f"south={paths['south']}", "--cluster-name", "east", "--federation", "fed.example")
    checked = topodns("check", "--snapshot", paths["own"], *alone, "-o", "json").json
    assert [found["file"] for found in checked if found["code"] == "ExportedInOneCluster"] == [paths["own"]]


def test_a_client_may_be_anywhere(topodns: Run, tmp_path: Path) -> None:
    """Its labels are those of nodes in any cluster, the cluster's own among them: others are told with the nearest."""
    own, west = written(tmp_path, "own", cluster(1)), written(tmp_path, "west", cluster(2))
    flags = ("--snapshot", own, "--cluster-name", "east", "--cluster", f"west={west}", "--federation", "fed.example")
    for client, hint in (
        ("topodns.io/cluster=west", f"all nodes there have {ZONE}=z2, too; "),
        (f"{ZONE}=z2", "all nodes there have topodns.io/cluster=west, too; "),
        ("topodns.io/cluster=wets", "no node has topodns.io/cluster=wets, did you mean west?\n"),
        (f"topodns.io/cluster=west,{ZONE}=z2", ""),
    ):
        explained = topodns("explain", "web.shop.fed.example", "--client", client, *flags)
        expected = f"topodns: --client: {hint}" if hint else ""
        assert (explained.status, explained.err[: len(expected)], bool(explained.err)) == (0, expected, bool(hint))


def test_a_node_is_a_client_of_the_own_cluster(topodns: Run, tmp_path: Path) -> None:
    """Also one without addresses, whose labels stand for it; a node of that name in another cluster is another one."""
    own, west = written(tmp_path, "own", cluster(1)), written(tmp_path, "west", cluster(2))
    flags = ("--snapshot", own, "--cluster-name", "east", "--cluster", f"west={west}", "--federation", "fed.example")
    found = topodns("explain", "web.shop.fed.example", "--client", "node/n1", *flags, "-o", "json").json
    assert (found["client"]["labels"]["topodns.io/cluster"], found["outcome"]) == ("east", "nearest")
    assert [answer["data"] for answer in found["answers"]] == ["10.96.1.1", "203.0.113.1"]


WRONG = [
    ("missing-file", "west=none.yaml", "none.yaml: No such file or directory, expected a kubeconfig or a dump"),
    ("no-dump", "west=text", "text: "),
    ("unreadable-kubeconfig", "west=config", "config: "),
    ("unknown-context", "west=good#none", "no context 'none', expected one of main"),
]


@pytest.mark.parametrize(("value", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_source_that_is_none(
    topodns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    """The message names the cluster and the file; the exit status is 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("just text\n")
    (tmp_path / "config").write_text("apiVersion: v1\nkind: Config\nclusters: []\ncontexts: []\n")
    (tmp_path / "good").write_text(json.dumps(config_of("https://127.0.0.1:1")))
    own = written(tmp_path, "own", cluster(1))
    for command in (("check",), ("explain", "web.shop", "--client", "10.1.0.9")):
        ran = topodns(*command, "--snapshot", own, "--cluster", value)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith("topodns: --cluster west: ") and words in ran.err


SETTINGS = [
    ("name-twice", ["--cluster", "a=x", "--cluster", "a=y"], "--cluster: the name a is given twice"),
    ("own-name", ["--cluster", "local=x"], "the own cluster's (--cluster-name)"),
    ("no-name", ["--cluster", "x.yaml"], "expected NAME=PATH or NAME=PATH#CONTEXT"),
    ("no-context", ["--cluster", "a=x#"], "expected NAME=PATH or NAME=PATH#CONTEXT"),
    ("capitals", ["--cluster-name", "East"], "a DNS label"),
    ("flat-unknown", ["--cluster", "east=x", "--flat-network", "local,est"], "no cluster est, did you mean east?"),
    ("flat-alone", ["--flat-network", "local"], "names of two or more clusters"),
    ("federation-is-a-zone", ["--federation", "cluster.local"], "--federation: cluster.local is served already"),
    ("federation-holds-a-zone", ["--federation", "local"], "--federation: local is above the zone cluster.local"),
    ("federation-hides-services", ["--federation", "svc.cluster.local"], "hides all such names of the zone cluster"),
    ("multicluster-hides-pods", ["--multicluster", "pod.cluster.local"], "hides all such names of the zone cluster"),
    ("multicluster-is-the-federation", ["--federation", "a.b", "--multicluster", "a.b"], "a.b is served already"),
    ("reverse", ["--federation", "10.in-addr.arpa"], "a reverse zone"),
    ("keys", ["--federation-topology-keys", "*,zone"], "* only at the end"),
    ("spares", ["--federation-spares", "17"], "a whole number from 0 to 16"),
]


@pytest.mark.parametrize(("flags", "words"), [row[1:] for row in SETTINGS], ids=[row[0] for row in SETTINGS])
def test_wrong_settings(topodns: Run, tmp_path: Path, flags: Sequence[str], words: str) -> None:
    """Status 2, and a message that names the flag, what was found and what was expected."""
    ran = topodns("check", "--snapshot", written(tmp_path, "own", cluster(1)), *flags)
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err and "expected" in ran.err


def test_publish_without_a_federation(topodns: Run) -> None:
    """There is no name to publish: status 2 before anything is read."""
    ran = topodns("controller", "--publish")
    assert (ran.status, ran.err) == (
        2, "topodns: --publish: given without --federation, expected the zone of its names\n")  # fmt: skip


NEEDS_ANOTHER = [
    ("flat_network", "local,west", "--federation"),
    ("federation_spares", "1", "--federation"),
    ("federation_topology_keys", "*", "--federation"),
    ("cluster_max_age", "1", "--cluster or --cluster-dir"),
    ("federate_selector", "a=b", "--federate"),
]


@pytest.mark.parametrize(("name", "value", "needed"), NEEDS_ANOTHER)
def test_a_setting_without_effect(tmp_path: Path, name: str, value: str, needed: str) -> None:
    """What is about federated names, or other clusters, says so where there are none."""
    west = f"west={written(tmp_path, 'west', cluster(2))}"
    flags = {name: [value], **({"cluster": [west]} if needed == "--federation" else {})}
    _, warnings = read_settings(flags=flags, environment={}, file=None)
    assert warnings == [f"--{name.replace('_', '-')} has no effect without {needed}"]


def test_a_subnet_in_an_unknown_cluster() -> None:
    """It is told of, unless an MCS controller may know the cluster."""
    flags = {
        "federation": ["fed.example"],
        "subnet": ["192.0.2.0/25=topodns.io/cluster=local", "192.0.2.128/25=topodns.io/cluster=wets"],
        "cluster": ["west=west.yaml"],
    }
    _, warnings = read_settings(flags=flags, environment={}, file=None)
    assert warnings == [
        "--subnet: no cluster wets, did you mean west?, expected one of local, west: to federated names, its clients "
        "are in no cluster"
    ]
    assert read_settings(flags={**flags, "multicluster": ["clusterset.local"]}, environment={}, file=None)[1] == []


def test_what_a_cluster_contributes_is_kept() -> None:
    """A saved view has the exports, imports, votes and nodes, too; a store that starts from it changes none of them."""
    imported = imported_slice("db", "west", [endpoint("10.9.0.1", nodeName="n1")])
    votes = {"entries": [{"address": "203.0.113.1", "healthy": False}], "renewTime": "2026-01-01T00:00:00Z"}
    objects = dump_of([
        *cluster(1, keys=f"{ZONE},*"), EXPORT, imported, service_import("db"),
        item("ServiceHealth", "web.shop", status=votes, apiVersion="topodns.io/v1alpha1"),
    ]).objects  # fmt: skip
    first, second = (Store(StoreOptions(cluster="east", exports=True, imports=True)) for _ in range(2))
    take_in(first, objects)
    before = first.publish(NOW)
    started = second.start_from(read_again(before))
    assert started.exported["shop/web"].compiled is started.services["shop/web"]
    assert (started.healths, started.exported.keys(), started.imports.keys(), started.nodes.keys()) == (
        before.healths, before.exported.keys(), before.imports.keys(), before.nodes.keys()
    )  # fmt: skip
    take_in(second, objects)
    after = second.publish(NOW + 1)
    assert after.exported is started.exported and after.imports is started.imports
    assert after.healths is started.healths and after.nodes is started.nodes
