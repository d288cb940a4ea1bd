# SPDX-License-Identifier: Apache-2.0

"""``topodns dump``: what is in the archive, what is not, and that it answers as the cluster does."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_WRONG
from dnsserver.cli.reading.dumping import Dumping
from dnsserver.tools.doctor.steps import DoctorStep, StepCode
from dnsserver.tools.dump import dumped
from dnsserver.tools.dump.dumped import Container, Template, TemplateSpec, Workload, WorkloadSpec
from dnsserver.tools.dump.hashed_names import HashedNames
from dnsserver.tools.explain.explanation import Explanation
from locator.api.schema import LabelledMeta, LabelSelector
from locator.ip import address_text, parse_network
from tests.kit.api_objects import ZONE
from tests.kit.commands_in_process import Run
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import checked, snapshot_of
from tests.kit.other_server import kubeconfig
from tests.kit.this_machine import ROOT, free_port

SCENARIOS = [
    path for path in sorted((ROOT / "tests" / "scenarios").glob("*.yaml")) if "\nclusters:" not in path.read_text()
]  # of one cluster
CLUSTER = ROOT / "examples" / "cluster.yaml"
NAMES = HashedNames(b"k" * 32)


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Return the files of an archive, without its folder."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {
            entry.name.removeprefix("topodns-dump/"): opened.extractfile(entry).read()  # type: ignore[union-attr]
            for entry in opened
        }


def written(names: HashedNames | None, path: Path) -> str:
    """Return the objects of a dump of a file, as one text."""
    dumping = Dumping(names, lambda text: None)
    documents = [json.loads(content) for _, content in dumping.files([str(path)])]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})


def hashed_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they stand, hashed, among the flags of a Deployment."""
    words = [
        f"--{name}={text}" for name, texts in flags.items() for text in (texts if isinstance(texts, list) else [texts])
    ]
    template = Template(TemplateSpec([Container("topodns", args=words)]))
    raw = Workload(LabelledMeta("topodns"), WorkloadSpec(template, LabelSelector()))
    args = json.loads(dumped.installed(raw, NAMES))["spec"]["template"]["spec"]["containers"][0].get("args", [])
    found: dict[str, Any] = {}
    for word in args:
        name, _, text = word.removeprefix("--").partition("=")
        found.setdefault(name, []).append(text)
    return {
        name: found[name] if isinstance(texts, list) else yaml.safe_load(found[name][0])
        for name, texts in flags.items()
        if texts != []
    }


