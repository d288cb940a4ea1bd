# SPDX-License-Identifier: Apache-2.0

"""A cluster with topodns, installed by its manifests, behind a real CoreDNS: for ``topodns doctor``.

The control plane is real. Here is what a scheduler, kubelets and kube-proxy would do: each pod of topodns is a process
``topodns serve`` with the flags of its Deployment and the rights of its ServiceAccount, at an address of its own; one
of them also answers at the Service's address. CoreDNS runs on another machine, with the Corefile of its ConfigMap.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dns.edns
import dns.exception
import dns.message
import dns.query

from dnsserver import __version__
from tests.kit import api_objects, go_programs, kustomize
from tests.kit.api_objects import ZONE, item
from tests.kit.kube import ControlPlane, Item
from tests.kit.kubelet import Kubelet
from tests.kit.kustomize import NAMESPACE, SERVER, objects_of
from tests.kit.network_namespaces import PREFIX, Machine, Network, one_network
from tests.kit.programs import Daemon
from tests.kit.shells import Shell
from tests.kit.this_machine import needs_tool
from tests.kit.topodns_process import SERVER_COMMAND, Server
from tests.kit.waiting import PATIENCE, until

WHERE, SYSTEM = "doctor", "kube-system"
ZONES = ("a", "b")
# Each zone has a node with 32 addresses; those below are of topodns' pods.
FIRST = {zone: 64 * number for number, zone in enumerate(ZONES, 1)}
CLIENTS = {zone: f"{PREFIX}.{first + 1}" for zone, first in FIRST.items()}
MEMBERS = {zone: f"{PREFIX}.{first + 2}" for zone, first in FIRST.items()}
COREDNS = f"{PREFIX}.{FIRST['a'] + 3}"
OTHER_FORWARDER = f"{PREFIX}.{FIRST['b'] + 4}"
NODE, NODE_CACHE = f"{PREFIX}.{FIRST['a'] + 4}", f"{PREFIX}.10".replace("10.", "169.", 1)  # of zone a
CONFIG_MAPS = ("coredns", "node-local-dns")
COREDNS_DEPLOYMENT = api_objects.deployment("coredns", where=SYSTEM, labels={"app": "coredns"}, replicas=0)
NAME = f"cache.{WHERE}.svc.cluster.local"
STUB = f"{WHERE}.svc.cluster.local:53"
STATE = "/var/lib/topodns"  # in the manifests
DNS = {"k8s-app": "kube-dns"}
# Answers as another version: the version is all that differs.
AS_VERSION = (
    "import dnsserver, runpy, sys; dnsserver.__version__ = sys.argv.pop(1);"
    "runpy.run_module('dnsserver', run_name='__main__')"
)

NODES = [
    api_objects.node(
        f"doctor-{zone}", {ZONE: zone}, cidrs=[f"{PREFIX}.{FIRST[zone]}/27"],
        addresses=[NODE] if zone == "a" else (),
    )
    for zone in ZONES
]  # fmt: skip
SERVICE = api_objects.service("cache", where=WHERE, keys=ZONE, selector={"app": "cache"})
DNS_SERVICE = api_objects.service("kube-dns", where=SYSTEM, cluster_ips=(), ports=[("dns", 53, "UDP")], selector=DNS)
COREDNS_POD = api_objects.pod("coredns-1", [COREDNS], "doctor-a", where=SYSTEM, labels=DNS)
PODS = [
    *(api_objects.pod(f"client-{zone}", [CLIENTS[zone]], f"doctor-{zone}", where=WHERE) for zone in ZONES),
    *(
        api_objects.pod(f"cache-{zone}", [MEMBERS[zone]], f"doctor-{zone}", where=WHERE, labels={"app": "cache"})
        for zone in ZONES
    ),
    COREDNS_POD,
    api_objects.pod("here", [f"{PREFIX}.1"], "doctor-a", where=WHERE),
    api_objects.pod("dnsmasq-1", [OTHER_FORWARDER], "doctor-b", where=WHERE),
]
REST = ".:53 {\n    errors\n    reload\n    template ANY ANY {\n        rcode REFUSED\n    }\n}\n"


class DnsServer:
    """A CoreDNS on another machine, which runs while the ConfigMap *name* has a Corefile."""

    def __init__(self, name: str, machine: Machine, address: str, folder: Path) -> None:
        self.name, self.machine, self._address, self._folder = name, machine, address, folder
        self._program = str(go_programs.coredns())
        self._daemon: Daemon | None = None
        self._corefile = ""

    def run(self, corefile: str, *, imported: Mapping[str, str] | None = None, again: bool = False) -> None:
        """Run with a Corefile until the next call, not at all if it is empty; with the same one only if *again*.

        It finds the files *imported* in its folder ``custom``.
        """
        folder = self._folder / "custom"
        folder.mkdir(exist_ok=True)
        for name, text in (imported or {}).items():
            (folder / name).write_text(text)
        if corefile == self._corefile and not again:
            return
        if self._daemon is not None:
            self._daemon.process.kill()
            self._daemon.process.wait()
        self._corefile, self._daemon = corefile, None
        if corefile:
            path = self._folder / f"{self.name}.Corefile"
            path.write_text(corefile)
            command = [*self.machine.there, self._program, "-conf", str(path)]
            self._daemon = Daemon.start(command, self._folder, name=self.name)
            self._daemon.until(self._answers)

    def _answers(self) -> bool:
        try:
            dns.query.udp(dns.message.make_query(".", "NS"), self._address, timeout=0.1)
        except (dns.exception.DNSException, OSError):
            return False
        return True


class World:
    """The cluster; ``settled`` does what is left to do after a change."""

    def __init__(self, plane: ControlPlane, network: Network, folder: Path, dns: Sequence[DnsServer]) -> None:
        self.plane, self._network, self._folder, self._dns = plane, network, folder, dns
        self._servers: dict[str, tuple[str, Server]] = {}  # by pod: its address
        self._kubelet = Kubelet(plane.api, NODES[:1], {})
        self._token = ""
        self.shell = Shell.with_kubeconfig(folder, plane.kubeconfig)
        """Where a reader runs the commands that doctor prints."""
        self._taken = {network.address}
        (service,) = [found for found in plane.api.items("Service", NAMESPACE) if found["metadata"]["name"] == SERVER]
        self.address = service["spec"]["clusterIP"]
        """Of the Service."""
        network.take(self.address)
        self.address_here = network.address
        """Of this machine; topodns trusts it."""

    def stub(self, *lines: str) -> str:
        """Return a Corefile that forwards to topodns by a block of these lines; without any, one that does not."""
        block = "".join(f"    {line.format(topodns=self.address)}\n" for line in lines)
        return f"{STUB} {{\n{block}}}\n{REST}" if lines else REST

    def write_corefile(self, name: str, text: str) -> None:
        """Write the ConfigMap of a DNS server."""
        config_map = item("ConfigMap", name, SYSTEM, data={"Corefile": text})
        self.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(config_map))

    def settled(self) -> None:
        """Run what the cluster now wants: topodns' pods, and CoreDNS with its Corefile."""
        self._run_topodns()
        self._run_dns()

    def ask_as(self, source: str, client: str) -> None:
        """Ask topodns, from the address of a forwarder that names a client."""
        self._take(source)
        query = dns.message.make_query(NAME, "A", use_edns=0, options=[dns.edns.ECSOption(client, 32)])
        dns.query.udp(query, self.address, source=source, timeout=PATIENCE)

    def _take(self, address: str) -> None:
        if address not in self._taken:
            self._taken.add(address)
            self._network.take(address)

    def _pods(self) -> list[Item]:
        labels = "app.kubernetes.io/name=topodns"
        return [{"kind": "Pod", **pod} for pod in self.plane.api.items("Pod", NAMESPACE, labels=labels)]

    def _run_topodns(self) -> None:
        """Do the Deployment's roll-out: new pods get a node and an address, old ones end, new ones begin to answer."""

        def is_complete(deployment: Item) -> bool:
            status, replicas = deployment["status"], deployment["spec"]["replicas"]
            numbers = {status.get(name, 0) for name in ("replicas", "readyReplicas", "updatedReplicas")}
            return status.get("observedGeneration") == deployment["metadata"]["generation"] and numbers == {replicas}

        def rolled_out() -> bool:
            self._kubelet.look_after(NAMESPACE)
            deployments, pods = self.plane.api.items("Deployment", NAMESPACE), self._pods()
            ended = not any("deletionTimestamp" in pod["metadata"] for pod in pods)
            return ended and all(map(is_complete, deployments)) and bool(deployments or not pods)

        until(rolled_out, "the roll-out")
        pods = {pod["metadata"]["name"]: pod for pod in self._pods()}
        for name in self._servers.keys() - pods.keys():
            self._servers.pop(name)[1].end(signal.SIGKILL)
        for name in pods.keys() - self._servers.keys():
            self._servers[name] = self._start(pods[name])
        for _, server in self._servers.values():
            server.wait_for("^listening http")

    def _start(self, pod: Item) -> tuple[str, Server]:
        address, name = pod["status"]["podIP"], pod["metadata"]["name"]
        self._take(address)
        container = pod["spec"]["containers"][0]
        listen = [f"{address}:1053", *([] if self._servers else [f"{self.address}:53"])]
        state = self._folder / name
        state.mkdir()
        if not self._token:
            self._token = self.plane.token(NAMESPACE, SERVER)
        kubeconfig = self.plane.kubeconfig_with(state / "kubeconfig", token=self._token)
        variables = {
            "LISTEN": " ".join(listen),
            "HTTP": f"{address}:9153",
            "KUBECONFIG": str(kubeconfig),
            "UPSTREAM": "off",
        }
        arguments = [text.replace(STATE, str(state)) for text in container["args"]]
        version = container["image"].rpartition(":")[2]
        command = SERVER_COMMAND if version == __version__ else (sys.executable, "-c", AS_VERSION, version)
        return address, Server(
            arguments, env={f"TOPODNS_{key}": text for key, text in variables.items()}, command=command
        )

    def ready(self) -> None:
        """Wait until all replicas have read the cluster."""
        for _, server in self._servers.values():
            server.wait_for("^ready$")

    def _run_dns(self) -> None:
        name = COREDNS_POD["metadata"]["name"]
        (pod,) = (found for found in self.plane.api.items("Pod", SYSTEM) if found["metadata"]["name"] == name)
        ends = "deletionTimestamp" in pod["metadata"]
        if ends:  # its Deployment would start another
            self.plane.api.delete(COREDNS_POD)
            self.plane.api.create(COREDNS_POD)
        maps = {found["metadata"]["name"]: found.get("data", {}) for found in self.plane.api.items("ConfigMap", SYSTEM)}
        custom = maps.get("coredns-custom", {})
        for server in self._dns:
            again = server.name == "coredns" and (ends or bool(custom))
            server.run(maps.get(server.name, {}).get("Corefile", ""), imported=custom, again=again)

    def close(self) -> None:
        for _, server in self._servers.values():
            server.end()
        for dns_server in self._dns:
            dns_server.run("")


