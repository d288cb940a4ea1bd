# SPDX-License-Identifier: Apache-2.0

"""Folders of dumps, as people bring them: what is in them is read, or said not to be read."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.cluster import dump_files
from locator.cluster.dump_files import DumpFiles
from locator.cluster.dumps.reading import BadDump, Dump
from locator.model import Finding, Object
from tests.kit.api_objects import endpoint, endpoint_slice, namespace, node, pod, service
from tests.kit.commands_in_process import Run
from tests.kit.random_cluster import world
from tests.kit.topodns_process import Server

ZONE = "topology.kubernetes.io/zone"
NODE, SERVICE = node("n1", {ZONE: "z1"}, cidrs=["10.1.0.0/24"]), service("db")
SLICE = endpoint_slice("db", 1, [endpoint("10.1.0.5", nodeName="n1")])
POD = pod("db-0", ["10.1.0.5"], "n1")
DONE, WRONG = 0, 2


def listed(*items: Mapping[str, Any], kind: str = "List") -> str:
    return json.dumps({"apiVersion": "v1", "kind": kind, "items": items})


def read(*paths: Path | str) -> Dump:
    return dump_files.read_here(DumpFiles([str(path) for path in paths]).inputs())


def passed_over(dump: Dump, folder: Path) -> dict[str, str]:
    """Return what is said of files that were not read, by their paths in a folder."""
    found = [finding for finding in dump.findings if finding.code == "PassedOver"]
    return {os.path.relpath(finding.file, folder): finding.message for finding in found}


def keys(dump: Dump) -> set[str]:
    return {item.key for item in dump.objects}


def lay(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def packed(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


# What folders hold

CLUSTER_INFO = {  # as 'kubectl cluster-info dump --output-directory' lays it
    "nodes.json": listed(NODE, kind="NodeList"),
    "shop/services.json": listed(SERVICE, kind="ServiceList"),
    "shop/pods.json": listed(POD, kind="PodList"),
    "shop/events.json": listed({"metadata": {"name": "x"}}, kind="EventList"),
    "shop/db-0/logs.txt": "==== START logs\n",
    "shop/db-1/logs.txt": "==== START logs\n",
}
MUST_GATHER = {
    "inspect/cluster-scoped-resources/core/nodes/n1.yaml": "---\n" + yaml.safe_dump(NODE),
    "inspect/namespaces/shop/core/services.yaml": yaml.safe_dump(json.loads(listed(SERVICE, kind="ServiceList"))),
    "inspect/namespaces/shop/core/pods.yaml": yaml.safe_dump(json.loads(listed(POD, kind="PodList"))),
    "inspect/namespaces/shop/pods/db-0/db-0.yaml": yaml.safe_dump(POD),
    "inspect/namespaces/shop/discovery.k8s.io/endpointslices.yaml": yaml.safe_dump(json.loads(listed(SLICE))),
    "inspect/audit_logs/audit.log.gz": packed("x"),
}
SUPPORT_BUNDLE = {
    "cluster-resources/nodes.json": listed(NODE, kind="NodeList"),
    "cluster-resources/services/shop.json": listed(SERVICE, kind="ServiceList"),
    "cluster-resources/groups.json": "[{}]",
    "cluster-info/cluster_version.json": '{"info": {}, "string": "v1.34"}',
    "version.yaml": "versionNumber: 1\n",
}
DEEP = "/".join(["d"] * 150)
FOLDERS = {
    # what: (files, keys of the objects, words for each file that is passed over)
    "cluster-info-dump": (CLUSTER_INFO, {"n1", "shop/db", "shop/db-0"},
                          {"shop/db-0/logs.txt": ".txt (and 1 more file)"}),
    "must-gather": (MUST_GATHER, {"n1", "shop/db", "shop/db-0", "shop/db-1"},
                    {"inspect/audit_logs/audit.log.gz": "ends in .gz"}),
    "support-bundle": (SUPPORT_BUNDLE, {"n1", "shop/db"},
                       {"cluster-info/cluster_version.json": "no kind (and 1 more file)",
                        "cluster-resources/groups.json": "a list found"}),
    "deep": ({"nodes.json": json.dumps(NODE), f"{DEEP}/services.json": json.dumps(SERVICE)}, {"n1"},
             {"/".join(["d"] * 101): "a folder below 100 others"}),
    "every-ending": (
        {"a.yaml": yaml.safe_dump(NODE), "b.yml": yaml.safe_dump(namespace("b")), "c.json": json.dumps(namespace("c")),
         "d.yaml.gz": packed(yaml.safe_dump(namespace("d"))), "e.yml.gz": packed(yaml.safe_dump(namespace("e"))),
         "f.json.gz": packed(json.dumps(namespace("f"))), "G.YAML": yaml.safe_dump(namespace("g"))},
        {"n1", *"bcdefg"}, {}),
    "what-is-no-dump": (
        {"a.yaml": yaml.safe_dump(NODE), ".git/config.yaml": "a: [", "._a.yaml": b"\0\5\26\7", "notes": "x",
         "b.tar": b"x", "c.tar.gz": b"x", "lost+found/d.yaml": "a: [", "e.yaml": "# x\n"},
        {"n1"}, {".git": "hidden", "._a.yaml": "macOS", "notes": "no ending", "b.tar": ".tar",
                 "c.tar.gz": ".gz", "lost+found": "file system", "e.yaml": "nothing but comments"}),
    "documents": (
        {"log.json": '{"a": 1}\n' * 20, "mixed.yaml": f"a: 1\n---\nb: 2\n---\n{yaml.safe_dump(NODE)}", "z.json": "7"},
        {"n1"}, {"log.json": "no kind (20 documents, and 1 more file)", "z.json": "int found"}),
}  # fmt: skip


@pytest.mark.parametrize(("files", "objects", "said"), FOLDERS.values(), ids=FOLDERS)
def test_folders(tmp_path: Path, files: Mapping[str, str | bytes], objects: set[str], said: Mapping[str, str]) -> None:
    """Objects in all folders are read; what is not read is said once for each reason, with a file and their number."""
    lay(tmp_path, files)
    dump = read(tmp_path)
    assert keys(dump) == objects
    found = passed_over(dump, tmp_path)
    assert all(message.startswith("not read: ") for message in found.values())
    assert found.keys() == said.keys() and all(words in found[file] for file, words in said.items()), found
    assert {finding.code for finding in dump.findings} <= {"PassedOver"}


def test_a_mounted_config_map(tmp_path: Path) -> None:
    """Each file is read once, though the kubelet keeps it in a hidden folder behind two links, and in other folders."""
    data = tmp_path / "..2026_11_25_18_00_00.123"
    lay(data, {"cluster.yaml": yaml.safe_dump(NODE), "sub/services.yaml": yaml.safe_dump(SERVICE)})
    (tmp_path / "..data").symlink_to(data.name)
    (tmp_path / "cluster.yaml").symlink_to("..data/cluster.yaml")
    (tmp_path / "sub").symlink_to("..data/sub")
    dump = read(tmp_path)
    assert keys(dump) == {"n1", "shop/db"} and dump.findings == [] and dump.counts.files == 2
    before = DumpFiles([str(tmp_path)]).signature()
    other = tmp_path / "..2026_11_25_18_00_01.456"
    lay(other, {"cluster.yaml": yaml.safe_dump(NODE), "sub/services.yaml": yaml.safe_dump(SERVICE)})
    (tmp_path / "..new").symlink_to(other.name)
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert DumpFiles([str(tmp_path)]).signature() != before


def test_a_change_in_an_inner_folder_is_seen(tmp_path: Path) -> None:
    """As one at the top is."""
    lay(tmp_path, {"a/b/nodes.json": json.dumps(NODE)})
    files = DumpFiles([str(tmp_path)])
    before = files.signature()
    assert files.signature() == before
    lay(tmp_path, {"a/c/services.json": json.dumps(SERVICE)})
    assert files.signature() != before


def test_links_in_a_circle(tmp_path: Path) -> None:
    """Each folder is read once, however many links lead to it."""
    lay(tmp_path, {"a/nodes.json": json.dumps(NODE)})
    for name, target in (("a/up", ".."), ("b", "a"), ("circle", "circle"), ("c.yaml", "c.yaml"), ("d.yaml", "gone")):
        (tmp_path / name).symlink_to(target)
    dump = read(tmp_path)
    assert keys(dump) == {"n1"} and dump.counts.files == 1
    found = passed_over(dump, tmp_path)
    assert found == {
        "a/up": "not read: a link to a folder that is read already (and 1 more file)",
        "c.yaml": "not read: a link that leads nowhere (and 1 more file)",
        "circle": "not read: the name has no ending",
    }


def test_special_files_hold_nothing_up(tmp_path: Path) -> None:
    """A named pipe or a socket in a folder is not opened; a device that is named is refused."""
    lay(tmp_path, {"nodes.json": json.dumps(NODE)})
    os.mkfifo(tmp_path / "pipe.yaml")
    with socket.socket(socket.AF_UNIX) as listener:
        where = os.getcwd()
        os.chdir(tmp_path)  # the path of a socket must be short
        try:
            listener.bind("socket.yaml")
        finally:
            os.chdir(where)
        assert passed_over(read(tmp_path), tmp_path) == {"pipe.yaml": "not read: no regular file (and 1 more file)"}
        with pytest.raises(BadDump, match=r"socket\.yaml: a device or socket found, expected a file, folder or pipe$"):
            read(tmp_path / "socket.yaml")
    for device in ("/dev/zero", "/dev/null"):
        with pytest.raises(BadDump, match=f"^{device}: a device or socket found"):
            read(device)


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is an error as a file is: it may hold a part of the cluster."""
    lay(tmp_path, {"nodes.json": json.dumps(NODE), "closed/x.json": "{}"})
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("locator.cluster.dumps.folders.os.scandir", refusing)
    with pytest.raises(BadDump, match=r"closed: Permission denied, expected a file or folder$"):
        read(tmp_path)


