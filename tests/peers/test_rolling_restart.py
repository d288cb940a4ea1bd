# SPDX-License-Identifier: Apache-2.0

"""A rolling restart of CoreDNS in front of topodns, under load: no client is ever placed in a wrong zone.

CoreDNS and the controller of EndpointSlices are real. The test does what a Deployment, a scheduler and a kubelet would
do; each pod is a machine of its own, because topodns knows a pod by its address.
"""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dns.edns
import dns.exception
import dns.message
import dns.query
import dns.rcode
import pytest

from tests.kit import api_objects, go_programs
from tests.kit.api_objects import SERVICE_NAME, ZONE, Item
from tests.kit.coredns import answers, is_ready
from tests.kit.kube import ControlPlane
from tests.kit.live_server import addresses, serving_live
from tests.kit.network_namespaces import PREFIX, Machine, Network, one_network
from tests.kit.programs import Daemon
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until

WHERE, SYSTEM = "rolling", "kube-system"
ZONES = ("a", "b", "c")
NAME = f"cache.{WHERE}.svc.cluster.local"
REPLICAS = 2

# Each zone has one node, and each node 32 addresses: of a client, of a member of the Service, of CoreDNS.
FIRST = {zone: 32 * number for number, zone in enumerate(ZONES, 1)}
CLIENTS = {zone: f"{PREFIX}.{first + 1}" for zone, first in FIRST.items()}
MEMBERS = {zone: f"{PREFIX}.{first + 2}" for zone, first in FIRST.items()}
NODES = [api_objects.node(f"rolling-{zone}", {ZONE: zone}, cidrs=[f"{PREFIX}.{FIRST[zone]}/27"]) for zone in ZONES]

DNS = {"k8s-app": "kube-dns"}
DNS_SERVICE = api_objects.service("kube-dns", where=SYSTEM, cluster_ips=(), ports=[("dns", 53, "UDP")], selector=DNS)
# Its only endpoint is changed to see that what changed before has arrived: one watch brings all slices, in order.
MARK = api_objects.service("mark", where=WHERE)
MARK_SLICE = api_objects.endpoint_slice("mark", 1, [], where=WHERE, ports=[])
FORWARDED_BY_UDP, FORWARDED_BY_TCP = 53, 5353  # ports of a CoreDNS that forwards
LAME_DUCK = "1h"  # after SIGTERM it goes on until the test ends it
ROUNDS = 4  # how often each client asks between two steps of a test
LOST = 5.0  # seconds after which a query is lost


@contextmanager
def forwarding_coredns(folder: Path, machine: Machine, to: str) -> Iterator[Daemon]:
    """Run CoreDNS on its own machine with a stub block for *to*, an address with a port; wait until it is ready.

    It names its clients by EDNS client subnet. It forwards queries to one of its ports over UDP, and those to the other
    over TCP. The end of the block kills it.
    """
    program, address = go_programs.coredns(), machine.address
    own = f"ready {address}:8181\nhealth {address}:8080 {{\nlameduck {LAME_DUCK}\n}}"
    stub = f"errors\nrewrite edns0 subnet set 32 128 revert\nforward . {to}"
    corefile = folder / f"coredns-{address}.Corefile"
    corefile.write_text(
        f".:{FORWARDED_BY_UDP} {{\n{own}\n{stub}\n}}\n.:{FORWARDED_BY_TCP} {{\n{stub} {{\nforce_tcp\n}}\n}}\n"
    )
    daemon = Daemon.start([*machine.there, str(program), "-conf", str(corefile)], folder, name=f"coredns-{address}")
    try:
        daemon.until(
            lambda: (
                is_ready(address, 8181) and answers(address, FORWARDED_BY_UDP) and answers(address, FORWARDED_BY_TCP)
            )
        )
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


