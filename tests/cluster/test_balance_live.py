# SPDX-License-Identifier: Apache-2.0

"""Balanced nearness in a real cluster: clients, endpoints and nodes come and go, and no endpoint expects too much.

Clients ask from their own addresses, which are on loopback: through CoreDNS, which names them to topodns, and through
NodeLocal DNSCache, which asks for all pods of its node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack
from fractions import Fraction

import dns.message
import dns.query
import pytest

from tests.kit import forwarders
from tests.kit.api_objects import HOSTNAME, ZONE, Item, namespace, node, pod, service
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
DB = service("db", where=WHERE, keys=f"{ZONE},*", selector={"app": "db"}, annotations={OVERLOAD: "1.5"})
NAME = f"db.{WHERE}.svc.cluster.local"


def name_of(zone: str, number: int = 1) -> str:
    return f"{WHERE}-{zone}{number}"


def node_items() -> list[Item]:
    names = {name_of(zone, number): zone for zone, count in NODES.items() for number in range(1, count + 1)}
    return [node(name, {HOSTNAME: name, ZONE: zone}) for name, zone in names.items()]


def client(on: str, number: int, app: str = "web") -> Item:
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


class World:
    """The cluster, topodns behind CoreDNS and behind NodeLocal DNSCache, and who asks."""

    def __init__(self, plane: ControlPlane, coredns: Forwarder, nodelocal: Forwarder) -> None:
        self.plane, self.api = plane, plane.api
        self.config = ("--kubeconfig", str(plane.kubeconfig))
        self._coredns, self._nodelocal = coredns, nodelocal
        self.clients = {
            item["metadata"]["name"]: item for made in node_items() for item in self.on(made["metadata"]["name"])
        }

    @staticmethod
    def on(name: str) -> list[Item]:
        return [client(name, number, "web" if number % 2 else "batch") for number in range(1, EACH + 1)]

    def come(self, *clients: Item) -> None:
        self.api.create(*clients)
        self.clients |= {item["metadata"]["name"]: item for item in clients}

    def go(self, *clients: Item) -> None:
        self.api.delete(*clients)
        for item in clients:
            del self.clients[item["metadata"]["name"]]

    def say(self, **annotations: str | None) -> None:
        self.api.patch(
            DB, {"metadata": {"annotations": {f"topodns.io/{key}": text for key, text in annotations.items()}}}
        )

    def answers(self) -> dict[str, frozenset[str]]:
        """Return what each client gets through CoreDNS, by its address."""
        return {address: _asked(self._coredns, address) for address in map(_address, self.clients.values())}

    def through_nodelocal(self, name: str) -> frozenset[str]:
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

    def settle(self) -> Mapping[str, frozenset[str]]:
        """Wait until all clients get what they should, by CoreDNS and by NodeLocal; return it by the client's node."""
        answers: dict[str, frozenset[str]] = {}
        wanted: dict[str, frozenset[str]] = {}

        def is_right() -> bool:
            twin = self.twin()
            answers.update(self.answers())
            wanted.update({at: frozenset(twin.given(KEY, twin.map.locate(at)).addresses) for at in self.addresses()})
            return all(answers[at] == wanted[at] for at in self.addresses())

        def what() -> str:
            return f"{[(at, answers[at], wanted[at]) for at in self.addresses() if answers[at] != wanted[at]]}"

        until(is_right, what, within=RECOVERY)
        by_node = {item["spec"]["nodeName"]: answers[_address(item)] for item in self.clients.values()}
        assert all(answers[_address(item)] == by_node[item["spec"]["nodeName"]] for item in self.clients.values())
        for name in {answer: name for name, answer in by_node.items()}.values():  # one node of each answer
            until(lambda name=name: self.through_nodelocal(name) == by_node[name], f"NodeLocal gets the same on {name}")
        return by_node

    def addresses(self) -> list[str]:
        return [*map(_address, self.clients.values())]

    def load(self, by_node: Mapping[str, frozenset[str]], apps: Set[str]) -> Mapping[str, Fraction]:
        """Return how many of the clients with these labels each endpoint gets."""
        load = dict[str, Fraction]()
        for item in self.clients.values():
            answer = by_node[item["spec"]["nodeName"]]
            for endpoint in answer if item["metadata"]["labels"]["app"] in apps else ():
                load[endpoint] = load.get(endpoint, Fraction()) + Fraction(1, len(answer))
        return load

    def cap(self) -> Fraction:
        """Return how many clients an endpoint may expect."""
        balance = self.twin().balance(KEY)
        assert balance is not None
        return balance.cap

    def check(self, apps: Set[str]) -> None:
        """Wait until all is right, and expect that no endpoint gets too many of the clients with these labels."""
        load = self.load(self.settle(), apps)
        assert max(load.values()) <= self.cap(), (load, self.cap())


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
    api, b1, everything = world.api, name_of("b"), {_address(item) for item in MEMBERS}
    with Asker(trusting, f"db.{WHERE}", {zone: _address(client(name_of(zone), 1)) for zone in NODES}) as asker:
        world.settle()  # whoever else asks in this cluster counts, too
        world.say(clients=WHERE)
        by_node = world.settle()
        load = world.load(by_node, {"web", "batch"})
        # 106 ask, the endpoints too: 26.5 are 1.5 even shares. Zone a alone would have 30 for each of its two.
        assert set(load) == everything and world.cap() == Fraction("26.5")
        spilled = {name for name, answer in by_node.items() if answer != at(name[len(WHERE) + 1])}
        assert 0 < len(spilled) <= 3 and all(by_node[name] == at("b", "c") for name in spilled), by_node
        explained = topodns("explain", NAME, "--client", _address(client(min(spilled), 1)), *world.config, "-o", "json")
        assert json.loads(explained.out)["outcome"] == "spilled"

        more = [client(b1, number) for number in range(EACH + 1, 31)]
        world.come(*more)
        world.check({"web", "batch"})
        world.go(*more[5:], *world.on(name_of("a", 1)), *world.on(name_of("a", 2)))
        world.check({"web", "batch"})
        gone, new = MEMBERS[-1], member("a", 3)
        api.delete(gone)
        world.check({"web", "batch"})
        api.create(new)
        world.check({"web", "batch"})
        for zone in ("c", "a"):
            api.patch(node_items()[3], {"metadata": {"labels": {ZONE: zone}}})
            world.check({"web", "batch"})
        api.delete(new)

        asked = asker.asked
        world.say(clients=f"{WHERE}/app=web", **{"max-overload": "1.1"})  # labels of pods, which nobody has read so far
        world.check({"web"})
        world.go(*(item for item in world.clients.values() if item["spec"]["nodeName"] == name_of("a", 5)))
        world.check({"web"})
        assert asker.asked > asked
        world.say(**{"max-overload": None})
        assert all(answer == at(name[len(WHERE) + 1]) - {_address(gone)} for name, answer in world.settle().items())
        assert asker.lost == []
    assert not any("Traceback" in line for line in trusting.lines)
