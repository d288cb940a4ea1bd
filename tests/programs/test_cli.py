# SPDX-License-Identifier: Apache-2.0

"""``check``, ``explain`` and ``serve`` on dumps of a small cluster: what they print, and their exit status."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import pytest
import yaml

from dnsserver import __version__
from tests.kit.api_objects import (
    HOSTNAME,
    SLICE_CONTROLLER,
    ZONE,
    endpoint,
    endpoint_slice,
    namespace,
    node,
    pod,
    service,
)
from tests.kit.commands_in_process import Run
from tests.kit.programs import environment
from tests.kit.topodns_process import COMMAND, Process, Server, run
from tests.kit.waiting import PATIENCE

DONE, FAILED, WRONG = 0, 1, 2
NAME = "web.shop.svc.cluster.local"

HTTP = (("http", 80, "TCP"),)
CLUSTER = [
    namespace("shop"),
    node("a1", {ZONE: "a"}, addresses=["127.1.0.1"]),
    node("b1", {ZONE: "b"}, addresses=["127.1.0.2"]),
    pod("client", ["127.1.0.9"], "a1"),
    service("web", keys=f"{HOSTNAME},{ZONE}", ports=HTTP, selects=True),
    endpoint_slice(
        "web",
        1,
        [endpoint("10.9.0.1", nodeName="a1"), endpoint("10.9.0.3", nodeName="c1")],
        ports=HTTP,
        by=SLICE_CONTROLLER,
    ),
    node("c1", {ZONE: "c"}, addresses=["127.1.0.3"]),
    service("kube-dns", cluster_ips=("10.96.0.10",), where="kube-system"),
    endpoint_slice("kube-dns", 1, [endpoint("127.0.0.10", nodeName="a1")], where="kube-system"),
]
NAMESPACE, NODE_A, NODE_B, POD, SERVICE, SLICE, *_ = CLUSTER


def changed(item: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an object with other fields; ``a__b=1`` sets a field within a field, None removes one."""
    item = json.loads(json.dumps(item))
    for path, value in fields.items():
        *way, last = path.split("__")
        inner = item
        for step in way:
            inner = inner.setdefault(step, {})
        if value is None:
            inner.pop(last, None)
        else:
            inner[last] = value
    return item


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """Return the path of a small cluster."""
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(CLUSTER))
    return str(path)


# --- Snapshots ------------------------------------------------------------------------------------------------------


