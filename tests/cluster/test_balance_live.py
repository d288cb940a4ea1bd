# SPDX-License-Identifier: Apache-2.0

"""Balanced nearness in a real cluster: clients, endpoints and nodes come and go, and no endpoint expects too much.

Clients ask from their own addresses, which are on loopback: through CoreDNS, which names them to topodns, and through
NodeLocal DNSCache, which asks for all pods of its node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from fractions import Fraction
from typing import NamedTuple

import dns.message
import dns.query
import pytest

from tests.kit import forwarders
from tests.kit.api_objects import HOSTNAME, ZONE, Item, namespace, node, pod, service, topodns_annotations
from tests.kit.commands_in_process import Run
from tests.kit.forwarders import COREDNS, NODELOCAL, Forwarder, where
from tests.kit.kube import DUMPED, ControlPlane
from tests.kit.live_server import RECOVERY, Asker, addresses, serving_live
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until
from tests.oracle.twin import Modes, Twin

WHERE = "balance"
KEY = (WHERE, "db")
NODES = {"a": 12, "b": 4, "c": 4}  # by zone
EACH = 5  # clients on every node: 60, 20 and 20
FORWARDER = "127.0.0.1"
OVERLOAD, CLIENTS = "topodns.io/max-overload", "topodns.io/clients"
WEB, BATCH = "web", "batch"  # labels of clients
ALL = frozenset((WEB, BATCH))
DB = service("db", where=WHERE, keys=f"{ZONE},*", selector={"app": "db"}, annotations={OVERLOAD: "1.5"})
NAME = f"db.{WHERE}.svc.cluster.local"


def name_of(zone: str, number: int = 1) -> str:
    return f"{WHERE}-{zone}{number}"


def node_items() -> list[Item]:
    names = {name_of(zone, number): zone for zone, count in NODES.items() for number in range(1, count + 1)}
    return [node(name, {HOSTNAME: name, ZONE: zone}) for name, zone in names.items()]


def client(on: str, number: int, app: str = WEB) -> Item:
    """Return a client, at an address of its own on loopback."""
    zone, position = on.removeprefix(f"{WHERE}-")[0], int(on.removeprefix(f"{WHERE}-")[1:])
    address = f"127.{'abc'.index(zone) + 1}.{position}.{number}"
    return pod(f"client-{address.replace('.', '-')}", [address], on, where=WHERE, labels={"app": app})


def member(zone: str, number: int) -> Item:
    """Return a pod of the Service."""
    address = f"10.244.{'abc'.index(zone) + 1}.{number}"
    return pod(f"db-{zone}{number}", [address], name_of(zone, number), where=WHERE, labels={"app": "db"})


MEMBERS = [member(zone, number) for zone in NODES for number in (1, 2)]


def at(*zones: str) -> frozenset[str]:
    """Return the addresses of the endpoints in some zones, as it is at first."""
    return frozenset(_address(item) for item in MEMBERS if item["metadata"]["name"][len("db-")] in zones)


class Settled(NamedTuple):
    """What clients get by node, what the twin says of it, and who asks."""

    answers: Mapping[str, frozenset[str]]
    twin: Twin
    clients: Sequence[Item]

    @property
    def cap(self) -> Fraction | None:
        """How many clients an endpoint may expect."""
        balance = self.twin.balance(KEY)
        return balance and balance.cap

    def load(self, apps: Set[str] = ALL) -> Mapping[str, Fraction]:
        """Return how many of the clients with these labels each endpoint gets."""
        load = dict[str, Fraction]()
        for item in self.clients:
            answer = self.answers[item["spec"]["nodeName"]]
            for endpoint in answer if item["metadata"]["labels"]["app"] in apps else ():
                load[endpoint] = load.get(endpoint, Fraction()) + Fraction(1, len(answer))
        return load


class World:
    """The cluster, topodns behind CoreDNS and behind NodeLocal DNSCache, and who asks."""

    def __init__(self, plane: ControlPlane, coredns: Forwarder, nodelocal: Forwarder) -> None:
        self.plane, self.api = plane, plane.api
        self.config = ("--kubeconfig", str(plane.kubeconfig))
        self._coredns, self._nodelocal = coredns, nodelocal
        self.members = {_address(item) for item in MEMBERS}
        self.clients = {
            item["metadata"]["name"]: item for made in node_items() for item in self.on(made["metadata"]["name"])
        }

    @staticmethod
    def on(name: str) -> list[Item]:
        return [client(name, number, WEB if number % 2 else BATCH) for number in range(1, EACH + 1)]

    def come(self, *clients: Item) -> None:
        self.api.create(*clients)
        self.clients |= {item["metadata"]["name"]: item for item in clients}

    def go(self, *clients: Item) -> None:
        self.api.delete(*clients)
        for item in clients:
            del self.clients[item["metadata"]["name"]]

    def say(self, **annotations: str | None) -> None:
        self.api.patch(DB, {"metadata": {"annotations": topodns_annotations(annotations)}})

    def _answer_on(self, name: str) -> frozenset[str]:
        """Return what each client on a node gets through CoreDNS: all the same."""
        on_node = [_address(item) for item in self.clients.values() if item["spec"]["nodeName"] == name]
        answers = {_asked(self._coredns, address) for address in on_node}
        return answers.pop() if len(answers) == 1 else frozenset(map(str, answers))

    def _nodelocal_on(self, name: str) -> frozenset[str]:
        """Return what NodeLocal DNSCache gets on a node, which is this machine from now on."""
        for known in self.api.items("Node"):
            has = [row for row in known["status"].get("addresses", ()) if row["address"] == FORWARDER]
            is_there = known["metadata"]["name"] == name
            if is_there != bool(has):
                told = [{"type": "InternalIP", "address": FORWARDER}] if is_there else []
                self.api.patch_status({"kind": "Node", **known}, {"addresses": told})
        return _asked(self._nodelocal, FORWARDER)

    def twin(self) -> Twin:
        """Return what the cluster should do, as it is now."""
        items = json.loads(self.plane.kubectl("get", DUMPED, "-A", "-o", "json"))["items"]
        for item in items:
            if item["kind"] == "Node":
                item["status"].setdefault("addresses", [])
            elif item["kind"] == "EndpointSlice":
                item["endpoints"] = item["endpoints"] or []
        return Twin(items, Modes())

    def settle(self) -> Settled:
        """Wait until all clients get what they should."""
        answers, wanted = dict[str, frozenset[str]](), dict[str, frozenset[str]]()
        one = {item["spec"]["nodeName"]: _address(item) for item in self.clients.values()}

        def right() -> Twin | None:
            twin = self.twin()
            members = {address for row in twin.ready(KEY) for address in row.addresses}
            answers.update({name: self._answer_on(name) for name in one})
            wanted.update({name: frozenset(twin.given(KEY, twin.map.locate(one[name])).addresses) for name in one})
            return twin if members == self.members and answers == wanted else None

        twin = until(right, lambda: f"{wanted}, but {answers}", within=RECOVERY)
        return Settled(answers, twin, [*self.clients.values()])

    def check_nodelocal(self, settled: Settled, *names: str) -> None:
        """Wait until NodeLocal DNSCache, which keeps answers for seconds, gets what clients get on some nodes."""
        for name in names:
            until(lambda name=name: self._nodelocal_on(name) == settled.answers[name], f"the same on {name}")

    def check(self, apps: Set[str] = ALL) -> Settled:
        """Wait until all is right, and expect that no endpoint gets too many of the clients with these labels."""
        settled = self.settle()
        load, cap = settled.load(apps), settled.cap
        assert cap is not None and max(load.values()) <= cap, (load, cap)
        return settled


def _address(item: Item) -> str:
    address: str = item["status"]["podIP"]
    return address


def _asked(forwarder: Forwarder, client: str) -> frozenset[str]:
    reply = dns.query.udp(
        dns.message.make_query(NAME, "A"), FORWARDER, port=forwarder.port, source=client, timeout=PATIENCE,
        ignore_unexpected=True,
    )  # fmt: skip
    return frozenset(addresses(reply))


@pytest.fixture(scope="module")
def trusting(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server behind CoreDNS."""
    with serving_live(tmp_path_factory.mktemp("trusting"), control_plane.kubeconfig) as server:
        yield server


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, trusting: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three zones with 60, 20 and 20 clients, two endpoints in each, and what is asked."""
    plane = control_plane
    with ExitStack() as running:
        folders = [tmp_path_factory.mktemp(name) for name in ("coredns", "nodelocal", "plain")]
        plain = running.enter_context(
            serving_live(folders[2], plane.kubeconfig, flags={"trusted-forwarder": [], "ttl": 0})
        )
        coredns = running.enter_context(forwarders.running(COREDNS, folders[0], where(trusting)))
        nodelocal = running.enter_context(forwarders.running(NODELOCAL, folders[1], where(plain)))
        made = World(plane, coredns, nodelocal)
        nodes = node_items()
        plane.api.create(namespace(WHERE), *nodes, *made.clients.values(), *MEMBERS, DB)
        yield made
        left = [{"kind": "Pod", **item} for item in plane.api.items("Pod", WHERE)]
        plane.api.delete(*left, DB, *nodes, namespace(WHERE))


def test_no_endpoint_expects_more_than_the_cap(world: World, trusting: Server, topodns: Run) -> None:
    """Whatever changes, each client gets what the plan gives to its node, and every query is answered meanwhile."""
    api = world.api
    with Asker(trusting, f"db.{WHERE}", {zone: _address(client(name_of(zone), 1)) for zone in NODES}) as asker:
        world.settle()  # whoever else asks in this cluster counts, too
        world.say(clients=WHERE)
        settled = world.check()
        # 106 ask, the endpoints too: 26.5 are 1.5 even shares. Zone a alone would have 30 for each of its two.
        assert set(settled.load()) == world.members and settled.cap == Fraction("26.5")
        spilled = {name for name, answer in settled.answers.items() if answer != at(name[len(WHERE) + 1])}
        assert 0 < len(spilled) <= 3 and all(settled.answers[name] == at("b", "c") for name in spilled), settled
        crossing, kept = min(spilled), min({name_of("a", number) for number in range(1, 13)} - spilled)
        world.check_nodelocal(settled, kept, crossing)
        explained = topodns("explain", NAME, "--client", _address(client(crossing, 1)), *world.config, "-o", "json")
        assert json.loads(explained.out)["outcome"] == "spilled"

        more = [client(name_of("b"), number) for number in range(EACH + 1, 31)]
        world.come(*more)
        world.check()
        world.go(*more[5:], *world.on(name_of("a", 1)), *world.on(name_of("a", 2)))
        world.check()
        gone, new = MEMBERS[-1], member("a", 3)
        api.delete(gone)
        world.members -= {_address(gone)}
        world.check()
        api.create(new)
        world.members |= {_address(new)}
        world.check()
        for zone in ("c", "a"):
            api.patch(node_items()[3], {"metadata": {"labels": {ZONE: zone}}})
            world.check()

        asked = asker.asked
        world.say(clients=f"{WHERE}/app={WEB}", **{"max-overload": "1.1"})  # nobody has read labels of pods so far
        settled = world.check({WEB})
        world.check_nodelocal(settled, crossing)
        world.go(*(item for item in world.on(name_of("a", 5)) if item["metadata"]["labels"]["app"] == WEB))
        world.check({WEB})
        assert asker.asked > asked
        world.say(**{"max-overload": None})
        near = {"a": at("a") | {_address(new)}, "b": at("b"), "c": at("c") - {_address(gone)}}
        settled = world.settle()
        assert all(answer == near[name[len(WHERE) + 1]] for name, answer in settled.answers.items())
        world.check_nodelocal(settled, crossing)
        assert asker.lost == []
    assert not any("Traceback" in line for line in trusting.lines)
