# SPDX-License-Identifier: Apache-2.0

"""``explain`` takes names as people use them with kubectl: Services, pods, nodes, partial names, topologies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dnsserver.tools.explain.naming import EXPECTED_NAME
from tests.kit.api_objects import (
    HOSTNAME,
    OLD,
    RACK,
    REGION,
    ZONE,
    endpoint,
    endpoint_slice,
    listed,
    namespace,
    node,
    pod,
    pod_locator,
    service,
)
from tests.kit.commands_in_process import Ran, Run
from tests.kit.other_server import Response, other_server

DONE, WRONG = 0, 2

CLUSTER = [
    *map(namespace, ("default", "shop", "lab")),
    node("a1", {ZONE: "a", REGION: "r", RACK: "1"}, addresses=["10.0.0.1", "fd00::1"], cidrs=["10.244.1.0/24"]),
    node("a2", {OLD[ZONE]: "a", REGION: "r", RACK: "2"}, addresses=["10.0.0.2"], cidrs=["10.244.2.0/24"]),
    node("b1", {ZONE: "b", REGION: "r"}),
    pod("front", ["10.244.1.9", "fd00:1::9"], "a1"),
    pod("front", ["10.244.2.9"], "a2", where="lab"),
    pod("proxy", ["10.0.0.2"], "a2", hostNetwork=True),
    pod("done", ["10.244.1.8"], "a1", phase="Succeeded"),
    pod("pending", [], None, phase="Pending"),
    service("memcached", keys=f"{HOSTNAME},{ZONE},{REGION}"),
    endpoint_slice("memcached", 1, [
        endpoint("10.244.1.7", nodeName="a1", hostname="memcached-0"), endpoint("10.244.2.7", nodeName="a2")]),
    service("asleep"),
    endpoint_slice("asleep", 1, [endpoint("10.244.1.6", ready=False, nodeName="a1")]),
    service("web", where="default", cluster_ips=["10.96.0.7"]),
    service("shop", where="default"),
]  # fmt: skip
MEMCACHED = "memcached.shop.svc.cluster.local."


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    path = tmp_path / "cluster.json"
    path.write_text(listed(CLUSTER))
    return str(path)


def explained(ran: Ran) -> dict[str, Any]:
    assert ran.status == DONE, ran.err
    said: dict[str, Any] = ran.json
    return said


NAMES = [
    # NAME, flags, the name that is asked
    ("svc/memcached", ("-n", "shop"), MEMCACHED),
    ("services/memcached", ("-nshop",), MEMCACHED),
    ("SVC/memcached", ("-n", "shop"), MEMCACHED),
    ("shop/memcached", (), MEMCACHED),
    ("shop/memcached", ("-n", "lab"), MEMCACHED),
    ("svc/web", (), "web.default.svc.cluster.local."),
    ("svc/web", ("--zone", "in-addr.arpa", "--zone", "topo.local", "--zone", "cluster.local"),
     "web.default.svc.topo.local."),
    ("svc/memcached", ("--namespace", "shop"), MEMCACHED),
    ("svc/memcached", ("-n", "lab", "--namespace=shop"), MEMCACHED),  # the last one counts, as for kubectl
    ("svc/memcached", ("-n", "shop", "--serve-namespace", "lab", "--serve-namespace", "shop"), MEMCACHED),
    ("memcached", ("--serve-namespace", "shop"), MEMCACHED),
    ("svc/web", ("--serve-namespace", "shop", "--serve-namespace", "default"), "web.default.svc.cluster.local."),
    ("memcached.shop", (), MEMCACHED),
    ("Memcached.Shop", (), MEMCACHED),
    ("memcached.shop.svc", (), MEMCACHED),
    ("memcached.shop.svc.cluster.local", (), MEMCACHED),
    ("memcached.shop.svc.cluster.local.", ("-n", "lab"), MEMCACHED),
    ("memcached", ("-n", "shop"), MEMCACHED),
    ("shop", (), "shop.default.svc.cluster.local."),
    ("lab", (), "lab.svc.cluster.local."),
    ("memcached-0.memcached", ("-n", "shop"), f"memcached-0.{MEMCACHED}"),
    ("memcached-0.memcached.shop", (), f"memcached-0.{MEMCACHED}"),
    ("_main._tcp.memcached.shop", (), f"_main._tcp.{MEMCACHED}"),
    ("a.pin._zone.memcached.shop", (), f"a.pin._zone.{MEMCACHED}"),
    ("dns-version", (), "dns-version.cluster.local."),
    ("10-1-2-3.shop.pod", ("--pods", "insecure"), "10-1-2-3.shop.pod.cluster.local."),
    # What does not exist is completed if it is clear what was meant.
    ("memcachd.shop", (), "memcachd.shop.svc.cluster.local."),
    ("memcached.shp", (), "memcached.shp.svc.cluster.local."),
    ("memcachd.shp.svc", (), "memcachd.shp.svc.cluster.local."),
    ("x.memcached.shop.", (), "x.memcached.shop."),
    ("www.web.com", (), "www.web.com."),
    (".", (), "."),
    (".".join(["a" * 60] * 4), (), ".".join(["a" * 60] * 4) + "."),
    ("1.0.0.10.in-addr.arpa", (), "1.0.0.10.in-addr.arpa."),
    ("0/25.2.0.192.in-addr.arpa", (), "0/25.2.0.192.in-addr.arpa."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "flags", "asked"), NAMES, ids=[f"{row[0][:30]} {' '.join(row[1])}" for row in NAMES])
def test_name(topodns: Run, snapshot: str, name: str, flags: tuple[str, ...], asked: str) -> None:
    """A Service, or a name that is completed as a resolver in a pod of the namespace would."""
    ran = topodns("explain", name, "--client", "10.0.0.1", "-o", "json", "--snapshot", snapshot, *flags)
    assert explained(ran)["question"]["name"] == asked
    assert ran.err == ""


@pytest.mark.parametrize(
    ("flags", "rcode"),
    [(("--namespace", "lab"), "NOERROR"), (("--serve-namespace", "lab"), "NXDOMAIN")],
    ids=["looked-up-in", "served"],
)
def test_what_is_served_is_another_flag(topodns: Run, snapshot: str, flags: tuple[str, ...], rcode: str) -> None:
    """``--namespace`` says where names are looked up, and takes nothing away; ``--serve-namespace`` does."""
    ran = topodns("explain", MEMCACHED, "--client", "10.0.0.1", "-o", "json", "--snapshot", snapshot, *flags)
    assert explained(ran)["rcode"] == rcode


CLIENTS = [
    # --client, flags, address, located by, node
    ("10.244.1.9", (), "10.244.1.9", "pod", "a1"),
    ("10.244.1.0/24", (), "10.244.1.0/24", "podcidr", "a1"),
    ("fd00:1::/64", (), "fd00:1::/64", "pod", "a1"),
    ("pod/front", ("-n", "shop"), "10.244.1.9", "pod", "a1"),
    ("pods/front", ("-n", "shop"), "10.244.1.9", "pod", "a1"),
    ("po/front", ("-n", "lab"), "10.244.2.9", "pod", "a2"),
    ("pod/proxy", ("-n", "shop"), "10.0.0.2", "node", "a2"),
    ("pod/front", ("-n", "shop", "--client-source", "nodes"), "10.244.1.9", "podcidr", "a1"),
    ("node/a1", (), "10.0.0.1", "node", "a1"),
    ("nodes/a2", (), "10.0.0.2", "node", "a2"),
    ("no/b1", (), "node/b1", "node", "b1"),
    (f"{ZONE}=a,{HOSTNAME}=a2", (), f"{ZONE}=a,{HOSTNAME}=a2", "subnet", "a2"),
]


@pytest.mark.parametrize(
    ("client", "flags", "address", "located_by", "on"), CLIENTS, ids=[" ".join((row[0], *row[1])) for row in CLIENTS]
)
def test_client(
    topodns: Run, snapshot: str, client: str, flags: tuple[str, ...], address: str, located_by: str, on: str
) -> None:
    """A pod or a node asks from its first address; a node without one from where it is."""
    ran = topodns("explain", "memcached.shop", "--client", client, "-o", "json", "--snapshot", snapshot, *flags)
    found = explained(ran)["client"]
    assert (found["address"], found["located_by"], found["node"]) == (address, located_by, on)


def test_client_that_only_a_podlocator_knows(topodns: Run, tmp_path: Path) -> None:
    """Without Pods, the PodLocator of the same name gives the address."""
    path = tmp_path / "cluster.json"
    locator = pod_locator("front", "shop", ["10.244.1.9"], nodeName="a1", nodeLabels={ZONE: "a"})
    path.write_text(listed([locator, *(item for item in CLUSTER if item["kind"] not in ("Node", "Pod"))]))
    flags = ("-n", "shop", "--client-source", "podlocators", "--snapshot", str(path), "-o", "json")
    found = explained(topodns("explain", "svc/memcached", "--client", "pod/front", *flags))["client"]
    assert (found["address"], found["located_by"], found["node"]) == ("10.244.1.9", "podlocator", "a1")


TOPOLOGIES = [
    # labels, what the client gets, words of each hint
    (f"{ZONE}=a", ["10.244.1.7", "10.244.2.7"], ["all nodes there have topology.kubernetes.io/region=r, too"]),
    (f"{OLD[ZONE]}=a,{REGION}=r", ["10.244.1.7", "10.244.2.7"], []),
    (f"{ZONE}=a, {HOSTNAME}=a1", ["10.244.1.7"], ["topology.kubernetes.io/region=r, too"]),
    (f"{ZONE}=c,{REGION}=r", ["10.244.1.7", "10.244.2.7"], [f"no node has {ZONE}=c; there are a, b"]),
    (f"zone=a,{REGION}=r", ["10.244.1.7", "10.244.2.7"], [f"no node has the label zone, did you mean {ZONE}?"]),
    (f"zones=a,{REGION}=r", ["10.244.1.7", "10.244.2.7"], [f"no node has the label zones, did you mean {ZONE}?"]),
    (f"team=a,{REGION}=r", ["10.244.1.7", "10.244.2.7"], ["no node has the label team; there are "]),
    (f"{ZONE}=b,{RACK}=2", [], []),
]


@pytest.mark.parametrize(("labels", "answers", "hints"), TOPOLOGIES, ids=[row[0] for row in TOPOLOGIES])
def test_topology_as_client(topodns: Run, snapshot: str, labels: str, answers: list[str], hints: list[str]) -> None:
    """The client has these labels and no others; what may be wrong with them is told on standard error."""
    ran = topodns("explain", "memcached.shop", "--client", labels, "-o", "json", "--snapshot", snapshot)
    said = explained(ran)
    assert [row["data"] for row in said["answers"]] == answers
    lines = ran.err.splitlines()
    assert len(lines) == len(hints) and all(line.startswith("topodns: --client: ") for line in lines)
    assert all(words in line for words, line in zip(hints, lines, strict=True))


def test_topology_as_text(topodns: Run, snapshot: str) -> None:
    """No address is shown where there is none."""
    ran = topodns("explain", "memcached.shop", "--client", f"{ZONE}=b,{REGION}=r", "--snapshot", snapshot)
    assert f"\nclient      on any node with {ZONE}=b,{REGION}=r\nlabels      {REGION}=r\n" in ran.out


WRONG_ARGUMENTS = [
    # NAME, --client, flags, message
    ("svc/memcachd", "10.0.0.1", ("-n", "shop"), "NAME: no Service shop/memcachd, did you mean memcached?"),
    ("svc/memcached", "10.0.0.1", (), "NAME: no Service default/memcached, did you mean shop/memcached (-n shop)?"),
    ("svc/memcached.shop", "10.0.0.1", (),
     "NAME: no Service default/memcached.shop, did you mean shop/memcached (-n shop)?"),
    ("svc/memcached.shop.svc.cluster.local", "10.0.0.1", ("-n", "shop"),
     "NAME: no Service shop/memcached.shop.svc.cluster.local, did you mean memcached?"),
    ("svc/memcache", "10.0.0.1", ("-n", "no"), "NAME: no Service no/memcache, did you mean shop/memcached (-n shop)?"),
    ("svc/web", "10.0.0.1", ("--zone", ".".join(["z" * 60] * 4)[:241]), "NAME: 'web.default.svc.zzz"),
    ("svc/a/b", "10.0.0.1", (), "NAME: 'svc/a/b', expected svc/NAME, NAMESPACE/NAME or a domain name"),
    ("svc/", "10.0.0.1", (), "NAME: 'svc/', expected svc/NAME, NAMESPACE/NAME or a domain name"),
    ("shop/memcachd", "10.0.0.1", ("-n", "lab"), "NAME: no Service shop/memcachd, did you mean memcached?"),
    ("deploy/memcached", "10.0.0.1", (),
     "NAME: no Service deploy/memcached, did you mean shop/memcached (-n shop)?"),
    ("pod/front", "10.0.0.1", (), "NAME: 'pod/front', expected svc/NAME, NAMESPACE/NAME or a domain name"),
    ("web", "pod/frnt", ("-n", "shop"), "--client: no Pod shop/frnt, did you mean front?"),
    ("web", "pod/proxy", (), "--client: no Pod default/proxy, did you mean shop/proxy (-n shop)?"),
    ("web", "pod/done", ("-n", "shop"), "--client: Pod shop/done has finished, expected one that has an address"),
    ("web", "pod/pending", ("-n", "shop"), "--client: Pod shop/pending has no address yet, expected one that has"),
    ("svc/foo", "10.0.0.1", ("-n", "shop"), "NAME: no Service shop/foo; there are asleep, memcached\n"),
    ("svc/foo", "10.0.0.1", ("-n", "lab"), "NAME: no Service lab/foo; -n names another namespace\n"),
    ("web", "pod/foo", ("-n", "lab"), "--client: no Pod lab/foo; there is front\n"),
    ("web", "node/a3", (), "--client: no Node a3; there are a1, a2, b1\n"),
    ("web", "node/a-1", (), "--client: no Node a-1, did you mean a1?\n"),
    ("web", "svc/memcached", (), "--client: 'svc/memcached', expected an address, a prefix, pod/NAME, node/NAME or "),
    ("web", "deploy/front", (), "--client: 'deploy/front', expected "),
    ("web", f"{ZONE}=", (), f"--client: '{ZONE}=', expected "),
    ("web", f"{ZONE}=a,", (), f"--client: '{ZONE}=a,', expected "),
    ("web", f"{ZONE}==a", (), f"--client: '{ZONE}==a', expected "),
    ("web", "a/b/c=d", (), "--client: 'a/b/c=d', expected "),
    ("web", "10.0.0.1", ("-n", "a b"), "-n: 'a b', expected the name of a namespace"),
    ("web", "10.0.0.0/33", (), "--client: '10.0.0.0/33'"),
    ("é.test", "10.0.0.1", (), "NAME: 'é.test' is not ASCII"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "client", "flags", "message"),
    WRONG_ARGUMENTS,
    ids=[" ".join((*row[:2], *row[2])) for row in WRONG_ARGUMENTS],
)
def test_wrong_argument(
    topodns: Run, snapshot: str, name: str, client: str, flags: tuple[str, ...], message: str
) -> None:
    """What is not there ends the command with status 2 and one line, which names what is near, or what is there."""
    ran = topodns("explain", name, "--client", client, "--snapshot", snapshot, *flags)
    assert (ran.status, ran.out) == (WRONG, "")
    assert ran.err.startswith(f"topodns: {message}") and ran.err.count("\n") == 1


def test_nothing_to_suggest(topodns: Run, tmp_path: Path) -> None:
    """A cluster without any Service or Pod, and a dump that does not say whether it has some."""
    path = tmp_path / "cluster.json"
    none = [{"apiVersion": "v1", "kind": kind, "items": []} for kind in ("ServiceList", "PodList")]
    for lists, ends in ((none, {"Service": "", "Pod": ""}),
                        ([], {"Service": ": the dump has no Services", "Pod": ": the dump has no Pods"})):  # fmt: skip
        path.write_text(listed([node("a1"), *lists]))
        for name, client, key in (("svc/web", "10.0.0.1", "Service default/web"), ("web", "pod/x", "Pod default/x")):
            ran = topodns("explain", name, "--client", client, "--snapshot", str(path))
            assert ran.status == WRONG and ran.err.endswith(f": no {key}{ends[key.split()[0]]}\n")


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "memcached.shop", "--client", "pod/front", "-n", "shop", "--candidates"),
        ("check",),
        ("simulate",),
        ("corefile", "--check", "Corefile"),
    ],
    ids=" ".join,
)
def test_output_as_yaml(
    topodns: Run, snapshot: str, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that prints a result prints it as YAML, too: what JSON has, in the same order."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Corefile").write_text(".:53 {\n    forward . 10.96.0.53\n}\n")
    command = (*command, *(("--snapshot", snapshot) if command[0] in ("explain", "check", "simulate") else ()))
    as_yaml, as_json = topodns(*command, "-o", "yaml"), topodns(*command, "-o", "json")
    assert (as_yaml.status, as_yaml.err) == (as_json.status, as_json.err)
    assert json.dumps(yaml.safe_load(as_yaml.out)) == json.dumps(as_json.json)


SPELLINGS = [("shop/memcached", ()), ("memcached.shop", ()), ("svc/memcached", ("-n", "shop"))]


@pytest.mark.parametrize(("spelled", "flags"), SPELLINGS, ids=[row[0] for row in SPELLINGS])
def test_how_a_service_is_named(topodns: Run, snapshot: str, spelled: str, flags: tuple[str, ...]) -> None:
    """Every command that takes a Service takes these, and means the same by them."""
    said = explained(topodns("explain", spelled, "--client", "10.0.0.1", "-o", "json", "--snapshot", snapshot, *flags))
    assert said["question"]["name"] == MEMCACHED
    for tried in (("--service", spelled), ("--with", f"{spelled}={ZONE}")):
        ran = topodns("simulate", *tried, "-o", "json", "--snapshot", snapshot, *flags)
        assert [found["name"] for found in ran.json["services"]] == ["memcached"]
    with other_server(lambda: Response(200, b"", "text/event-stream")) as address:
        ran = topodns("tail", "--server", f"http://{address}", "--service", spelled, *flags)
    assert ran.err == f"topodns: --server http://{address}: the server has ended\n"


def test_a_setting_names_a_service_with_its_namespace(topodns: Run, snapshot: str) -> None:
    """It may stand in a file, where no ``-n`` says which."""

    def check(spelled: str) -> Ran:
        return topodns("check", "--snapshot", snapshot, "--forwarder-service", spelled, "-o", "json")

    found = check("shop/memcached").json
    assert found == check("memcached.shop").json
    assert [(one["code"], one["name"]) for one in found] == [("UnmetClients", "asleep")], "nothing about the flag"
    message = "'svc/memcached' names no namespace, expected NAMESPACE/NAME or NAME.NAMESPACE, or off"
    assert check("svc/memcached").err == f"topodns: --forwarder-service: {message}\n"


@pytest.mark.parametrize(
    "command",
    [("check",), ("explain", "memcached.shop", "--client", "10.0.0.1")],
    ids=lambda row: row[0],
)
def test_paths_as_arguments(topodns: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    """A path that stands plain is read as ``--snapshot`` reads it, beside others, wherever it stands."""
    paths = [str(tmp_path / "nodes.json"), str(tmp_path / "others.json")]
    for path, items in zip(paths, (CLUSTER[:8], CLUSTER[8:]), strict=True):
        Path(path).write_text(listed(items))
    expected = topodns(*command, "--snapshot", paths[0], "--snapshot", paths[1])
    assert expected.status == DONE and expected.out
    name, rest = command[:2], command[2:]
    assert topodns(*command, *paths) == topodns(*command, "--snapshot", paths[0], paths[1]) == expected
    assert topodns(*name, *paths, *rest) == expected
    if name[0] == "explain":
        assert topodns(*name, "A", *paths, *rest) == topodns(*name, paths[0], *rest, paths[1]) == expected
        assert "question    memcached.shop.svc.cluster.local. SRV\n" in topodns(*name, "SRV", *paths, *rest).out


@pytest.mark.parametrize(
    ("program", "called"),
    [("/usr/local/bin/kubectl-topodns", "kubectl topodns"), ("/srv/dnsserver/__main__.py", "topodns")],
)
def test_as_a_plugin_of_kubectl(topodns: Run, monkeypatch: pytest.MonkeyPatch, program: str, called: str) -> None:
    """Help and messages call the program as the user does; the prefix of a message stays."""
    monkeypatch.setattr(sys, "argv", [program])
    assert f"usage: {called} explain NAME [TYPE] --client ADDR [PATH...] [flags]" in topodns("explain", "--help").out
    helped = topodns("doctor", "--help").out
    assert f"\n  {called} doctor\n" in helped
    assert "\n  kubectl -n topodns exec deploy/topodns -- topodns doctor\n" in helped, "not by the plugin"
    assert f" | {called} check --snapshot -\n" in topodns("check", "--help").out
    assert f"'{called} COMMAND --help'" in " ".join(topodns("--help").out.split())
    messages = {
        ("explain", "--client", "x"): f"NAME: missing, expected {EXPECTED_NAME}; see '{{}} explain --help'",
        ("explain", "--clint", "x"): "--clint: unknown flag, did you mean --client?; see '{} explain --help'",
        ("explan",): "explan: unknown command, did you mean explain?; see '{} --help'",
        ("corefile",): "--for: missing, expected a program to print for, or --check FILE; see '{} corefile --help'",
        ("explain", "--client"): "--client: no value found, expected ADDR; see '{} explain --help'",
    }
    for arguments, message in messages.items():
        assert topodns(*arguments).err == f"topodns: {message.format(called)}\n"
