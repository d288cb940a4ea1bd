# SPDX-License-Identifier: Apache-2.0

"""Whole clusters: a small one that many tests serve, and random ones made from a seed."""

from __future__ import annotations

import copy
import ipaddress
import json
import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.kit import random_sources
from tests.kit.api_objects import (
    HOSTNAME,
    MANAGED_BY,
    OLD,
    RACK,
    REGION,
    SLICE_CONTROLLER,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    external,
    large,
    listed,
    namespace,
    node,
    pod,
    service,
)

UNKNOWN_CLIENT = "203.0.113.9"
FORWARDER = "10.244.0.53"
OUTSIDE = "198.51.100.7"  # in a configured subnet of ``SUBNETS``
SUBNETS = {
    **{"198.51.100.0/24": {ZONE: "a"}, "198.51.0.0/16": {ZONE: "b", REGION: "r1"}},
    **{"10.244.1.0/26": {ZONE: "c", RACK: "2"}, "fd00:244:a2::/48": {REGION: "r2"}},  # what nodes lack
}


class World(NamedTuple):
    """A cluster, with the names worth asking for and the addresses worth asking from."""

    items: list[Item]
    names: list[str]
    addresses: list[str]


WEB = "web.shop.svc.cluster.local"
MANY = "many.shop.svc.cluster.local"
# A small Service and a large one, without constraints.
WEB_AND_MANY = listed(
    [
        namespace("shop"),
        service("web"),
        endpoint_slice("web", 0, [endpoint("10.0.0.1"), endpoint("10.0.0.2")]),
        *large("many", 250),
    ]
)


# The same, and two ExternalName Services, for example.org and example.net.
OUT, OUT_2 = "out.shop.svc.cluster.local", "out-2.shop.svc.cluster.local"
WITH_ALIASES = listed(
    [*json.loads(WEB_AND_MANY)["items"], external("out", "example.org"), external("out-2", "example.net")]
)


def world(seed: int, *, truthful: bool = False) -> World:
    """Return a small cluster with reused addresses, old labels, unready endpoints, both families, every constraint.

    In a *truthful* one all pods run, and each is in its node's pod CIDR.
    """
    return _Builder(random.Random(seed), truthful=truthful).world()