def deployment_with(*flags: str, replicas: int) -> list[Item]:
    """Return the objects of the manifests; its Deployment has more flags, and other numbers of replicas."""
    objects = json.loads(json.dumps(objects_of("coredns-stub")))
    (deployment,) = (found for found in objects if found["kind"] == "Deployment")
    deployment["spec"]["replicas"] = replicas
    deployment["spec"]["template"]["spec"]["containers"][0]["args"] += flags
    return list(objects)


@contextmanager
def running_world(plane: ControlPlane, folder: Path) -> Iterator[World]:
    """Run the cluster until the block ends; it has no fault."""
    space = api_objects.namespace(WHERE)
    plane.settle()  # what is wrong in other tests' objects is found, too, as long as they are there
    with ExitStack() as stack:
        network = stack.enter_context(one_network())
        stack.enter_context(
            kustomize.installed(plane, deployment_with(f"--trusted-forwarder={network.address}/32", replicas=1))
        )
        machines = [stack.enter_context(network.machine(*addresses)) for addresses in ((COREDNS,), (NODE, NODE_CACHE))]
        route(NODE_CACHE, "via", NODE)
        servers = [
            DnsServer(name, machine, address, folder)
            for name, machine, address in zip(CONFIG_MAPS, machines, (COREDNS, NODE_CACHE), strict=True)
        ]
        stack.callback(tidy, plane, COREDNS_DEPLOYMENT, SERVICE, DNS_SERVICE, *NODES, space)
        plane.api.create(space, *NODES, SERVICE, DNS_SERVICE, COREDNS_DEPLOYMENT, *PODS)
        world = World(plane, network, folder, servers)
        for server in servers:  # from the first of its addresses
            route(world.address, "dev", "eth0", there=server.machine.there)
        stack.callback(world.close)
        world.write_corefile(
            "coredns", world.stub("errors", "rewrite edns0 subnet set 32 128 revert", "forward . {topodns}")
        )
        world.settled()
        world.ready()
        yield world


def route(*to: str, there: Sequence[str] = ()) -> None:
    """Add a route, here or on another machine."""
    subprocess.run([*there, needs_tool("ip"), "route", "add", *to], check=True, capture_output=True)


def tidy(plane: ControlPlane, *items: Mapping[str, Any]) -> None:
    """Delete the Deployment with all that it created, the pods, and *items*."""
    api = plane.api
    for deployment in api.items("Deployment", NAMESPACE):
        api.delete({"kind": "Deployment", **deployment})
    until(lambda: not api.items("ReplicaSet", NAMESPACE), "the garbage collector")
    pods = [pod for where in (NAMESPACE, WHERE, SYSTEM) for pod in api.items("Pod", where)]
    api.delete(*({"kind": "Pod", **pod} for pod in pods if "nodeName" in pod["spec"]), *map(dict, items))
    for name in (*CONFIG_MAPS, "coredns-custom"):
        plane.kubectl("-n", SYSTEM, "delete", "configmap", name, "--ignore-not-found")
