# SPDX-License-Identifier: Apache-2.0

"""A random cluster made from a seed, what its Services ask for by every source at once, and how it changes.

Functions that take a ``random.Random`` make the same from one state of it. Most of what they make is valid.
"""

from __future__ import annotations

import copy
import ipaddress
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.kit.api_objects import (
    HOSTNAME,
    MANAGED_BY,
    OLD,
    RACK,
    REGION,
    SLICE_CONTROLLER,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    external,
    item,
    namespace,
    node,
    pod,
    pod_locator,
    service,
)
from tests.kit.random_crowds import add_balance, add_crowd, pod_labels

UNKNOWN_CLIENT = "203.0.113.9"
FORWARDER = "10.244.0.53"
OUTSIDE = "198.51.100.7"  # in a configured subnet of ``SUBNETS``
SUBNETS = {
    **{"198.51.100.0/24": {ZONE: "a"}, "198.51.0.0/16": {ZONE: "b", REGION: "r1"}},
    **{"10.244.1.0/26": {ZONE: "c", RACK: "2"}, "fd00:244:a2::/48": {REGION: "r2"}},  # what nodes lack
}
KEYS = (HOSTNAME, RACK, ZONE, REGION)
INVALID = ("*,a", f"{ZONE},{ZONE}", "-bad-", ",", f"{ZONE},,*", ",".join(f"k{number}" for number in range(17)))
DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode", "PreferSameZone", "PreferSameNode", "PreferFar")
AWARE, MODE = "service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"
APPS = ("web", "db")  # values of the label that policies select by
# How many percent of a Service's endpoints have hints for zones, and for nodes.
HINTED = (*[(0, 0)] * 5, (100, 0), (0, 100), (100, 100), (70, 70), (100, 60))
SIZES = (0, 1, 1, 2, 2, 3, 5, 8, 120)  # endpoints of a headless Service
CHANGED = (*["Service", "EndpointSlice", "Node"] * 2, "Pod", "ServicePolicy", "PodLocator")  # by ``changed``


class World(NamedTuple):
    """A cluster, with the names worth asking for and the addresses worth asking from."""

    items: list[Item]
    names: list[str]
    addresses: list[str]


def world(seed: int, *, truthful: bool = False, large: bool = True) -> World:
    """Return a small cluster with reused addresses, old labels, unready endpoints, both families, every constraint.

    In a *truthful* one all pods run, each is in its node's pod CIDR, and how many there are does not matter. In a
    *large* one, a Service may have more endpoints than a reply over UDP holds.
    """
    made = _Builder(random.Random(seed), truthful=truthful, sizes=SIZES if large else SIZES[:-1]).world()
    if not truthful:
        made.addresses.extend(add_crowd(made.items, random.Random(seed)))
    add_empty_labels(made.items, random.Random(seed))
    return made


def add_empty_labels(items: list[Item], rng: random.Random) -> None:
    """Add labels without a value, which are no labels: to nodes, slices, hints and PodLocators."""
    for found in items:
        if found["kind"] == "Node":
            _add_empty(found["metadata"]["labels"], rng)
        elif found["kind"] == "PodLocator":
            _add_empty(found["nodeLabels"], rng)
        elif found["kind"] == "EndpointSlice":
            for row in found["endpoints"]:
                if rng.randrange(4) == 0:
                    row.setdefault("zone", "")
                _add_empty(row.get("deprecatedTopology", {}), rng)
                for names in row.get("hints", {}).values():
                    names += [{"name": ""}] * (rng.randrange(4) == 0)


def _add_empty(labels: dict[str, str], rng: random.Random) -> None:
    for key in (HOSTNAME, ZONE, REGION, RACK, *OLD.values()):
        if rng.randrange(4) == 0:
            labels.setdefault(key, "")