class _Builder:
    def __init__(self, rng: random.Random, *, truthful: bool) -> None:
        self.rng, self.truthful = rng, truthful
        self.count = rng.randint(2, 6)
        self.hosts = [0] * (self.count + 2)
        self.labels: dict[str, dict[str, str]] = {}  # by node
        self.born = 0
        self.items: list[Item] = []
        self.addresses = [UNKNOWN_CLIENT, OUTSIDE, "198.51.7.7", FORWARDER, "2001:db8::9"]
        self.names = ["cluster.local", "svc.cluster.local", "shop.svc.cluster.local", "ns.dns.cluster.local"]
        self.names += ["nobody.svc.cluster.local", "none.shop.svc.cluster.local", "a.b.c.d.svc.cluster.local"]
        self.names += ["example.com", "kube-dns.kube-system.svc.cluster.local", "x.cluster.local"]

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def world(self) -> World:
        self.items += [namespace("shop"), namespace("kube-system")]
        for number in range(self.count):
            self.items.append(self.node(number))
            self.addresses.append(f"192.168.0.{number + 1}")
        self.items += [
            service("kube-dns", cluster_ips=("10.96.0.10",), where="kube-system"),
            endpoint_slice("kube-dns", 0, [endpoint(FORWARDER, nodeName="node-0")], where="kube-system"),
        ]
        for number in range(self.rng.randint(2, 5)):
            self.service(f"s{number}")
        self.items += random_sources.policies(self.rng)
        for number in range(self.rng.randint(0, 4)):
            self.alias(f"alias-{number}")
        for number in range(self.rng.randint(0, 6)):
            self.pod(f"client-{number}", *self.addresses_on(self.rng.randrange(self.count)))
        if not self.truthful:
            self.items.append(pod("host", ["192.168.0.1"], "node-0", hostNetwork=True, created=self.moment()))
            self.items.append(pod("stray", ["192.168.9.9"], "node-1", hostNetwork=True, created=self.moment()))
            self.addresses += ["192.168.9.9", "10.244.1.250", "10.244.200.1", "fd00:244:a1::fafa"]
        self.other_names()
        self.rng.shuffle(self.items)
        return World(self.items, self.names, list(dict.fromkeys(self.addresses)))

    def alias(self, name: str) -> None:
        """Add an ExternalName Service for a Service, an alias (maybe a loop), nothing, an address, or elsewhere."""
        targets = [f"{label}.shop.svc.cluster.local" for label in ("s0", "S1", "s1", "none", "alias-0", "alias-1")]
        targets += ["www.example.org", "192.0.2.7", "a.pin._zone.s0.shop.svc.cluster.local", "1.0.244.10.in-addr.arpa"]
        self.items.append(external(name, self.rng.choice(targets)))
        self.names += [f"{name}.shop.svc.cluster.local"] * 2 + [f"x.{name}.shop.svc.cluster.local"]

    def other_names(self) -> None:
        """Add reverse names, names of pods, zonal names, and the names above them."""
        for address in self.rng.sample(self.addresses, 3):
            reverse = ipaddress.ip_address(address).reverse_pointer
            dashed = address.replace(".", "-").replace(":", "-")
            self.names += [reverse, reverse.partition(".")[2], f"{dashed}.shop.pod.cluster.local"]
        zonal = "_zone.s0.shop.svc.cluster.local"
        self.names += [f"a.pin.{zonal}", f"b.prefer.{zonal}", f"z.prefer.{zonal}", f"pin.{zonal}", zonal]
        self.names += ["shop.pod.cluster.local", "none.pod.cluster.local", "dns-version.cluster.local"]

    def moment(self) -> str:
        self.born += 1
        return f"2024-01-01T{self.born // 3600:02}:{self.born // 60 % 60:02}:{self.born % 60:02}Z"

    def node(self, number: int) -> Item:
        labels = {}
        for key, values, percent in (
            (HOSTNAME, (f"node-{number}", f"node-{number}", "host"), 80),
            (ZONE, "abc", 85),
            (REGION, ("r1", "r2"), 70),
        ):
            if self.chance(percent):
                labels[OLD.get(key, key) if self.chance(30) else key] = self.rng.choice(values)
        if ZONE in labels and self.chance(20):
            labels[OLD[ZONE]] = "old"  # the newer label counts
        if self.chance(50):
            labels[RACK] = self.rng.choice(("1", "2"))
        self.labels[f"node-{number}"] = labels
        cidrs = [f"10.244.{number}.0/24", f"fd00:244:a{number:x}::/64"]
        if not self.truthful and self.chance(20):
            cidrs = self.rng.choice(([], [f"10.244.{(number + 1) % self.count}.0/24"], [f"10.244.{number}.0/25"]))
        addresses = [f"192.168.0.{number + 1}", f"fd00:1::{number + 1:x}"]
        return node(f"node-{number}", labels, cidrs=cidrs, addresses=addresses)

    def addresses_on(self, number: int) -> tuple[tuple[str, str], int]:
        """Return a new address of each family in a node's pod CIDRs, and the node's number."""
        self.hosts[number] += 1
        host = self.hosts[number] + (60 if number == 0 else 0)  # the forwarder is on node 0, too
        return (f"10.244.{number}.{host % 250 + 1}", f"fd00:244:a{number:x}::{host:x}"), number

    def pod(self, name: str, addresses: Sequence[str], number: int) -> None:
        self.addresses += addresses
        phase = "Running"
        if not self.truthful and self.chance(20):
            phase = self.rng.choice(("Succeeded", "Failed", "Pending"))
        if not self.truthful and self.chance(15):
            number = self.rng.randrange(self.count + 1)  # the last one is unknown
        self.items.append(pod(name, addresses, f"node-{number}", phase=phase, created=self.moment()))
        self.locator(name, addresses, f"node-{number}")
        if not self.truthful and self.chance(15):  # its address, reused later
            other = self.rng.randrange(self.count)
            self.items.append(pod(f"{name}-again", addresses[:1], f"node-{other}", created=self.moment()))

    def locator(self, name: str, addresses: Sequence[str], on: str) -> None:
        if self.chance(60):
            self.items.append(random_sources.locator(self.rng, name, addresses, on, self.labels.get(on, {})))

    def service(self, name: str) -> None:
        rng = self.rng
        ports = [("main", 80, "TCP"), ("metrics", 9090, "TCP"), ("main-udp", 80, "UDP"), ("", 7, "TCP")]
        ports = rng.sample(ports[:3], rng.randint(1, 2)) if self.chance(85) else ports[3:]
        headless = self.chance(85)
        addresses = (
            ("None",) if headless else (f"10.96.0.{20 + len(self.items) % 200}", f"fd00:96::{len(self.items):x}")
        )
        said, selects = random_sources.declarations(rng), self.truthful or self.chance(85)
        own = service(name, cluster_ips=addresses, ports=ports, selects=selects, **said)
        self.items.append(own)
        base = f"{name}.shop.svc.cluster.local"
        self.names += [base, base, f"_main._tcp.{base}", f"_tcp.{base}", f"_nope._tcp.{base}", f"nope.{base}"]
        count = rng.choice((0, 1, 1, 2, 2, 3, 5, 8, 120)) if headless else 2
        dual, named, hinted = self.chance(50), self.chance(50), rng.choice(random_sources.HINTED)
        rows: dict[str, list[Item]] = {"IPv4": [], "IPv6": []}
        for number in range(count):
            self.endpoint(f"{name}-{number}", rows, dual=dual, hostname=f"{name}-{number}" if named else None)
        for row in rows.values():
            if row and not self.truthful and self.chance(15):  # a dead pod's address is used again
                dead = {"ready": self.chance(50), "terminating": True}
                ghost = {"kind": "Pod", "name": f"{name}-ghost"}
                row.insert(0, {**rng.choice(row), "conditions": dead, "targetRef": ghost, "nodeName": "node-1"})
            if row and self.chance(15):  # on its way from one slice to another
                row.append({**rng.choice(row), "conditions": {"ready": self.chance(50)}})
            for entry in row:
                random_sources.set_hints(rng, entry, hinted, self.count)
        for family, row in rows.items():
            size = rng.choice((1, 3, 100)) if len(row) < 10 else 100
            for start in range(0, len(row), size):
                self.items.append(
                    endpoint_slice(name, start + 1000 * (family == "IPv6"), row[start : start + size],
                                   family=family, ports=ports, version=rng.choice(("v1", "v1beta1")),
                                   by=SLICE_CONTROLLER if self.truthful or self.chance(85) else "an-operator")
                )  # fmt: skip
        if rows["IPv4"]:
            dashed = rows["IPv4"][0]["addresses"][0].replace(".", "-")
            self.names.append(f"{name}-0.{base}" if named else f"{dashed}.{base}")

    def endpoint(self, name: str, rows: dict[str, list[Item]], *, dual: bool, hostname: str | None) -> None:
        number = self.rng.randrange(self.count)
        addresses, _ = self.addresses_on(number)
        on, more = number, {}
        if not self.truthful and self.chance(6):
            on = self.rng.randrange(self.count + 1)  # the pod CIDR is wrong, or the node unknown
        more["nodeName"] = f"node-{on}"
        if self.chance(30):
            more["zone"] = self.rng.choice("abc")
        if not self.truthful and self.chance(16):
            del more["nodeName"]
            if self.chance(50):
                more["deprecatedTopology"] = {RACK: "1", OLD[ZONE]: self.rng.choice("abc")}
            else:
                more.pop("zone", None)  # its pod, or its address, says where it is
        if hostname is not None:
            more["hostname"] = hostname
        more["targetRef"] = {"kind": "Pod", "name": name}
        if not self.truthful and self.chance(6):
            more["targetRef"] = {"kind": "Node", "name": f"node-{self.rng.randrange(self.count + 1)}"}
        ready = self.rng.choice((True, True, True, None, False))
        rows["IPv4"].append(endpoint(addresses[0], ready=ready, **more))
        if dual and self.chance(90):
            rows["IPv6"].append(endpoint(addresses[1], ready=ready, **more))
        if self.truthful or self.chance(60):
            self.pod(name, addresses, on if on < self.count else number)
        else:
            self.locator(name, addresses, f"node-{on}")
            self.addresses.append(addresses[0])