def _files(folder: Path, *texts: str, suffix: str = ".yaml") -> list[str]:
    paths = [folder / f"part-{number}{suffix}" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def _flags(paths: list[str]) -> list[str]:
    return [word for path in paths for word in ("--snapshot", path)]


def _lists() -> list[dict[str, Any]]:
    """Return what ``kubectl get KIND -A -o yaml`` prints for each kind; its items lack kind and apiVersion."""
    kinds = [*dict.fromkeys(item["kind"] for item in CLUSTER)]
    return [
        {
            "apiVersion": next(item["apiVersion"] for item in CLUSTER if item["kind"] == kind),
            "kind": f"{kind}List",
            "metadata": {"resourceVersion": "1"},
            "items": [changed(item, kind=None, apiVersion=None) for item in CLUSTER if item["kind"] == kind],
        }
        for kind in kinds
    ]


def _folder(folder: Path) -> list[str]:
    """Make a folder with snapshots of all three suffixes, and other files."""
    _files(folder, *map(yaml.safe_dump, CLUSTER[:2]))
    _files(folder, *map(yaml.safe_dump, CLUSTER[2:4]), suffix=".yml")
    _files(folder, *map(json.dumps, CLUSTER[4:]), suffix=".json")
    _files(folder, "no cluster at all: [", suffix=".yaml.old")
    return ["--snapshot", str(folder)]


OTHERS = [
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"kind": "Pod"}},
    {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
     "spec": {"clusterIP": 7}},
    {"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [{"metadata": {"name": "web"}}]},
    {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web", "namespace": "shop"}, "subsets": 5},
]  # fmt: skip
LIST = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": CLUSTER}

FORMS: dict[str, Callable[[Path], list[str]]] = {
    "json-without-suffix": lambda folder: _flags(_files(folder, json.dumps(LIST), suffix="")),
    "json-stream": lambda folder: _flags(_files(folder, "\n".join(map(json.dumps, CLUSTER)), suffix=".json")),
    "documents-with-empty-ones": lambda folder: _flags(
        _files(folder, "# dumped\n---\n" + "\n---\n---\n# and\n".join(map(yaml.safe_dump, CLUSTER)) + "\n---\n")
    ),
    "windows-lines": lambda folder: _flags(_files(folder, yaml.safe_dump_all(CLUSTER).replace("\n", "\r\n"))),
    "a-list-of-each-kind": lambda folder: _flags(_files(folder, *map(yaml.safe_dump, _lists()))),
    "folder": lambda folder: _folder(folder),
    "a-list-with-unknown-kinds": lambda folder: _flags(
        _files(folder, yaml.safe_dump({**LIST, "items": [*OTHERS, *CLUSTER]}))
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_of_a_snapshot(topodns: Run, tmp_path: Path, form: Callable[[Path], list[str]]) -> None:
    """Every form in which kubectl prints a cluster reads as the same cluster, without findings."""
    flags = form(tmp_path)
    checked = topodns("check", "-o", "json", *flags)
    found = [finding["message"] for finding in checked.json]
    assert found == (["not read: the name ends in .old"] if form is FORMS["folder"] else [])
    assert (checked.status, checked.err) == (DONE, "")
    explained = topodns("explain", NAME, "--client", "127.1.0.9", "-o", "json", *flags).json
    assert [answer["data"] for answer in explained["answers"]] == ["10.9.0.1"]
    assert (explained["client"]["located_by"], explained["client"]["node"]) == ("pod", "a1")


@pytest.mark.parametrize("dump", [yaml.safe_dump, json.dumps], ids=["yaml", "json"])
def test_standard_input(dump: Callable[[Any], str]) -> None:
    """``--snapshot -`` reads what kubectl pipes."""
    ran = run("explain", NAME, "--client", "127.1.0.9", "--snapshot", "-", stdin=dump(LIST))
    assert ran.returncode == DONE and "10.9.0.1" in ran.stdout


def test_labels_that_look_like_something_else(topodns: Run, tmp_path: Path) -> None:
    """A label value is a string, even if YAML 1.1 would read it as a number or a boolean."""
    labels = ("rack: 0x1f", "row: 1_000", "slot: 12:30:00", "side: on", "date: 2026-01-01", "power: 1e3")
    text = "apiVersion: v1\nkind: Node\nmetadata:\n  name: a1\n  labels:\n    topology.kubernetes.io/zone: a\n"
    text += "".join(f"    {label}\n" for label in labels) + "    hard: \"true\"\n"  # fmt: skip
    text += "status:\n  addresses:\n  - {type: InternalIP, address: 127.1.0.1}\n"
    ran = topodns("explain", NAME, "--client", "127.1.0.1", "-o", "json", "--snapshot", *_files(tmp_path, text))
    expected = dict(label.split(": ") for label in labels) | {"hard": "true"}
    assert expected.items() <= ran.json["client"]["labels"].items()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: a\nspec: {}\n", r"line [345]: "),
        ("c.yaml", "kind: Node\nmetadata:\n\tname: a\n", "line 3: "),
        ("c.yaml", "kind: Node\nmetadata:\n  managedFields:\n  - a: 1\n   b: [\n  name: x: y\n", "line [4-6]: "),
        ("c.yaml", "kind: Pod\nmetadata: *nowhere\n", "line 2: "),
        ("c.json", '{"kind": "Node",\n "metadata": {"name": "a"}\n', "line [23]: "),
        ("c.json", '{"kind": "Node"}}', "line 1: "),
        ("c.yaml", "kind: Node\n\x01", "YAML"),
        ("c.yaml", b"kind: Node\nname: \xff\xfe\n", "YAML|UTF-8"),
        ("c.json", b'{"kind": "\xff"}', "no object that topodns reads"),
        ("c.yaml", "[" * 100_000, "nested|line|list"),
        ("c.yaml", "a: " + "{b: " * 2_000, "nested|line"),
    ],
    ids=["yaml-line", "yaml-tab", "yaml-in-a-block-nobody-reads", "yaml-alias", "json-line", "json-rest",
         "control-character", "no-utf-8", "json-no-utf-8", "deep-flow-list",
         "deep-mapping"],
)  # fmt: skip
def test_unreadable_snapshot(topodns: Run, tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    """An unreadable file ends with status 2 and one line: file, place, what was found or expected."""
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    for command in (("check",), ("explain", NAME, "--client", "127.1.0.1")):
        ran = topodns(*command, "--snapshot", str(path))
        assert (ran.status, ran.out) == (WRONG, "")
        assert re.match(f"topodns: {re.escape(str(path))}: .*({message})", ran.err) and ran.err.count("\n") == 1


def test_half_a_surrogate_pair(topodns: Run, tmp_path: Path) -> None:
    """JSON can escape half a character; the error names its place, in an object or in the file."""
    (path,) = _files(tmp_path, '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "\\ud800"}}', suffix=".json")
    ran = topodns("check", "--snapshot", path)
    assert ran.status in (FAILED, WRONG) and path in ran.out + ran.err


BAD_OBJECTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # what: (object, where it is said to be, field, words)
    "no-name": (changed(NODE_B, metadata__name=None), "Node", "metadata.name", "without a name"),
    "empty-name": (changed(POD, metadata__name=""), "Pod", "metadata.name", "without a name"),
    "no-metadata": (changed(POD, metadata=None), "Pod", "", "metadata"),
    "metadata-is-a-list": (changed(POD, metadata=[]), "Pod", "metadata", "object"),
    "name-is-a-number": (changed(POD, metadata__name=7), "Pod", "metadata.name", "int"),
    "service-name": (changed(SERVICE, metadata__name="web.2"), "Service shop/web.2", "metadata.name", "no DNS label"),
    "service-namespace": (
        changed(SERVICE, metadata__namespace="Shop"), "Service Shop/web", "metadata.namespace", "no DNS label"),
    "namespace-name": (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a b"}}, "Namespace a b", "metadata.name",
        "no DNS label"),
    "external-name": (
        changed(SERVICE, metadata__name="s2", spec={"type": "ExternalName", "externalName": "a..b"}),
        "Service shop/s2", "spec.externalName", "'a..b' is no domain name"),
    "node-address": (
        changed(NODE_B, metadata__name="b2", status__addresses=[{"type": "InternalIP", "address": "10.0.0.300"}]),
        "Node b2", "status.addresses[0].address", "'10.0.0.300' is no IP address"),
    "node-annotation": (
        changed(NODE_B, metadata__name="b2", metadata__annotations={"flannel.alpha.coreos.com/public-ip": "x"}),
        "Node b2", "metadata.annotations[flannel.alpha.coreos.com/public-ip]", "'x' is no IP address"),
    "node-pod-cidr": (
        changed(NODE_B, metadata__name="b2", spec__podCIDRs=["10.0.0.0/33"]),
        "Node b2", "spec.podCIDRs[0]", "'10.0.0.0/33' is no CIDR"),
    "pod-address": (
        changed(POD, metadata__name="p2", status__podIP="here", status__podIPs=None),
        "Pod shop/p2", "status.podIP", "'here' is no IP"),
    "service-address": (
        changed(SERVICE, metadata__name="s2", spec__clusterIP="10.96.0", spec__clusterIPs=None),
        "Service shop/s2", "spec.clusterIP", "'10.96.0' is no IP"),
    "service-ports": (
        changed(SERVICE, metadata__name="s2", spec__ports="80"), "Service shop/s2", "spec.ports", "array"),
    "endpoint-address": (
        changed(SLICE, metadata__name="web-2",
                endpoints=[{"addresses": ["10.9.0.1", "300.1.1.1"], "nodeName": "a1"}]),
        "EndpointSlice shop/web-2", "endpoints[0].addresses[1]", "'300.1.1.1' is no IP"),
    "endpoints": (
        changed(SLICE, metadata__name="web-2", endpoints={"addresses": []}),
        "EndpointSlice shop/web-2", "endpoints", "array"),
    "endpoint-port": (
        changed(SLICE, metadata__name="web-2", ports=[{"name": "big", "port": 65536}]),
        "EndpointSlice shop/web-2", "ports[0]", "65536"),
    "service-port": (
        changed(SERVICE, metadata__name="s2", spec__ports=[{"name": "big", "port": -1}]),
        "Service shop/s2", "ports[0]", "-1"),
    "invalid-constraint": (
        changed(SERVICE, metadata__name="s2", metadata__annotations={"topodns.io/topology-keys": "*,a"}),
        "Service shop/s2", "metadata.annotations[topodns.io/topology-keys]", "invalid constraint"),
    "invalid-field": (
        changed(SERVICE, metadata__name="s2", metadata__annotations={}, spec__topologyKeys=["a", "a"]),
        "Service shop/s2", "spec.topologyKeys", "'a' is listed twice"),
}  # fmt: skip


@pytest.mark.parametrize(("item", "where", "field", "words"), BAD_OBJECTS.values(), ids=BAD_OBJECTS)
def test_bad_object(topodns: Run, tmp_path: Path, item: dict[str, Any], where: str, field: str, words: str) -> None:
    """An error in one object names it and the field; topodns serves the other objects."""
    (path,) = _files(tmp_path, yaml.safe_dump_all([item, *CLUSTER]))
    ran = topodns("check", "--snapshot", path)
    errors = [line for line in ran.out.splitlines() if line.startswith("error")]
    assert ran.status == FAILED and len(errors) == 1
    assert where in errors[0] and field in errors[0] and words in errors[0]
    assert errors[0].endswith("[InvalidTopologyKeys]" if "invalid constraint" in errors[0] else "[UnreadableObject]")
    explained = topodns("explain", NAME, "--client", "127.1.0.9", "--snapshot", path, "-o", "json")
    assert explained.status == DONE
    assert [answer["data"] for answer in explained.json["answers"]] == ["10.9.0.1"]


def test_bad_item_of_a_list(topodns: Run, tmp_path: Path) -> None:
    """An item that is not an object is named by its position in the list."""
    (path,) = _files(tmp_path, yaml.safe_dump({**LIST, "items": [*CLUSTER, "words", {"kind": 7}]}))
    ran = topodns("check", "--snapshot", path, "-o", "json")
    assert ran.status == FAILED
    assert [finding["name"] for finding in ran.json] == [f"items[{len(CLUSTER) + more}]" for more in (0, 1)]


ODDITIES: dict[str, tuple[list[dict[str, Any]], str, str, str]] = {
    # what: (objects beside the cluster, code, kind and name, words)
    "slice-without-a-label": ([changed(SLICE, metadata__name="web-2", metadata__labels={})],
                              "SliceWithoutService", "EndpointSlice shop/web-2", "without a Service"),
    "pod-cidr-that-is-shared": (
        [changed(NODE_A, spec={"podCIDR": "10.8.0.0/24"}), changed(NODE_B, spec={"podCIDR": "10.8.0.0/24"})],
        "PodCidrDistrusted", "Node b1", "10.8.0.0/24"),
}  # fmt: skip


@pytest.mark.parametrize(("others", "code", "where", "words"), ODDITIES.values(), ids=ODDITIES)
def test_warning(topodns: Run, tmp_path: Path, others: list[dict[str, Any]], code: str, where: str, words: str) -> None:
    """What is allowed but probably not meant is a warning that names the object; the status stays 0."""
    (path,) = _files(tmp_path, yaml.safe_dump_all([*CLUSTER, *others]))
    ran = topodns("check", "--snapshot", path)
    *lines, read, _ = [line for line in ran.out.splitlines() if "[ObjectTwice]" not in line]
    assert read.startswith("read 1 file: ")
    assert ran.status == DONE and lines and all(line.startswith("warning") for line in lines)
    assert [line for line in lines if where in line and words in line and line.endswith(f" [{code}]")]
    rows = topodns("check", "--snapshot", path, "-o", "json").json
    found = [finding for finding in rows if finding["code"] != "ObjectTwice"]
    assert len(found) == len(lines)
    for finding in found:
        assert list(finding) == ["code", "severity", "kind", "namespace", "name", "field", "message", "expected",
                                 "line", "file"]  # fmt: skip
        assert finding["severity"] == "warning" and finding["field"]
    assert code in {finding["code"] for finding in found}


def test_check_of_a_good_cluster(topodns: Run, cluster: str) -> None:
    """Without findings, ``check`` prints what it has read, and the numbers, and ends with status 0."""
    ran = topodns("check", "--snapshot", cluster)
    read = "read 1 file: 1 namespace, 3 nodes, 1 pod, 2 Services, 2 EndpointSlices"
    assert (ran.status, ran.out, ran.err) == (DONE, f"{read}\n0 errors, 0 warnings\n", "")


@pytest.mark.parametrize(
    ("others", "flags", "status"),
    [
        ([], ("--fail-on", "warning"), DONE),
        ([changed(NODE_B, metadata__labels={})], (), DONE),
        ([changed(NODE_B, metadata__labels={})], ("--fail-on", "error"), DONE),
        ([changed(NODE_B, metadata__labels={})], ("--fail-on=warning", "-o", "json"), FAILED),
        ([changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"})], (), FAILED),
        (
            [changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"})],
            ("--fail-on", "warning"),
            FAILED,
        ),
        ([changed(SERVICE, spec__topologyKeys=["a"])], ("--fail-on", "warning"), DONE),
        ([], ("--fail-on", "info"), WRONG),
    ],
    ids=[
        "nothing",
        "warning-by-default",
        "warning",
        "warning-fails",
        "error-by-default",
        "error",
        "info",
        "no-severity",
    ],
)
def test_what_fails(
    topodns: Run, tmp_path: Path, others: list[dict[str, Any]], flags: tuple[str, ...], status: int
) -> None:
    """``--fail-on`` says from which severity on the status is 1; an info never fails."""
    names = {(item["kind"], item["metadata"]["name"]) for item in others}
    rest = [item for item in CLUSTER if (item["kind"], item["metadata"]["name"]) not in names]
    (path,) = _files(tmp_path, yaml.safe_dump_all([*rest, *others]))
    assert topodns("check", "--snapshot", path, *flags).status == status


def test_what_fails_by_environment_or_file(topodns: Run, tmp_path: Path) -> None:
    """``--fail-on`` is a setting like others: a pipeline can have it in its environment or its file."""
    rest = [item for item in CLUSTER if item["metadata"]["name"] != NODE_B["metadata"]["name"]]
    (path,) = _files(tmp_path, yaml.safe_dump_all([*rest, changed(NODE_B, metadata__labels={})]))
    config = tmp_path / "config.yaml"
    config.write_text("fail-on: warning\ncandidates: true\n")
    check = ("check", "--snapshot", path)
    assert topodns(*check, TOPODNS_FAIL_ON="warning").status == FAILED
    assert topodns(*check, "--config", str(config)).status == FAILED
    assert topodns(*check, "--config", str(config), TOPODNS_FAIL_ON="error").status == DONE
    explain = ("explain", NAME, "--client", "10.0.0.1", "--snapshot", path)
    assert "\ncandidates  CHOSEN" in topodns(*explain, "--config", str(config)).out
    assert "\ncandidates  CHOSEN" in topodns(*explain, TOPODNS_CANDIDATES="on").out


@pytest.mark.parametrize(
    "flags",
    [
        ("-n", "lab"),
        ("-nlab",),
        ("--namespace", "lab"),
        ("--serve-namespace", "lab"),
        ("-n", "none", "--namespace=lab"),
    ],
    ids=" ".join,
)
def test_check_of_a_namespace(topodns: Run, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """As kubectl, ``check`` then looks at it alone: findings about other namespaces are left out."""
    wrong = changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"}, metadata__name="s2")
    (path,) = _files(tmp_path, yaml.safe_dump_all([*CLUSTER, wrong, changed(wrong, metadata__namespace="lab")]))
    found = topodns("check", "--snapshot", path, "-o", "json", *flags)
    assert (found.status, [finding["namespace"] for finding in found.json]) == (FAILED, ["lab"])
    assert len(topodns("check", "--snapshot", path, "-o", "json").json) == 2


@pytest.mark.parametrize("left_out", [(), ("Namespace",)], ids=["namespaces", "none-in-the-dump"])
def test_check_of_an_unknown_namespace(topodns: Run, tmp_path: Path, left_out: tuple[str, ...]) -> None:
    """``check`` looks at nothing there, so it says so, and suggests the nearest; known ones need no word."""
    (path,) = _files(tmp_path, yaml.safe_dump_all([item for item in CLUSTER if item["kind"] not in left_out]))
    ran = topodns("check", "--snapshot", path, "-n", "shpo", "-n", "shop")
    assert (ran.status, ran.err) == (DONE, "topodns: --namespace: no namespace shpo, did you mean shop?\n")


def test_subnets_that_check_proposes(topodns: Run, tmp_path: Path) -> None:
    """In a cluster without pod CIDRs, the text proposes flags by which a pod is located that nobody has seen yet."""
    nodes = [node("a1", {ZONE: "a"}, addresses=["10.0.1.1"]), node("b1", {ZONE: "b"}, addresses=["10.0.2.1"])]
    pods = [pod("pa", ["10.0.1.7"], "a1"), pod("pb", ["10.0.2.7"], "b1")]
    (path,) = _files(tmp_path, yaml.safe_dump_all([*nodes, *pods, *CLUSTER[-2:]]))
    ran = topodns("check", "--snapshot", path)
    *_, first, second, read, last = ran.out.splitlines()
    assert (ran.status, last) == (DONE, "0 errors, 0 warnings")
    flags = [*first.split(), *second.split()]
    assert flags == ["--subnet", f"10.0.1.0/24={ZONE}=a", "--subnet", f"10.0.2.0/24={ZONE}=b"]
    assert topodns("check", "--snapshot", path, "-o", "json").json == []
    assert topodns("check", "--snapshot", path, *flags).out == f"{read}\n0 errors, 0 warnings\n"
    for address, zone in (("10.0.1.99", "a"), ("10.0.2.99", "b")):
        client = topodns("explain", NAME, "--client", address, "-o", "json", "--snapshot", path, *flags).json["client"]
        assert client["labels"] == {ZONE: zone}


# --- explain --------------------------------------------------------------------------------------------------------


def test_explain_as_json(topodns: Run, cluster: str) -> None:
    """The Decision, field by field."""
    explained = topodns("explain", NAME, "SRV", "--client", "127.1.0.9", "-o", "json", "--snapshot", cluster).json
    expected = {
        "question": {"name": f"{NAME}.", "type": "SRV"},
        "client": {
            "address": "127.1.0.9",
            "located_by": "pod",
            "node": "a1",
            "labels": {"kubernetes.io/hostname": "a1", "topology.kubernetes.io/zone": "a"},
        },
        "service": {"namespace": "shop", "name": "web"},
        "constraint": {
            "source": "annotation",
            "keys": ["kubernetes.io/hostname", "topology.kubernetes.io/zone"],
            "valid": True,
            "error": None,
        },
        "outcome": "nearest",
        "rcode": "NOERROR",
        "extended_error": None,
    }
    for field, value in expected.items():
        found = explained[field]
        assert {key: found[key] for key in value} == value if isinstance(value, dict) else found == value
    assert explained["steps"] == [{"key": "kubernetes.io/hostname", "value": "a1", "matched": 1}]
    (answer,) = explained["answers"]
    assert answer == {"name": f"{NAME}.", "type": "SRV", "ttl": 5, "data": f"0 100 80 10-9-0-1.{NAME}."}


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ((NAME, "--client", "127.1.0.9"), ["question", f"{NAME}. A", "pod shop/client", "a1", "shop/web",
                                           "annotation", "kubernetes.io/hostname=a1", "nearest", "10.9.0.1"]),
        ((NAME, "--client", "127.1.0.2"), ["node b1", "kubernetes.io/hostname=b1", "topology.kubernetes.io/zone=b",
                                           "0 endpoints", "unmet", "NOERROR", "extended error 0"]),
        ((NAME, "--client", "9.9.9.9"), ["located by unknown", "unmet"]),
        (("none.shop.svc.cluster.local", "--client", "127.1.0.9"), ["NXDOMAIN", "none"]),
        (("example.com", "--client", "127.1.0.9"), ["REFUSED"]),
        (("cluster.local", "SOA", "--client", "127.1.0.9"), ["SOA", "ns.dns.cluster.local. hostmaster.cluster.local."]),
        ((NAME, "aaaa", "--client", "127.1.0.0/24"), ["127.1.0.0/24", "AAAA", "NOERROR"]),
    ],
    ids=["nearest", "unmet", "unknown", "nxdomain", "refused", "soa", "block"],
)  # fmt: skip
def test_explain_as_text(topodns: Run, cluster: str, arguments: tuple[str, ...], facts: list[str]) -> None:
    """The text says how the client is located, the constraint, the endpoints and the answer; status 0."""
    ran = topodns("explain", *arguments, "--snapshot", cluster)
    assert (ran.status, ran.err) == (DONE, "")
    assert [fact for fact in facts if fact not in ran.out] == []
    columns = {re.match(r"(\S+)?\s*", line).end() for line in ran.out.splitlines()}  # type: ignore[union-attr]
    assert len(columns) == 1, "values stand below each other"
    assert "\033" not in ran.out


def test_explain_says_why_a_constraint_counts_for_nothing(topodns: Run, tmp_path: Path) -> None:
    """An invalid constraint, and one on a Service with a ClusterIP, are shown with the reason."""
    invalid = changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"})
    virtual = changed(SERVICE, metadata__name="api", spec__clusterIPs=["10.96.0.7"])
    (path,) = _files(tmp_path, yaml.safe_dump_all([*CLUSTER[:4], SLICE, invalid, virtual]))
    explained = topodns("explain", NAME, "--client", "127.1.0.2", "--snapshot", path, "-o", "json").json
    assert (explained["constraint"]["valid"], explained["outcome"]) == (False, "unconstrained")
    assert explained["constraint"]["error"]
    assert "INVALID" in topodns("explain", NAME, "--client", "127.1.0.2", "--snapshot", path).out.upper()
    text = topodns("explain", "api.shop.svc.cluster.local", "--client", "127.1.0.2", "--snapshot", path).out
    assert "not headless" in text and "10.96.0.7" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((NAME, "--client", "nobody"), "--client: 'nobody'"),
        ((NAME, "--client", "10.0.0.0/33"), "--client: '10.0.0.0/33'"),
        ((NAME, "BOGUS", "--client", "10.0.0.1"), "'BOGUS' is not a record type"),
        (("svc", "memcached", "--client", "10.0.0.1"), "expected svc/memcached as NAME, or a record type"),
        (("a..b", "--client", "10.0.0.1"), "'a..b' is not a domain name"),
        (("é.test", "--client", "10.0.0.1"), "ASCII"),
    ],
    ids=["client", "prefix", "type", "two-words", "name", "no-ascii"],
)
def test_explain_of_nonsense(topodns: Run, cluster: str, arguments: tuple[str, ...], message: str) -> None:
    """A question that cannot be asked ends with status 2 and one line."""
    ran = topodns("explain", *arguments, "--snapshot", cluster)
    assert (ran.status, ran.out) == (WRONG, "")
    assert ran.err.startswith("topodns: ") and message in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_colour_only_on_a_terminal(cluster: str, env: dict[str, str], coloured: bool) -> None:
    """Only a terminal that understands them gets escape codes."""
    ours, theirs = pty.openpty()
    printed = b""
    try:
        command = [*COMMAND, "explain", NAME, "--client", "127.1.0.9", "--snapshot", cluster]
        try:
            ran = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                 env=environment({"TERM": "xterm", **env}), timeout=PATIENCE, check=False)  # fmt: skip
        finally:
            os.close(theirs)
        with suppress(OSError):  # the end, to which it is read: a terminal hands on what was printed piece by piece
            while True:
                printed += os.read(ours, 65536)
    finally:
        os.close(ours)
    assert (ran.returncode, ran.stderr) == (DONE, b"")
    assert (b"\033[" in printed) == coloured and b"10.9.0.1" in printed