def test_files_of_a_folder_that_are_errors(tmp_path: Path) -> None:
    """What may hold a part of the cluster is never passed over: YAML that breaks off, tables, an empty file."""
    for content in ("kind: Node\nmetadata: {name: a", "NAME   READY\nweb-0   1/1\n", "", "kind: A\nkind: B\n"):
        lay(tmp_path, {"a.yaml": yaml.safe_dump(NODE), "sub/b.yaml": content})
        with pytest.raises(BadDump, match=r"sub/b\.yaml: "):
            read(tmp_path)
    lay(tmp_path, {f"{number}.yaml": "a: [" for number in range(12)})
    with pytest.raises(BadDump, match=r"^(\S+/\d+\.yaml: line 2: [^;]+; [^;]+; ){10}and 3 more$"):
        read(tmp_path)


def test_nothing_to_read(tmp_path: Path) -> None:
    """The message says what is there instead."""
    lay(tmp_path, {"dump.tar.gz": b"x"})
    words = r"nothing to read, expected a name that ends in \.yaml, .* or \.json\.gz \(.*dump\.tar\.gz: .* in \.gz\)$"
    with pytest.raises(BadDump, match=words):
        read(tmp_path)


# However a cluster is dumped

FORMS: dict[str, Callable[[list[Any]], str]] = {
    ".yaml": lambda items: yaml.safe_dump({"apiVersion": "v1", "items": items, "kind": "List"}),
    ".yml": lambda items: yaml.safe_dump_all(items),
    ".json": lambda items: json.dumps({"kind": "List", "apiVersion": "v1", "items": items}, indent=4),
}