def queries_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the flags of a scenario, and the queries of clients that have a name."""
    head = next(iter(yaml.safe_load_all(path.read_text())))
    queries = [{"name": head.get("name"), **query} for query in head["queries"]]
    return head.get("flags", {}), [query for query in queries if query["client"] != "nobody"]


class Told(NamedTuple):
    """What ``explain`` and ``check`` say of a cluster."""

    explanations: list[Explanation]
    findings: list[tuple[str, ...]]


def told(cluster: str, flags: Mapping[str, Any], queries: Sequence[Mapping[str, Any]]) -> Told:
    snapshot = snapshot_of(cluster, flags)
    asked = [(query["name"], query["client"], query.get("type", "A")) for query in queries]
    rows = [(row.code, row.kind, row.namespace, row.name, row.message) for row in checked(cluster, flags, as_dump=True)]
    return Told(
        [explanation_of(snapshot, *words, flags=flags, candidates=True) for words in asked],
        sorted(row for row in rows if row[0] not in ("ObjectTwice", "PassedOver")),
    )


def essence(found: Explanation, names: HashedNames | None) -> Any:
    """Return what stays the same up to the names in an explanation, with names hashed."""

    def hashed(text: str | None) -> str:
        return names.text(text) if names is not None and text is not None else text or ""

    client, service, constraint, error = found.client, found.service, found.constraint, found.extended_error
    return {
        "located_by": client.located_by,
        "node": hashed(client.node),
        "labels": {hashed(key): hashed(text) for key, text in client.labels.items()},
        "service": service and (hashed(service.namespace), hashed(service.name)),
        "constraint": constraint and (constraint.source, [*map(hashed, constraint.keys)], constraint.valid),
        "steps": [(hashed(step.key), hashed(step.value), step.matched) for step in found.steps],
        "outcome": (found.outcome, found.rcode, error and error.code),
        "chosen": sorted(
            (sorted(map(hashed, row.addresses)), hashed(row.pod), hashed(row.node), row.ready, row.chosen)
            for row in found.candidates
        ),
        "answers": sorted((row.type, hashed(row.data)) for row in found.answers),
    }  # fmt: skip


# Of these some answers change with the order of names, or of nodes by hashes of theirs; and a name that is made of an
# address is no hashed name.
BY_ORDER = {"service-policies-order", "service-policies-invalid", "balanced-nearness"}
MADE_OF_ADDRESSES = re.compile(r"\.arpa$|(^|\.)\d+-\d+-\d+-\d+\.|(^|\.)[0-9a-f]*--?[0-9a-f-]*\.")
DATA_WITH_NUMBERS = ("PTR", "SRV")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_dump_tells_what_the_cluster_does(path: Path) -> None:
    """All that decides an answer, its reason or a finding is in it.

    With hashed names, the hashed client of a hashed name gets the hashed answer, by the hashed flags.
    """
    flags, queries = queries_of(path)
    expected = told(path.read_text(), flags, queries)
    assert told(written(None, path), flags, queries) == expected
    if path.stem in BY_ORDER:
        return
    comparable = [
        (query, was)
        for query, was in zip(queries, expected.explanations, strict=True)
        if not MADE_OF_ADDRESSES.search(query["name"]) and query.get("type") not in DATA_WITH_NUMBERS
    ]
    asked = [
        {**query, "name": ".".join(map(NAMES.text, query["name"].split("."))), "client": NAMES.text(query["client"])}
        for query, _ in comparable
    ]
    found = told(written(NAMES, path), hashed_flags(flags), asked)
    for now, (query, was) in zip(found.explanations, comparable, strict=True):
        assert essence(now, None) == essence(was, NAMES), query["case"]
    assert [row[:2] for row in found.findings] == [row[:2] for row in expected.findings]


# --- What is in an archive, and what is not ---------------------------------------------------------------------------

PLANTED = b"acme"  # in every name, and in every value that somebody may have written
PLANTED_CLUSTER = f"""
kind: Namespace
metadata: {{name: acme, labels: {{acme.example/team: acme, acme.tree.hnc.x-k8s.io/depth: "0"}}}}
---
kind: Node
metadata:
  name: acme-1.acme.internal
  labels:
    {ZONE}: acme-zone
    acme.example/rack: acme
    acme.node-restriction.kubernetes.io/acme: acme
    node-role.kubernetes.io/acme: ""
    node.cluster.x-k8s.io/acme: acme
spec: {{podCIDRs: [11.244.1.0/24], providerID: confidential}}
status: {{addresses: [{{type: InternalIP, address: 11.244.0.1}}, {{type: Hostname, address: acme-1.acme.internal}}]}}
---
kind: Pod
metadata:
  name: acme-0
  namespace: acme
  labels: {{app: acme}}
  ownerReferences: [{{apiVersion: acme.example/v1, kind: AcmeSet, name: acme, uid: confidential, controller: true}}]
  annotations: {{kubectl.kubernetes.io/last-applied-configuration: confidential, acme.example/note: confidential}}
  managedFields: [{{manager: confidential}}]
spec:
  nodeName: acme-1.acme.internal
  containers: [{{name: acme, image: confidential, env: [{{name: PASSWORD, value: confidential}}]}}]