# --- The rest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["topodns", "kubectl-topodns"])
def test_version_by_every_name(program: str) -> None:
    """Both commands print topodns' version, Python's and the libraries'."""
    path = Path(sys.executable).parent / program
    ran = subprocess.run([path, "version"], capture_output=True, text=True, env=environment(), check=False)
    assert (ran.returncode, ran.stderr) == (DONE, "")
    lines = ran.stdout.splitlines()
    assert lines[0] == f"topodns {__version__}" and lines[1].startswith("python 3.")
    assert any(line.startswith("dnslib ") for line in lines)


def test_no_command(topodns: Run) -> None:
    """Without a command, the status is 2 and the help lists the commands."""
    ran = topodns()
    assert ran.status == WRONG and "serve" in ran.out + ran.err


def test_serve_beside_bad_objects(serve: Callable[..., Server]) -> None:
    """An error in one object is logged with its place, and everything else is served."""
    item, where, field, words = BAD_OBJECTS["endpoint-address"]
    server = serve([item, *CLUSTER, *OTHERS])
    line = server.wait_for(f"ERROR .*{re.escape(where)}.*{re.escape(field)}").string
    assert words in line
    reply = server.ask(dns.message.make_query(NAME, "A"), source="127.1.0.9")
    assert [str(rdata) for rrset in reply.answer for rdata in rrset] == ["10.9.0.1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("kind: Node\nmetadata: {name: [\n", "line ")],
    ids=["missing", "broken"],
)
def test_serve_without_a_first_view(tmp_path: Path, content: str | None, message: str) -> None:
    """A server that cannot read its first snapshot ends with status 2 and says why."""
    path = tmp_path / "cluster.yaml"
    if content is not None:
        path.write_text(content)
    ran = run("serve", "--listen", "127.0.0.1:0", "--http", "off", "--snapshot", str(path))
    assert ran.returncode == WRONG and "Traceback" not in ran.stderr and "\nready\n" not in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith(f"topodns: {path}: ") and message in ran.stderr


@pytest.mark.parametrize(
    ("flag", "kind"),
    [("listen", socket.SOCK_DGRAM), ("listen", socket.SOCK_STREAM), ("http", socket.SOCK_STREAM)],
    ids=["udp", "tcp", "http"],
)
def test_port_in_use(cluster: str, kind: socket.SocketKind, flag: str) -> None:
    """If a port is in use, the server ends with status 1 before it answers anything."""
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = {"listen": "127.0.0.1:0", "http": "off", flag: address}
        ran = run("serve", "--snapshot", cluster, *(f"--{name}={value}" for name, value in flags.items()))
    assert ran.returncode == FAILED and "Traceback" not in ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith(f"topodns: --{flag}") and address in last and "in use" in last


def test_address_that_is_not_ours(cluster: str) -> None:
    """An address of another machine ends the server with status 1; the error names it."""
    ran = run("serve", "--snapshot", cluster, "--http", "off", "--listen", "192.0.2.1:0")
    assert ran.returncode == FAILED and "192.0.2.1" in ran.stderr and "Traceback" not in ran.stderr


def test_standard_input_is_served(tmp_path: Path) -> None:
    """``serve --snapshot -`` answers from its standard input, also after SIGHUP."""
    process = Process(["serve", "--snapshot", "-", "--listen", "127.0.0.1:0", "--http", "off"], stdin=json.dumps(LIST))
    try:
        process.wait_for(r"^ready$")
        port = int(process.wait_for(r"^listening udp .*:(\d+)$")[1])
        reply = dns.query.udp(dns.message.make_query(NAME, "A"), "127.0.0.1", PATIENCE, port, source="127.1.0.9")
        assert len(reply.answer) == 1
    finally:
        assert process.end() == DONE


@pytest.mark.parametrize(
    "order",
    [
        ("{name}", "{type}", "{client}", "{snapshot}"),
        ("{name}", "{client}", "{type}", "{snapshot}"),
        ("{client}", "{name}", "{snapshot}", "{type}"),
        ("{snapshot}", "{client}", "{name}", "{type}"),
    ],
    ids=" ".join,
)
def test_flags_may_stand_anywhere(topodns: Run, cluster: str, order: tuple[str, ...]) -> None:
    """Flags may come before, between or after NAME and TYPE."""
    words = {
        "{name}": [NAME],
        "{type}": ["SRV"],
        "{client}": ["--client", "127.1.0.9"],
        "{snapshot}": ["--snapshot", cluster],
    }
    ran = topodns("explain", "-o", "json", *(word for part in order for word in words[part]))
    assert (ran.status, ran.json["question"]["type"]) == (DONE, "SRV")


@pytest.mark.parametrize(
    "text",
    ['{"kind": "List"}', "kind: List\napiVersion: v1\nitems: []\n"],
    ids=["list", "empty-list"],
)
def test_what_holds_no_object_is_no_cluster(topodns: Run, tmp_path: Path, text: str) -> None:
    """A file without any Kubernetes object is an error, not an empty cluster."""
    ran = topodns("check", "--snapshot", *_files(tmp_path, text))
    assert ran.status == WRONG and "no object that topodns reads" in ran.err


def test_huge_number_in_an_unreadable_object(topodns: Run, tmp_path: Path) -> None:
    """An object whose name cannot be read is skipped like any other unreadable one."""
    text = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 1, "n": %s}}' % ("9" * 5000)
    ran = topodns("check", "--snapshot", *_files(tmp_path, text, suffix=".json"))
    assert ran.status == FAILED and "Pod: metadata.name" in ran.out