@settings(max_examples=25)
@given(seed=st.integers(0, 40), data=st.data())
def test_however_a_cluster_is_dumped(tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject) -> None:
    """Over files, folders and forms, gzipped or not, some objects twice: the same objects, and no finding of it."""
    items = world(seed).items
    expected = dump_files.read_here([dump_files.Input("all.json", FORMS[".json"](items).encode())])
    folder = tmp_path_factory.mktemp("dump")
    rest = [*items, *data.draw(st.lists(st.sampled_from(items), max_size=3))]
    number = 0
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        part, rest = rest[:size], rest[size:]
        ending = data.draw(st.sampled_from(sorted(FORMS)))
        text, where = FORMS[ending](part), data.draw(st.sampled_from(["", "a/", "a/b/", "c/"]))
        zipped = data.draw(st.booleans())
        lay(folder, {f"{where}{number}{ending}{'.gz' if zipped else ''}": packed(text) if zipped else text})
        number += 1
    found = read(folder)

    def by_key(objects: list[Object]) -> dict[tuple[str, str], Object]:
        return {(type(item).__name__, item.key): item for item in objects}

    def said(findings: list[Finding]) -> set[tuple[str, ...]]:
        return {(row.code, row.kind, row.namespace, row.name, row.field, row.message) for row in findings}

    assert by_key(found.objects) == by_key(expected.objects)
    assert said(found.findings) == said(expected.findings)
    assert found.counts.objects == expected.counts.objects and found.counts.files == number


def test_the_same_object_twice(tmp_path: Path) -> None:
    """Equal ones are one; of others the later counts, in the order of the paths, and a finding has its line."""
    lay(tmp_path, {"a/n.yaml": yaml.safe_dump(NODE), "b/n.json": json.dumps(NODE)})
    assert read(tmp_path).findings == []
    lay(tmp_path, {"c/n.yaml": "# newer\n---\n" + yaml.safe_dump(node("n1", {ZONE: "z2"}))})
    dump = read(tmp_path)
    (finding,) = dump.findings
    assert (finding.code, finding.file, finding.line) == ("ObjectTwice", str(tmp_path / "c/n.yaml"), 3)
    assert dump.objects[0].labels[ZONE] == "z2"