class Load:
    """Asks a forwarding CoreDNS for one name from several clients, again and again, forwarded over UDP and over TCP.

    *clients* and *expected* have the same keys: the address that a client asks from, and the address that it must get.
    ``wrong`` lists other answers, ``lost`` queries without an answer. After ``leave`` CoreDNS may end at any time: the
    first lost query then ends the load, and does not count.
    """

    def __init__(self, via: str, name: str, clients: Mapping[str, str], expected: Mapping[str, str]) -> None:
        self._via, self._name, self._clients, self._expected = via, name, clients, expected
        self._leaving, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._rounds = 0
        self.answered = 0
        self.wrong: list[str] = []
        self.lost: list[str] = []
        self._thread.start()

    def leave(self) -> None:
        self._leaving.set()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(2 * LOST)

    def asks_on(self) -> None:
        """Wait until each client has asked some times more, unless CoreDNS may end."""
        enough = self._rounds + 1 + ROUNDS
        until(lambda: self._rounds >= enough or self._leaving.is_set() or self.wrong or self.lost, f"load {self._via}")

    def _ask(self) -> None:
        every = list(itertools.product(self._clients, (FORWARDED_BY_UDP, FORWARDED_BY_TCP)))
        while not self._ended.is_set():
            if not all(self._goes_on(who, port) for who, port in every):
                return
            self._rounds += 1

    def _goes_on(self, who: str, port: int) -> bool:
        """Ask once; return false if CoreDNS has ended."""
        query, what = dns.message.make_query(self._name, "A"), f"{who} by way of {self._via}:{port}"
        try:
            reply = dns.query.udp(query, self._via, port=port, source=self._clients[who], timeout=LOST)
        except (dns.exception.DNSException, OSError) as error:
            if self._leaving.is_set():
                return False
            self.lost.append(f"{what}: {error!r}")
            return True
        self.answered += 1
        if (found := addresses(reply)) != {self._expected[who]}:
            (self.lost if reply.rcode() == dns.rcode.SERVFAIL else self.wrong).append(f"{what}: {found}")
        return True


class Replica:
    """A pod that runs CoreDNS; each public method is a step of its life."""

    def __init__(self, world: World, name: str, zone: str, address: str) -> None:
        """Create the pod with a node and an address, but not ready yet."""
        self._world, self._zone, self.name, self.address = world, zone, name, address
        self._pod = api_objects.pod(name, [address], f"rolling-{zone}", where=SYSTEM, labels=DNS, ready=False)
        world.plane.api.create(self._pod)
        until(lambda: address in world.forwarders(), f"{address} in the slice")
        world.arrived()
        self._running = world.running.enter_context(ExitStack())
        machine = self._running.enter_context(world.network.machine(address))
        to = f"{world.server.host}:{world.server.port}"
        self._daemon: Daemon = self._running.enter_context(forwarding_coredns(world.folder, machine, to))
        self.load = Load(address, NAME, CLIENTS, MEMBERS)

    def ready(self) -> None:
        self._status(ready=True)

    def unready(self) -> None:
        self._status(ready=False)

    def told_to_end(self) -> None:
        """Begin to end: CoreDNS is a lame duck from now on."""
        self._daemon.process.send_signal(signal.SIGTERM)

    def killed(self) -> None:
        assert self._daemon.process.poll() is None, self._daemon.last_lines()
        self.load.leave()
        self._running.close()

    def deleted(self) -> None:
        """Delete the pod, which leaves its slice."""
        self._world.plane.api.delete(self._pod)
        until(lambda: self.address not in self._world.forwarders(), f"{self.address} in no slice")
        self._world.arrived()

    def succeeded(self) -> None:
        """Give its address to an ordinary pod in another zone, which is not trusted."""
        world = self._world
        heirs, named = (zone for zone in ZONES if zone != self._zone)
        heir = api_objects.pod(f"heir-of-{self.name}", [self.address], f"rolling-{heirs}", where=WHERE)
        world.plane.api.create(heir)
        world.network.take(self.address)
        naming = dns.message.make_query(NAME, "A", use_edns=0, options=[dns.edns.ECSOption(CLIENTS[named], 32)])

        def answered() -> set[str]:
            return addresses(world.server.ask(naming, source=self.address))

        until(lambda: answered() == {MEMBERS[heirs]}, lambda: f"{self.address} is in {heirs}, but {answered()}")
        assert all(answered() == {MEMBERS[heirs]} for _ in range(50))
        for other in world.replicas:
            reply = dns.query.udp(
                dns.message.make_query(NAME, "A"), other.address, source=self.address, timeout=PATIENCE
            )
            assert addresses(reply) == {MEMBERS[heirs]}

    def _status(self, *, ready: bool) -> None:
        self._world.plane.api.patch_status(self._pod, {"conditions": [{"type": "Ready", "status": str(ready)}]})