status: {{phase: Running, podIP: 11.244.1.2}}
---
kind: Service
metadata:
  name: acme
  namespace: acme
  annotations:
    topodns.io/topology-keys: {ZONE},acme.example/rack,*
    topodns.io/health: http:80/acme
    acme.example/note: confidential
spec: {{clusterIP: None, selector: {{app: acme}}, ports: [{{name: acme, port: 80}}]}}
status: {{loadBalancer: {{ingress: [{{hostname: lb.acme.example}}, {{ip: 11.244.9.9}}]}}}}
---
kind: Service
metadata: {{name: acme-ext, namespace: acme}}
spec: {{type: ExternalName, externalName: db.Acme.example}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: acme-x, namespace: acme, labels: {{kubernetes.io/service-name: acme}}}}
addressType: IPv4
ports: [{{name: acme, port: 80}}]
endpoints:
  - addresses: [11.244.1.2]
    hostname: acme-0
    nodeName: acme-1.acme.internal
    zone: acme-zone
    targetRef: {{kind: Pod, namespace: acme, name: acme-0}}
    hints: {{forZones: [{{name: acme-zone}}]}}
---
apiVersion: topodns.io/v1alpha1
kind: ServicePolicy
metadata: {{name: acme, namespace: acme}}
spec: {{serviceSelector: {{matchLabels: {{app: acme}}}}, topology: {{key: acme.example/rack, mode: required}}}}
---
apiVersion: topodns.io/v1alpha1
kind: ServiceHealth
metadata: {{name: acme.acme}}
status:
  cluster: acme
  service: {{namespace: acme, name: acme}}
  entries: [{{address: lb.acme.example, healthy: false, message: 'no route to acme, 11.244.9.9'}}]