def changed(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the cluster some time later, with a few changes of Services, slices, nodes or pods."""
    rng = random.Random(seed)
    later = copy.deepcopy(list(items))
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice(
            (
                "Service",
                "Service",
                "EndpointSlice",
                "EndpointSlice",
                "Node",
                "Node",
                "Pod",
                "ServicePolicy",
                "PodLocator",
            )
        )
        of_kind = [item for item in later if item["kind"] == kind]
        if not of_kind:
            continue
        item = rng.choice(of_kind)
        if kind in ("Service", "ServicePolicy", "PodLocator") and rng.randrange(3) == 0:
            later.remove(item)
        elif kind == "EndpointSlice" and rng.randrange(5) == 0:  # somebody else keeps it now, or again the controller
            item["metadata"]["labels"][MANAGED_BY] = rng.choice((SLICE_CONTROLLER, "an-operator"))
        elif kind == "Service" and "selector" in item["spec"] and rng.randrange(4) == 0:
            del item["spec"]["selector"]
        elif kind == "EndpointSlice" and item["endpoints"] and rng.randrange(2):
            rng.choice((item["endpoints"].pop, item["endpoints"].reverse, item["ports"].clear))()
        elif kind == "Node":
            rng.choice(
                (item["metadata"]["labels"].clear, lambda item=item: item["metadata"]["labels"].update({ZONE: "c"}))
            )()
        elif kind == "Pod":
            later.remove(item)
        elif kind == "PodLocator":  # their node was relabelled
            zone = rng.choice("abc")
            for locator in of_kind:
                if locator["nodeName"] == item["nodeName"]:
                    locator["nodeLabels"][ZONE] = zone
        else:
            random_sources.change(rng, item)
    for item in later:  # a change that no answer shows
        item["metadata"]["resourceVersion"] = str(rng.randrange(10**6))
    return later
