# SPDX-License-Identifier: Apache-2.0

"""``check``, ``explain`` and ``serve`` on dumps of a small cluster: what they print, and their exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dns.message
import dns.query
import pytest
import yaml

from dnsserver import __version__
from dnsserver.cli import output
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
from tests.kit.topodns_process import Process, run
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


def written(folder: Path, text: str, *, suffix: str = ".yaml") -> str:
    """Return the path of a new file with a text."""
    path = folder / f"part{suffix}"
    path.write_text(text)
    return str(path)


OTHERS = [
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"kind": "Pod"}},
    {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
     "spec": {"clusterIP": 7}},
    {"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [{"metadata": {"name": "web"}}]},
    {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web", "namespace": "shop"}, "subsets": 5},
]  # fmt: skip
LIST = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": CLUSTER}

DOCUMENTS = "# dumped\n---\n" + "\n---\n---\n# and\n".join(map(yaml.safe_dump, CLUSTER)) + "\n---\n"
FORMS = {
    # what: (the end of the file's name, its text)
    "a-list-without-a-suffix-that-has-other-kinds": ("", json.dumps({**LIST, "items": [*OTHERS, *CLUSTER]})),
    "documents-with-empty-ones-and-windows-lines": (".yaml", DOCUMENTS.replace("\n", "\r\n")),
}


@pytest.mark.parametrize(("suffix", "text"), FORMS.values(), ids=FORMS)
def test_forms_of_a_snapshot(topodns: Run, tmp_path: Path, suffix: str, text: str) -> None:
    """Every form in which kubectl prints a cluster reads as the same cluster, without findings."""
    path = written(tmp_path, text, suffix=suffix)
    assert topodns("check", "-o", "json", "--snapshot", path) == (DONE, "[]\n", "")
    explained = topodns("explain", NAME, "--client", "127.1.0.9", "-o", "json", "--snapshot", path).json
    assert [answer["data"] for answer in explained["answers"]] == ["10.9.0.1"]


def test_standard_input() -> None:
    """``--snapshot -`` reads what kubectl pipes."""
    ran = run("explain", NAME, "--client", "127.1.0.9", "--snapshot", "-", stdin=yaml.safe_dump(LIST))
    assert ran.returncode == DONE and "10.9.0.1" in ran.stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: a\nspec: {}\n", r"line [345]: "),
        ("c.yaml", "kind: Node\nmetadata:\n\tname: a\n", "line 3: "),
        ("c.yaml", "kind: Node\nmetadata:\n  managedFields:\n  - a: 1\n   b: [\n  name: x: y\n", "line [4-6]: "),
        ("c.yaml", "kind: Pod\nmetadata: *nowhere\n", "line 2: "),
        ("c.json", '{"kind": "Node",\n "metadata": {"name": "a"}\n', "line [23]: "),
        ("c.json", '{"kind": "Node"}}', "line 1: "),
    ],
    ids=["yaml-line", "yaml-tab", "yaml-in-a-block-nobody-reads", "yaml-alias", "json-line", "json-rest"],
)  # fmt: skip
def test_unreadable_snapshot(topodns: Run, tmp_path: Path, name: str, content: str, message: str) -> None:
    """An unreadable file ends with status 2 and one line: file, place, what was found or expected."""
    path = tmp_path / name
    path.write_text(content)
    ran = topodns("check", "--snapshot", str(path))
    assert (ran.status, ran.out) == (WRONG, "")
    assert re.match(f"topodns: {re.escape(str(path))}: .*({message})", ran.err) and ran.err.count("\n") == 1


BAD_OBJECTS: list[tuple[dict[str, Any], str, str, str]] = [
    # the object, where it is said to be, field, words
    (changed(NODE_B, metadata__name=None), "Node", "metadata.name", "without a name"),
    (changed(POD, metadata__name=""), "Pod", "metadata.name", "without a name"),
    (changed(POD, metadata=None), "Pod", "", "metadata"),
    (changed(POD, metadata=[]), "Pod", "metadata", "object"),
    (changed(POD, metadata__name=7), "Pod", "metadata.name", "int"),
    (changed(SERVICE, metadata__name="web.2"), "Service shop/web.2", "metadata.name", "no DNS label"),
    (changed(SERVICE, metadata__namespace="Shop"), "Service Shop/web", "metadata.namespace", "no DNS label"),
    ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a b"}}, "Namespace a b", "metadata.name",
     "no DNS label"),
    (changed(SERVICE, metadata__name="s2", spec={"type": "ExternalName", "externalName": "a..b"}),
     "Service shop/s2", "spec.externalName", "'a..b' is no domain name"),
    (changed(NODE_B, metadata__name="b2", status__addresses=[{"type": "InternalIP", "address": "10.0.0.300"}]),
     "Node b2", "status.addresses[0].address", "'10.0.0.300' is no IP address"),
    (changed(NODE_B, metadata__name="b2", metadata__annotations={"flannel.alpha.coreos.com/public-ip": "x"}),
     "Node b2", "metadata.annotations[flannel.alpha.coreos.com/public-ip]", "'x' is no IP address"),
    (changed(NODE_B, metadata__name="b2", spec__podCIDRs=["10.0.0.0/33"]),
     "Node b2", "spec.podCIDRs[0]", "'10.0.0.0/33' is no CIDR"),
    (changed(POD, metadata__name="p2", status__podIP="here", status__podIPs=None),
     "Pod shop/p2", "status.podIP", "'here' is no IP"),
    (changed(SERVICE, metadata__name="s2", spec__clusterIP="10.96.0", spec__clusterIPs=None),
     "Service shop/s2", "spec.clusterIP", "'10.96.0' is no IP"),
    (changed(SERVICE, metadata__name="s2", spec__ports="80"), "Service shop/s2", "spec.ports", "array"),
    (changed(SLICE, metadata__name="web-2",
             endpoints=[{"addresses": ["10.9.0.1", "300.1.1.1"], "nodeName": "a1"}]),
     "EndpointSlice shop/web-2", "endpoints[0].addresses[1]", "'300.1.1.1' is no IP"),
    (changed(SLICE, metadata__name="web-2", endpoints={"addresses": []}),
     "EndpointSlice shop/web-2", "endpoints", "array"),
    (changed(SLICE, metadata__name="web-2", ports=[{"name": "big", "port": 65536}]),
     "EndpointSlice shop/web-2", "ports[0]", "65536"),
    (changed(SERVICE, metadata__name="s2", spec__ports=[{"name": "big", "port": -1}]),
     "Service shop/s2", "ports[0]", "-1"),
]  # fmt: skip


def test_bad_objects(topodns: Run, tmp_path: Path) -> None:
    """An error in one object names it and the field; topodns serves the other objects."""
    path = written(tmp_path, yaml.safe_dump_all([*(item for item, *_ in BAD_OBJECTS), *CLUSTER]))
    ran = topodns("check", "--snapshot", path)
    errors = [line for line in ran.out.splitlines() if line.startswith("error")]
    assert ran.status == FAILED and len(errors) == len(BAD_OBJECTS)
    for _, where, field, words in BAD_OBJECTS:
        said = f"error .* {re.escape(where)}\\b.*{re.escape(field)}.*{re.escape(words)}.* \\[UnreadableObject\\]"
        assert any(re.fullmatch(said, line) for line in errors), said
    explained = topodns("explain", NAME, "--client", "127.1.0.9", "--snapshot", path, "-o", "json").json
    assert [answer["data"] for answer in explained["answers"]] == ["10.9.0.1"]


def test_bad_item_of_a_list(topodns: Run, tmp_path: Path) -> None:
    """An item that is not an object is named by its position in the list."""
    path = written(tmp_path, yaml.safe_dump({**LIST, "items": [*CLUSTER, "words", {"kind": 7}]}))
    ran = topodns("check", "--snapshot", path, "-o", "json")
    assert ran.status == FAILED
    assert [finding["name"] for finding in ran.json] == [f"items[{len(CLUSTER) + more}]" for more in (0, 1)]


def test_check_of_a_good_cluster(topodns: Run, cluster: str) -> None:
    """Without findings, ``check`` prints what it has read, and the numbers, and ends with status 0."""
    ran = topodns("check", "--snapshot", cluster)
    read = "read 1 file: 1 namespace, 3 nodes, 1 pod, 2 Services, 2 EndpointSlices"
    assert (ran.status, ran.out, ran.err) == (DONE, f"{read}\n0 errors, 0 warnings\n", "")


@pytest.mark.parametrize(
    ("others", "flags", "env", "status", "printed"),
    [
        ([], ("--fail-on", "warning"), {}, DONE, "0 errors, 0 warnings"),
        ([changed(NODE_B, metadata__labels={})], (), {}, DONE, "0 errors, 1 warning"),
        ([changed(NODE_B, metadata__labels={})], ("--fail-on=warning", "-o", "json"), {}, FAILED,
         '"severity": "warning"'),
        ([changed(NODE_B, metadata__labels={})], (), {"TOPODNS_FAIL_ON": "warning"}, FAILED, "0 errors, 1 warning"),
        ([changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"})], (), {}, FAILED, "1 error, "),
        ([changed(SERVICE, spec__topologyKeys=["a"])], ("--fail-on", "warning"), {}, DONE, "info "),
        ([], ("--fail-on", "info"), {}, WRONG, ""),
    ],
    ids=["nothing", "warning", "warning-that-fails", "by-the-environment", "error", "info", "no-severity"],
)  # fmt: skip
def test_what_fails(
    topodns: Run,
    tmp_path: Path,
    others: list[dict[str, Any]],
    flags: tuple[str, ...],
    env: dict[str, str],
    status: int,
    printed: str,
) -> None:
    """``--fail-on`` says from which severity on the status is 1; an info never fails."""
    names = {(item["kind"], item["metadata"]["name"]) for item in others}
    rest = [item for item in CLUSTER if (item["kind"], item["metadata"]["name"]) not in names]
    path = written(tmp_path, yaml.safe_dump_all([*rest, *others]))
    ran = topodns("check", "--snapshot", path, *flags, **env)
    assert ran.status == status and printed in ran.out


@pytest.mark.parametrize(
    "flags", [("-n", "lab"), ("--serve-namespace", "lab"), ("-n", "none", "--namespace=lab")], ids=" ".join
)
def test_check_of_a_namespace(topodns: Run, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """As kubectl, ``check`` then looks at it alone: findings about other namespaces are left out."""
    wrong = changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"}, metadata__name="s2")
    path = written(tmp_path, yaml.safe_dump_all([*CLUSTER, wrong, changed(wrong, metadata__namespace="lab")]))
    found = topodns("check", "--snapshot", path, "-o", "json", *flags)
    assert (found.status, [finding["namespace"] for finding in found.json]) == (FAILED, ["lab"])
    assert [*found.json[0]] == ["code", "severity", "kind", "namespace", "name", "field", "message", "expected", "line",
                                "file", "documentation"]  # fmt: skip
    assert len(topodns("check", "--snapshot", path, "-o", "json").json) == 2


@pytest.mark.parametrize("left_out", [(), ("Namespace",)], ids=["namespaces", "none-in-the-dump"])
def test_check_of_an_unknown_namespace(topodns: Run, tmp_path: Path, left_out: tuple[str, ...]) -> None:
    """``check`` looks at nothing there, so it says so, and suggests the nearest; known ones need no word."""
    path = written(tmp_path, yaml.safe_dump_all([item for item in CLUSTER if item["kind"] not in left_out]))
    ran = topodns("check", "--snapshot", path, "-n", "shpo", "-n", "shop")
    assert (ran.status, ran.err) == (DONE, "topodns: --namespace: no namespace shpo, did you mean shop?\n")


def test_subnets_that_check_proposes(topodns: Run, tmp_path: Path) -> None:
    """In a cluster without pod CIDRs, the text proposes flags by which a pod is located that nobody has seen yet."""
    nodes = [node("a1", {ZONE: "a"}, addresses=["10.0.1.1"]), node("b1", {ZONE: "b"}, addresses=["10.0.2.1"])]
    pods = [pod("pa", ["10.0.1.7"], "a1"), pod("pb", ["10.0.2.7"], "b1")]
    path = written(tmp_path, yaml.safe_dump_all([*nodes, *pods, *CLUSTER[-2:]]))
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
        (("cluster.local", "SOA", "--client", "127.1.0.9"), ["SOA", "ns.dns.cluster.local. hostmaster.cluster.local."]),
        ((NAME, "aaaa", "--client", "127.1.0.0/24"), ["127.1.0.0/24", "AAAA", "NOERROR"]),
    ],
    ids=["nearest", "unmet", "soa", "block"],
)  # fmt: skip
def test_explain_as_text(topodns: Run, cluster: str, arguments: tuple[str, ...], facts: list[str]) -> None:
    """The text says how the client is located, the constraint, the endpoints and the answer; status 0."""
    ran = topodns("explain", *arguments, "--snapshot", cluster)
    assert (ran.status, ran.err) == (DONE, "")
    assert [fact for fact in facts if fact not in ran.out] == []
    columns = {re.match(r"(\S+)?\s*", line).end() for line in ran.out.splitlines()}  # type: ignore[union-attr]
    assert len(columns) == 1, "values stand below each other"
    assert "\033" not in ran.out


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], coloured: bool) -> None:
    """Only a terminal that understands them gets escape codes."""
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **env}.items():
        monkeypatch.setenv(name, value)
    assert output.coloured() is coloured


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


def test_serve_without_a_first_view(tmp_path: Path) -> None:
    """A server that cannot read its first snapshot ends with status 2 and says why."""
    path = written(tmp_path, "kind: Node\nmetadata: {name: [\n")
    ran = run("serve", "--listen", "127.0.0.1:0", "--http", "off", "--snapshot", path)
    assert ran.returncode == WRONG and "Traceback" not in ran.stderr and "\nready\n" not in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith(f"topodns: {path}: line ")


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


def test_flags_may_stand_anywhere(topodns: Run, cluster: str) -> None:
    """Flags may come before, between or after NAME and TYPE."""
    client, snapshot = ("--client", "127.1.0.9"), ("--snapshot", cluster)
    for words in ((NAME, "SRV", *client, *snapshot), (*client, NAME, *snapshot, "SRV")):
        ran = topodns("explain", "-o", "json", *words)
        assert (ran.status, ran.json["question"]["type"]) == (DONE, "SRV")