# What is said


def test_what_check_says(topodns: Run, tmp_path: Path) -> None:
    """How much was read, and of which kinds, and what was passed over."""
    lay(tmp_path, {**CLUSTER_INFO, "shop/slices.yaml.gz": packed(listed(SLICE))})
    ran = topodns("check", "--forwarder-service", "off", "--snapshot", str(tmp_path))
    *_, read, numbers = ran.out.splitlines()
    passed = "passed over: 1 Event, 2 files"
    assert read == f"read 5 files: 1 node, 1 pod, 1 Service, 1 EndpointSlice; {passed}"
    assert (ran.status, numbers) == (DONE, "0 errors, 0 warnings, 1 info")
    answer = topodns("explain", "svc/db", "-n", "shop", "--client", "10.1.0.3", "--snapshot", str(tmp_path))
    assert "10.1.0.5" in answer.out


def test_documents_are_no_files(tmp_path: Path) -> None:
    """A file of which nothing was read was not read; one with an object was. The finding has the first line."""
    lay(tmp_path, {"log.json": '\n{"a": 1}\n' * 20, "mixed.yaml": f"a: 1\n---\nb: 2\n---\n{yaml.safe_dump(NODE)}"})
    dump = read(tmp_path)
    assert (dump.counts.files, dump.counts.passed_over) == (1, 1)
    lay(tmp_path, {"none.json": listed()})
    assert read(tmp_path).counts.files == 2, "an empty List is read"
    assert [finding.line for finding in dump.findings] == [2]