---
kind: Secret
metadata: {{name: acme, namespace: acme}}
data: {{key: confidential}}
---
kind: ConfigMap
metadata: {{name: acme, namespace: acme}}
data: {{key: confidential}}
"""


@pytest.mark.parametrize("hashed", [False, True], ids=["as it is", "hashed"])
def test_nothing_confidential(topodns: Run, tmp_path: Path, hashed: bool) -> None:
    """No Secret, ConfigMap, value of a variable or foreign annotation; with hashed names, no name and no address."""
    (tmp_path / "cluster.yaml").write_text(PLANTED_CLUSTER)
    words = ["--hash-names"] if hashed else []
    ran = topodns("dump", "--snapshot", str(tmp_path / "cluster.yaml"), "--output", str(tmp_path / "a.tar.gz"), *words)
    assert (ran.status, ran.err) == (EXIT_DONE, "")
    files = unpacked((tmp_path / "a.tar.gz").read_bytes())
    assert json.loads(files["manifest.json"])["errors"] == [] and len(files) == 3 + 7
    forbidden = [b"confidential", PLANTED, b"11.244"] if hashed else [b"confidential"]
    objects = [content for name, content in files.items() if name.startswith("objects/")]
    assert not [name for name, content in files.items() for word in forbidden if word in content.lower()]
    assert all(PLANTED in content for content in objects) == (not hashed)
    assert (b'"message"' in files["objects/servicehealths.json"]) == (not hashed)


COREFILE = """.:53 {
    route53 example.org.:Z1 {
        aws_access_key AKIA SECRET
        credentials default /SECRET
    }
    tsig {
        secret name "SECRET"
    }
    nomad {
\t\tToken "SECRET\\SECRET \\nSECRET"
    }
    tailscale {
        authkey SECRET
    }
    forward . 10.0.0.1
}
"""
QUOTED = [
    ("as it is", COREFILE),
    ("in a command", json.dumps(COREFILE)),
    ("a difference", COREFILE.replace("\n", "\n  + ")),
]


@pytest.mark.parametrize("text", [row[1] for row in QUOTED], ids=[row[0] for row in QUOTED])
def test_no_password_of_a_corefile(text: str) -> None:
    """Some plugins take one there; the rest stays."""
    found = dumped.without_secrets(text)
    assert "SECRET" not in found and found.count("(left out)") == 5
    assert "forward . 10.0.0.1" in found and found.count("\n") == text.count("\n")


def test_no_password_in_what_doctor_says() -> None:
    """Wherever a step shows a Corefile."""
    step = DoctorStep(StepCode.ForwarderForwards, "failed", COREFILE, "", (COREFILE,), COREFILE, COREFILE)
    assert "SECRET" not in repr(dumped.step_without_secrets(step))


FLAGS = [
    (["serve", "--ttl=7", "--pods", "verified"], ["serve", "--ttl=7", "--pods", "verified"]),
    (["--client-source=pods,nodes", "--listen=[::]:1053"], ["--client-source=pods,nodes", "--listen=[::]:1053"]),
    (["--namespace=7", "--zone", "cluster.local"], [f"--namespace={NAMES.text('7')}", "--zone", "cluster.local"]),
    (["--tll=shop", "shop"], [f"--tll={NAMES.text('shop')}", NAMES.text("shop")]),
    ([f"--subnet=10.0.0.0/8={ZONE}=a"], [f"--subnet={NAMES.text('10.0.0.0/8')}={ZONE}={NAMES.text('a')}"]),
]


@pytest.mark.parametrize(("words", "hashed"), FLAGS, ids=[row[0][0] for row in FLAGS])
def test_hashed_flags(words: list[str], hashed: list[str]) -> None:
    """Numbers and words that topodns knows stay; a container beside topodns shows none."""
    other = Container("sidecar", image="mesh:1", args=["--password=x"], env=[dumped.Named("TOKEN")])
    template = Template(TemplateSpec([Container("topodns", args=words), other]))
    raw = Workload(LabelledMeta("topodns"), WorkloadSpec(template, LabelSelector()))
    ours, theirs = json.loads(dumped.installed(raw, NAMES))["spec"]["template"]["spec"]["containers"]
    assert ours == {"name": "topodns", "args": hashed} and set(theirs) == {"name", "image"}


def test_hashed_conditions() -> None:
    """Those of Kubernetes stay; those of a readiness gate may hold a name."""
    conditions = [dumped.Condition(kind, "True") for kind in ("Ready", "target-health.elbv2.k8s.aws/acme")]
    raw = dumped.Pod(dumped.PodMeta(name="topodns"), status=dumped.PodStatus(conditions=conditions))
    ready, gate = json.loads(dumped.installed(raw, NAMES))["status"]["conditions"]
    assert ready["type"] == "Ready" and gate["type"] == NAMES.text("target-health.elbv2.k8s.aws/acme")


METRICS = """# HELP topodns_forwarded_without_client_total Queries.
topodns_forwarded_without_client_total{forwarder="11.1.2.3"} 7
topodns_answer_zones_total{client_zone="acme",answer="same"} 2
topodns_dns_responses_total{rcode="NOERROR"} 9
topodns_objects{kind="Pod"} 3
topodns_podlocator_writes_total{verb="create"} 4
"""


def test_hashed_metrics() -> None:
    """Labels with known values stay, and so do all numbers."""
    zone, forwarder = NAMES.text("acme"), NAMES.text("11.1.2.3")
    assert dumped.metrics_page(METRICS, NAMES) == METRICS.replace("acme", zone).replace("11.1.2.3", forwarder)
    assert dumped.metrics_page(METRICS, None) == METRICS


def test_hashed_checks() -> None:
    """Which checks pass stays, and no reason."""
    page = "[+]http ok\n[-]clusters acme: unreachable\nnot ready\n"
    assert dumped.checks_page(page, NAMES) == "[+]http\n[-]clusters\n" and dumped.checks_page(page, None) == page


# --- The command ------------------------------------------------------------------------------------------------------


def test_the_archive(topodns: Run, tmp_path: Path) -> None:
    """Only its owner may read it; what it holds comes in one order, and what to do with it is printed."""
    path = tmp_path / "a b.tar.gz"
    ran = topodns("dump", "--snapshot", str(CLUSTER), "--output", str(path))
    assert (ran.status, ran.err) == (EXIT_DONE, "") and f"$ tar -xzf '{path}'\n" in ran.out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(tmp_path) == [path.name]
    files = [*unpacked(path.read_bytes())]
    assert files[:2] == ["README.txt", "version.txt"] and files[-1] == "manifest.json"
    assert files[2:-1] == [
        f"objects/{kind}.json" for kind in ("namespaces", "nodes", "pods", "services", "endpointslices")
    ]
    with tarfile.open(path) as opened:
        opened.extractall(tmp_path, filter="data")
    objects = str(tmp_path / "topodns-dump" / "objects")
    before, after = (topodns("check", "--snapshot", what, "-o", "json").json for what in (str(CLUSTER), objects))
    assert [{**row, "file": "", "line": None} for row in after] == [{**row, "file": "", "line": None} for row in before]


def test_another_file_is_not_overwritten(topodns: Run, tmp_path: Path) -> None:
    """Nothing is read before that is said."""
    path = tmp_path / "a.tar.gz"
    path.write_text("mine")
    ran = topodns("dump", "--snapshot", "/none", "--output", str(path))
    assert ran.status == EXIT_WRONG and path.read_text() == "mine"
    assert ran.err == f"topodns: --output {path}: exists, expected a new file; remove it, or name another one\n"


WRONGS = [
    ("no such dump", ("--snapshot", "/none"), "/none: "),
    ("no such kubeconfig", ("--kubeconfig", "/none"), "/none: no such file, expected a kubeconfig"),
    ("a namespace that is none", ("-n", "Not_One"), "-n: 'Not_One', expected the name of a namespace"),
    ("no such folder", ("--snapshot", str(CLUSTER), "--output", "/none/a.gz"), "--output /none/a.gz: No such file"),
]


@pytest.mark.parametrize(("arguments", "message"), [row[1:] for row in WRONGS], ids=[row[0] for row in WRONGS])
def test_wrong_input(
    topodns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], message: str
) -> None:
    """It is said in one line, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    ran = topodns("dump", *arguments)
    assert (ran.status, ran.out, os.listdir(tmp_path)) == (EXIT_WRONG, "", []) and message in ran.err