class _Builder:
    def __init__(self, rng: random.Random, *, truthful: bool, sizes: Sequence[int]) -> None:
        self.rng, self.truthful, self.sizes = rng, truthful, sizes
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
        self.items += policies(self.rng)
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
        self.add_locator(name, addresses, f"node-{number}")
        if not self.truthful and self.chance(15):  # its address, reused later
            other = self.rng.randrange(self.count)
            self.items.append(pod(f"{name}-again", addresses[:1], f"node-{other}", created=self.moment()))

    def add_locator(self, name: str, addresses: Sequence[str], on: str) -> None:
        if self.chance(60):
            self.items.append(locator(self.rng, name, addresses, on, self.labels.get(on, {})))

    def service(self, name: str) -> None:
        rng = self.rng
        ports = [("main", 80, "TCP"), ("metrics", 9090, "TCP"), ("main-udp", 80, "UDP"), ("", 7, "TCP")]
        ports = rng.sample(ports[:3], rng.randint(1, 2)) if self.chance(85) else ports[3:]
        headless = self.chance(85)
        addresses = (
            ("None",) if headless else (f"10.96.0.{20 + len(self.items) % 200}", f"fd00:96::{len(self.items):x}")
        )
        said, selects = declarations(rng), self.truthful or self.chance(85)
        own = service(name, cluster_ips=addresses, ports=ports, selects=selects, **said)
        self.items.append(own)
        base = f"{name}.shop.svc.cluster.local"
        self.names += [base, base, f"_main._tcp.{base}", f"_tcp.{base}", f"_nope._tcp.{base}", f"nope.{base}"]
        count = rng.choice(self.sizes) if headless else 2
        dual, named, hinted = self.chance(50), self.chance(50), rng.choice(HINTED)
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
                set_hints(rng, entry, hinted, self.count)
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
            self.add_locator(name, addresses, f"node-{on}")
            self.addresses.append(addresses[0])