def test_a_large_dump_says_how_it_is_read_faster(topodns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML takes several times as long as JSON."""
    monkeypatch.setattr("locator.cluster.dumps.reading.LARGE", 1)
    comment = "#" * 3_000_000
    lay(tmp_path, {"a.yaml": f"{comment}\n{yaml.safe_dump(NODE)}", "b.json": json.dumps(namespace("b"))})
    read = topodns("check", "--forwarder-service", "off", "--snapshot", str(tmp_path)).out.splitlines()[-2]
    assert read.endswith("1 namespace; 3 MB are YAML: as JSON (kubectl's -o json) they are read faster")


def test_what_serve_says(tmp_path: Path) -> None:
    """The same, in its log, at each change; a removed file is forgotten, and of a missing kind nothing follows."""
    lay(tmp_path, CLUSTER_INFO)
    gone = "there is no Service shop/db"
    server = Server(["serve", "--snapshot", str(tmp_path), "--listen", "127.0.0.1:0", "--http", "off"])
    try:
        server.wait_for(r"INFO read 4 files: 1 node, .*; passed over: 1 Event, 2 files$")
        server.wait_for(r"ERROR .*the dump has neither EndpointSlices nor Endpoints")
        server.wait_for("ready")
        assert not [line for line in server.lines if "no trusted forwarder" in line]
        lay(tmp_path, {"shop/slices.yaml.gz": packed(listed(SLICE)), "shop/web.yaml": yaml.safe_dump(service("web"))})
        server.wait_for(r"INFO read 6 files: 1 node, 1 pod, 2 Services, 1 EndpointSlice.*$")
        server.wait_for("WARNING .*no trusted forwarder")
        assert not [line for line in server.lines if gone in line]
        (tmp_path / "shop/services.json").unlink()
        server.wait_for("INFO read 5 files: 1 node, 1 pod, .*1 Service;")
        server.wait_for(f"WARNING .*{gone}")
    finally:
        assert server.end() == DONE


def test_a_dump_without_slices(topodns: Run, tmp_path: Path) -> None:
    """No command says that a Service has no ready endpoint where the dump does not say so."""
    lay(tmp_path, CLUSTER_INFO)
    flags, lacks = ("--snapshot", str(tmp_path)), "the dump has neither EndpointSlices nor Endpoints"
    checked = topodns("check", *flags)
    assert checked.status == 1 and lacks in checked.out and "NoTrustedForwarder" not in checked.out
    explained = topodns("explain", "db.shop", "--client", "10.1.0.3", *flags)
    assert lacks in " ".join(explained.out.split()) and "no ready endpoint" not in explained.out
    simulated = topodns("simulate", "--service", "shop/db", *flags)
    assert simulated.status == WRONG and lacks in simulated.err and "kubectl get namespaces," in simulated.err


SHARED = service("all", annotations={"topodns.io/federated": "true"})
VIRTUAL = service("api", cluster_ips=("10.96.0.1",))
NEAR = service("db", keys=ZONE)
FAR = endpoint_slice("db", 2, [endpoint("10.2.0.5", nodeName="n2")])
WHOLE = [NODE, node("n2", {ZONE: "z2"}), POD, pod("db-1", ["10.2.0.5"], "n2"), NEAR, SLICE, FAR, SHARED, VIRTUAL]
NO_NODES, NO_SERVICES = "the dump has no Nodes", "the dump has no Services"
NO_SLICES, FEDERATION = "the dump has neither EndpointSlices nor Endpoints", ("--federation", "fed.example")
REVERSE = ("--zone", "cluster.local", "--zone", "10.in-addr.arpa", "--client", "10.1.0.5")
LACKING = {
    # what: (the kind that the dump lacks, command, words)
    "zone-of-a-pod": ("Node", ("explain", "db.shop", "--client", "pod/db-0", "-n", "shop"), NO_NODES),
    "zone-of-a-name": ("Node", ("explain", "z1.pin._zone.db.shop", "--zonal", ZONE, "--client", "10.1.0.5"), NO_NODES),
    "federated": ("EndpointSlice", ("explain", "all.shop.fed.example", *FEDERATION, "--client", "10.1.0.5"), NO_SLICES),
    "federated-without-services": ("Service", ("explain", "all.shop.fed.example", *FEDERATION, "--client", "10.1.0.5"),
                                   NO_SERVICES),
    "address": ("EndpointSlice", ("explain", "5.0.1.10.in-addr.arpa", "PTR", *REVERSE), NO_SLICES),
    "address-of-a-service": ("Service", ("explain", "1.0.96.10.in-addr.arpa", "PTR", *REVERSE), NO_SERVICES),
    "empty": ("EndpointSlice", ("explain", "api.shop", "--ignore-empty-service", "--client", "10.1.0.5"), NO_SLICES),
    "simulated": ("Service", ("simulate", "--service", "shop/db"), f"no Service shop/db: {NO_SERVICES}"),
    "all-simulated": ("Service", ("simulate",), NO_SERVICES),
    "failed": ("Node", ("simulate", "--fail", f"{ZONE}=z1"), NO_NODES),
    "nearest": ("Node", ("simulate", "--clients", "shop"), NO_NODES),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "command", "words"), LACKING.values(), ids=LACKING)
def test_what_a_dump_lacks(topodns: Run, tmp_path: Path, kind: str, command: Sequence[str], words: str) -> None:
    """It is told where it may be the reason, and nothing that follows from it; of a whole dump, nothing is."""
    for items, tells in ((WHOLE, False), ([item for item in WHOLE if item["kind"] != kind], True)):
        lay(tmp_path, {"a.json": listed(*items)})
        ran = topodns(*command, "--snapshot", str(tmp_path))
        said = " ".join(f"{ran.out} {ran.err}".split())
        assert (words in said) is tells, said
        if tells:
            assert "NoTrustedForwarder" not in said and "ChoosesNothing" not in said and "UnmetClients" not in said
            assert "no ready endpoint (" not in said


def test_nodes_that_are_not_needed_are_not_missing(topodns: Run, tmp_path: Path) -> None:
    """Where PodLocators locate clients, one who gets nothing is unmet, with Nodes in the dump or without."""
    lay(tmp_path, {"a.json": listed(*[item for item in WHOLE if item["kind"] != "Node"])})
    ran = topodns("simulate", "--client-source", "podlocators", "--clients", "shop", "--snapshot", str(tmp_path))
    assert "UnmetClients" in ran.out and NO_NODES not in ran.out


def test_a_kind_that_cannot_be_read_is_not_missing(topodns: Run, tmp_path: Path) -> None:
    """The dump has a Service, though none that can be used."""
    lay(tmp_path, {"a.json": listed(NODE, SLICE, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": 7}})})
    ran = topodns("check", "--forwarder-service", "off", "--snapshot", str(tmp_path))
    assert "UnreadableObject" in ran.out and "SliceWithoutService" in ran.out and "KindMissing" not in ran.out


def test_labels_of_no_node(topodns: Run, tmp_path: Path) -> None:
    """A dump without Nodes does not say that no node has a label."""
    flags = ("--client", f"{ZONE}=z9", "--snapshot", str(tmp_path))
    lay(tmp_path, {"a.json": listed(NODE, SERVICE, SLICE)})
    assert "no node has" in topodns("explain", "db.shop", *flags).err
    lay(tmp_path, {"a.json": listed(SERVICE, SLICE)})
    assert topodns("explain", "db.shop", *flags).err == ""