def test_an_api_server_that_cannot_be_reached(topodns: Run, tmp_path: Path) -> None:
    """There is no archive then."""
    path = kubeconfig(tmp_path, f"https://127.0.0.1:{free_port()}")
    ran = topodns("dump", "--kubeconfig", str(path), "--output", str(tmp_path / "a.tar.gz"))
    assert ran.status == EXIT_FAILED and "Connection refused" in ran.err and os.listdir(tmp_path) == [path.name]


def test_standard_output() -> None:
    """The archive alone goes there, and all else to standard error."""
    command = (sys.executable, "-m", "dnsserver", "dump", "--snapshot", str(CLUSTER), "--output", "-")
    ran = subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
    assert "objects/services.json" in unpacked(ran.stdout) and b"look at them before you send it" in ran.stderr


# --- Names ------------------------------------------------------------------------------------------------------------

TEXTS = [
    ("a name", "memcached", 11),
    ("a name with a dot", "web.v1", 23),
    ("too long for a label", "x" * 70, 70),
    ("many labels, short enough", "a.b.c.d.e.f.g", 11),
]


@pytest.mark.parametrize(("text", "length"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_a_hashed_name(text: str, length: int) -> None:
    """It is as long as a DNS label may be, or as a wrong one is; and it stays a name in lower case."""
    hashed = NAMES.text(text)
    assert len(hashed) == length and re.fullmatch(r"[a-z][a-z0-9.]*", hashed) and hashed == NAMES.text(text)
    assert HashedNames(b"o" * 32).text(text) != hashed


STAYS = [
    "kube-system/kube-dns", "topology.kubernetes.io/zone", "cluster.local", "endpointslice-controller.k8s.io", "*",
    "topodns.io/topology-keys", "node-role.kubernetes.io/control-plane", "[::]:1053", "127.0.0.1:9153", "169.254.20.10",
    "TOPODNS_ZONE", "tcp:8080", "",
]  # fmt: skip


@pytest.mark.parametrize("text", STAYS)
def test_what_every_cluster_has_stays(text: str) -> None:
    """Or nobody could read the result."""
    assert NAMES.text(text) == text


IN_TEXT = [
    ("a selector", "team=shop,tier in (a,b),!x", "team shop tier a b x"),
    ("a key of one's own", "topology.example.com/rack", "topology example com rack"),
    ("capitals", "eu-West-1", "eu-West-1"),
    ("an address in a port's place", "10.1.2.3.nip", "10 1 2 3 nip"),
    ("no address", "10.0.0.300", "10.0.0.300"),
    ("what is no name", "shop$web", "shop web"),
    ("another script", "größe", "größe"),
]


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in IN_TEXT], ids=[row[0] for row in IN_TEXT])
def test_names_in_a_text(text: str, words: str) -> None:
    """Each is hashed by itself, and what stands between them stays."""
    expected = text
    for word in sorted(words.split(), key=len, reverse=True):
        expected = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", f"<{word}>", expected, count=1)
    expected = re.sub(r"<([^>]*)>", lambda found: NAMES.text(found[1]), expected)
    assert NAMES.text(text) == expected and not set(words.split()) & set(re.split(r"[^\w-]", NAMES.text(text)))