def changed(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the cluster some time later, with a few changes of Services, slices, nodes or pods."""
    rng = random.Random(seed)
    later = copy.deepcopy(list(items))
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice(CHANGED)
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
        elif kind == "Pod" and chance(rng, 50):
            later.remove(item)
        elif kind == "Pod":
            item["metadata"]["labels"] = pod_labels(rng)
            item["status"]["phase"] = rng.choice(("Running", "Running", "Pending", "Succeeded"))
        elif kind == "PodLocator":  # their node was relabelled
            zone = rng.choice("abc")
            for locator in of_kind:
                if locator["nodeName"] == item["nodeName"]:
                    locator["nodeLabels"][ZONE] = zone
        else:
            change_declarations(rng, item)
    for item in later:  # a change that no answer shows
        item["metadata"]["resourceVersion"] = str(rng.randrange(10**6))
    return later


# What Services ask for


def chance(rng: random.Random, percent: int) -> bool:
    return rng.randrange(100) < percent


def keys(rng: random.Random) -> list[str]:
    """Return valid keys, hard or soft, some by their old names, rarely one by both."""
    drawn = rng.sample(KEYS, rng.choice((0, 1, 2, 2, 3)))
    drawn = [OLD[key] if key in OLD and chance(rng, 20) else key for key in drawn]
    if ZONE in drawn and chance(rng, 10):
        drawn.append(OLD[ZONE])
    return drawn + ["*"] * (not drawn or chance(rng, 40))


def annotation(rng: random.Random) -> str:
    """Return a value of the annotation for topology keys: mostly valid, some with spaces, blank or invalid."""
    if chance(rng, 20):
        return rng.choice(("", "  ", *INVALID))
    return rng.choice((",", ",", " , ")).join(keys(rng))


def declarations(rng: random.Random) -> dict[str, Any]:
    """Return arguments of ``api_objects.service``: what a Service says by its own annotations, labels and fields.

    Some Services declare nothing, so that later sources decide.
    """
    early = chance(rng, 60)
    asked: dict[str, Any] = {
        "labels": {"app": rng.choice(APPS)} if early and chance(rng, 80) else {},
        "annotations": {},
    }
    if early and chance(rng, 50):
        asked["keys"] = annotation(rng)
    if early and chance(rng, 45):
        asked["field"] = keys(rng) if chance(rng, 85) else rng.choice(([], ["*", ZONE], [ZONE, ZONE]))
    if chance(rng, 40):
        asked["least"] = rng.choice(("2", "02", " 3 ", "0", "x", "-1", "1000000000"))
    if chance(rng, 50):
        asked["trafficDistribution"] = rng.choice(DISTRIBUTIONS)
    for name in (AWARE, MODE):
        if chance(rng, 25):
            asked["annotations"][name] = rng.choice(("Auto", "auto", "Disabled", "AUTO", ""))
    if chance(rng, 12):
        asked["publishNotReadyAddresses"] = True
    if chance(rng, 6):
        asked["externalTrafficPolicy"] = "Local"
    return asked


def policies(rng: random.Random) -> list[Item]:
    """Return ServicePolicies: mostly of the Services' namespace, many of one age, in some clusters invalid ones."""
    invalid = chance(rng, 15)
    return [policy(rng, f"policy-{number}", invalid=invalid) for number in range(rng.choice((0, 1, 2, 4, 6)))]


def policy(rng: random.Random, name: str, *, invalid: bool) -> Item:
    operator, values = rng.choice(
        (("In", APPS[:1]), ("In", APPS), ("NotIn", APPS), ("Exists", ()), ("DoesNotExist", ()))
    )
    expression = {"key": "app", "operator": operator, **({"values": [*values]} if values else {})}
    selector = {"matchLabels": {"app": rng.choice(APPS)}} if chance(rng, 60) else {"matchExpressions": [expression]}
    if invalid and chance(rng, 20):
        selector = rng.choice(({}, {"matchExpressions": [{"key": "app", "operator": "Equals"}]}))
    key = rng.choice((*KEYS, *OLD.values())) if not invalid or chance(rng, 85) else rng.choice(("*", "a b", ""))
    mode = rng.choice(("required", "Required", *["preferred", "Preferred"] * 5, "ignored", "Ignored", None, None))
    topology = {"key": key, "mode": mode if not invalid or chance(rng, 90) else "REQUIRED"}
    if mode is None:
        del topology["mode"]
    if chance(rng, 5):
        del topology["key"]
    where = "shop" if chance(rng, 90) else "kube-system"
    asked = {"topology": topology} if topology else {}
    made = item("ServicePolicy", name, where, spec={"serviceSelector": selector, **asked})
    made["metadata"]["creationTimestamp"] = f"2024-01-0{rng.choice((1, 1, 2, 3))}T00:00:00Z"
    return made


def locator(rng: random.Random, name: str, addresses: Sequence[str], on: str, labels: dict[str, str]) -> Item:
    """Return the PodLocator of a pod on a node with *labels*; some are out of date, or have few labels."""
    told = {key: value for key, value in labels.items() if chance(rng, 90)}
    if chance(rng, 10):
        told[ZONE] = rng.choice("abc")
    return pod_locator(name, "shop", addresses, nodeName=on, nodeLabels=told)


def set_hints(rng: random.Random, entry: Item, percents: tuple[int, int], nodes: int) -> None:
    """Give an endpoint hints for zones, for nodes or none; some name a zone or a node where nobody is."""
    entry.pop("hints", None)
    zones = rng.sample("abcz", rng.choice((1, 1, 2))) if chance(rng, percents[0]) else []
    names = rng.sample(range(nodes + 1), rng.choice((1, 1, 2))) if chance(rng, percents[1]) else []
    if zones or names or chance(rng, 10):
        entry["hints"] = {
            **({"forZones": [{"name": zone} for zone in zones]} if zones or chance(rng, 20) else {}),
            **({"forNodes": [{"name": f"node-{number}"} for number in names]} if names else {}),
        }


def change_declarations(rng: random.Random, changed: Item) -> None:
    """Change what a Service, an EndpointSlice or a ServicePolicy says."""
    meta = changed["metadata"]
    if changed["kind"] == "Service":
        said = declarations(rng)
        if chance(rng, 50):
            meta["annotations"][TOPOLOGY_KEYS] = annotation(rng)
        else:
            meta["annotations"].pop(TOPOLOGY_KEYS, None)
        meta["annotations"] |= said["annotations"]
        add_balance(meta["annotations"], rng)
        meta["labels"] = said["labels"]
        changed["spec"].pop("trafficDistribution", None)
        changed["spec"] |= {name: said[name] for name in ("trafficDistribution",) if name in said}
    elif changed["kind"] == "EndpointSlice":
        percents, more = rng.choice(HINTED), chance(rng, 50)
        for entry in changed["endpoints"]:
            set_hints(rng, entry, percents, 6)
            if more and chance(rng, 30):
                entry["conditions"] = {"ready": rng.choice((True, False))}
    elif changed["kind"] == "ServicePolicy":
        changed["spec"] = policy(rng, meta["name"], invalid=chance(rng, 10))["spec"]