class World:
    """A cluster of three zones, topodns, and CoreDNS's replicas, the oldest first."""

    def __init__(self, plane: ControlPlane, network: Network, server: Server, folder: Path) -> None:
        self.plane, self.network, self.server, self.folder = plane, network, server, folder
        self.replicas: list[Replica] = []
        self.loads: list[Load] = []
        self.running = ExitStack()
        self._zones = itertools.cycle(ZONES)
        self._numbers = itertools.count(1)
        self._marks = itertools.count(1)

    def forwarders(self) -> set[str]:
        """Return the addresses in the slices of kube-dns, ready or not."""
        slices = self.plane.api.items("EndpointSlice", SYSTEM, labels=f"{SERVICE_NAME}=kube-dns")
        return {
            address
            for endpoint_slice in slices
            for row in endpoint_slice["endpoints"] or ()
            for address in row["addresses"]
        }

    def arrived(self) -> None:
        """Wait until topodns has read all slices."""
        mark = f"203.0.113.{next(self._marks)}"
        self.plane.api.patch(MARK_SLICE, {"endpoints": [{"addresses": [mark]}]})
        query = dns.message.make_query(f"mark.{WHERE}.svc.cluster.local", "A")
        until(lambda: addresses(self.server.ask(query)) == {mark}, "the mark")

    def new_replica(self) -> Replica:
        """Run another CoreDNS, not ready yet."""
        number, zone = next(self._numbers), next(self._zones)
        replica = Replica(self, f"coredns-{number}", zone, f"{PREFIX}.{FIRST[zone] + 4 + number}")
        self.replicas.append(replica)
        self.loads.append(replica.load)
        return replica

    def asks_on(self) -> None:
        """Wait until each client has asked each CoreDNS again, and got the right answer."""
        for load in self.loads:
            load.asks_on()
        assert [wrong for load in self.loads for wrong in load.wrong] == []
        assert [lost for load in self.loads for lost in load.lost] == []

    def close(self) -> None:
        for load in self.loads:
            load.end()
        self.running.close()


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three zones with a client and an endpoint of the Service each, and two CoreDNS that are ready."""
    api, folder = control_plane.api, tmp_path_factory.mktemp("rolling")
    service = api_objects.service("cache", where=WHERE, keys=ZONE, selector={"app": "cache"})
    clients = [api_objects.pod(f"client-{zone}", [CLIENTS[zone]], f"rolling-{zone}", where=WHERE) for zone in ZONES]
    members = [
        api_objects.pod(f"cache-{zone}", [MEMBERS[zone]], f"rolling-{zone}", where=WHERE, labels={"app": "cache"})
        for zone in ZONES
    ]
    space = api_objects.namespace(WHERE)
    with ExitStack() as stack:
        network = stack.enter_context(one_network())
        for address in CLIENTS.values():
            network.take(address)
        stack.callback(tidy, control_plane, service, MARK, MARK_SLICE, DNS_SERVICE, *NODES, space)
        api.create(space, *NODES, *clients, *members, service, MARK, MARK_SLICE, DNS_SERVICE)
        flags = {"listen": [f"{network.address}:0"], "trusted-forwarder": []}
        server = stack.enter_context(serving_live(folder, control_plane.kubeconfig, flags=flags))
        world = World(control_plane, network, server, folder)
        stack.callback(world.close)
        for _ in range(REPLICAS):
            world.new_replica().ready()
        world.asks_on()
        yield world
        assert not any("Traceback" in line or "names no client" in line for line in server.lines)


def tidy(plane: ControlPlane, *items: Item) -> None:
    """Delete all pods, and *items*."""
    pods = [*plane.api.items("Pod", SYSTEM, labels="k8s-app=kube-dns"), *plane.api.items("Pod", WHERE)]
    plane.api.delete(*({"kind": "Pod", **pod} for pod in pods), *items)


Step = Callable[[Replica], None]
ORDERS: list[tuple[str, list[Step]]] = [
    ("as a kubelet ends it", [Replica.told_to_end, Replica.unready, Replica.killed, Replica.deleted]),
    ("out of its slice while it shuts down", [Replica.told_to_end, Replica.unready, Replica.deleted, Replica.killed]),
    ("deleted by force and succeeded", [Replica.deleted, Replica.killed, Replica.succeeded]),
]


@pytest.mark.parametrize("steps", [row[1] for row in ORDERS], ids=[row[0] for row in ORDERS])
def test_a_rolling_restart_puts_no_client_in_the_wrong_zone(world: World, steps: list[Step]) -> None:
    """A new CoreDNS is trusted before it is ready, an old one for a while; never a pod that takes over its address."""
    before = sum(load.answered for load in world.loads)
    for _ in range(REPLICAS):
        new = world.new_replica()
        world.asks_on()
        new.ready()
        old = world.replicas.pop(0)
        world.asks_on()
        for befalls in steps:
            befalls(old)
            world.asks_on()
    assert sum(load.answered for load in world.loads) - before > 300