def test_case() -> None:
    """What ignores the case sees one word, what does not sees two."""
    assert NAMES.text("Shop") != NAMES.text("shop") and NAMES.text("Shop").lower() == NAMES.text("shop")


ADDRESSES = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)


@given(ADDRESSES, ADDRESSES, st.integers(0, 128))
def test_addresses_keep_their_common_prefix(one: bytes, other: bytes, bits: int) -> None:
    """So a network becomes a network, and no two addresses become one."""
    size = 8 * len(one)
    number, bits = int.from_bytes(one), min(bits, size)
    if len(other) == len(one):  # with so many common bits
        number = number >> (size - bits) << (size - bits) | int.from_bytes(other) & (1 << (size - bits)) - 1
    other = number.to_bytes(len(one))

    def common(first: bytes, second: bytes) -> int:
        return size - (int.from_bytes(first) ^ int.from_bytes(second)).bit_length()

    assert common(NAMES.address(one), NAMES.address(other)) == common(one, other)


INSIDE = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "fd00::/8"]


@pytest.mark.parametrize("network", INSIDE)
@given(st.integers(0))
def test_private_addresses_stay_private(network: str, number: int) -> None:
    """And what is public does not become private: somebody might reach it."""
    block = ipaddress.ip_network(network)
    inside = block[number % block.num_addresses]
    assert ipaddress.ip_address(NAMES.address(inside.packed)) in block or network == "fd00::/8"
    public = (b"\x01" + number.to_bytes(16, "big", signed=False)[-3:]) if number < 1 << 127 else b"\x08" * 4
    assert not ipaddress.ip_address(NAMES.address(public)).is_private


NETWORKS = [("10.244.0.0/16", 16), ("10.96.0.10/32", 32), ("fd00:10:244::/48", 48), ("2001:db8::/32", 32)]


@pytest.mark.parametrize(("network", "length"), NETWORKS)
def test_networks(network: str, length: int) -> None:
    """A network stays one, without host bits, around the addresses that it is around."""
    hashed = parse_network(NAMES.text(network))
    inside = ipaddress.ip_network(network)[-1]
    assert hashed.length == length and ipaddress.ip_address(NAMES.text(str(inside))) in ipaddress.ip_network(
        f"{address_text(hashed.address)}/{length}"
    )
