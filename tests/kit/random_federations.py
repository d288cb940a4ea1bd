# SPDX-License-Identifier: Apache-2.0

"""Several random clusters that export Services to each other, made from a seed, and how they change.

Each one begins as a cluster of ``tests/kit/random_cluster.py``. What makes them several is added here: networks that
overlap or do not, exports, load balancers, ages of Services, votes, flat networks, and networks outside that are
somewhere.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.kit import random_cluster
from tests.kit.api_objects import (
    HOSTNAME,
    IMPORTED_SERVICE_NAME,
    RACK,
    REGION,
    SERVICE_NAME,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    item,
    service_health,
)
from tests.kit.in_memory import NOW
from tests.kit.random_cluster import OUTSIDE, UNKNOWN_CLIENT, chance
from tests.oracle.twin import Modes
from tests.oracle.twin_clusters import DEFAULT_KEYS, FEDERATION, PLAIN, ClusterWorld
from tests.oracle.twin_map import CLUSTER, of_kind

NAMES = ("east", "north", "south", "west")
KEYS = (CLUSTER, CLUSTER, HOSTNAME, RACK, ZONE, REGION)
MCS = ("multicluster.x-k8s.io/v1beta1", "multicluster.x-k8s.io/v1alpha1")
FEDERATED = "topodns.io/federated"
PORTS = [{"name": "main", "port": 80, "protocol": "TCP"}]
OTHER_PORTS = [{**PORTS[0], "port": 8080}]
# By host name: what a resolver says.
HOSTS = {
    "four.lb.example": ["198.18.200.4", "198.18.200.5"],
    "both.lb.example": ["198.18.200.6", "2001:db8:200::6"],
    "none.lb.example": [],
}
SUBNETS = {
    **random_cluster.SUBNETS,
    "198.18.1.0/24": {CLUSTER: "east", ZONE: "b"},
    "198.18.2.0/24": {CLUSTER: "south"},
    "198.18.3.0/24": {CLUSTER: "elsewhere", REGION: "r2"},
    "198.18.4.0/24": {HOSTNAME: "node-0", ZONE: "a"},
    "10.240.0.0/12": {ZONE: "c"},  # around all pods
}
IN_SUBNETS = ["198.18.1.1", "198.18.2.1", "198.18.3.1", "198.18.4.1", OUTSIDE, UNKNOWN_CLIENT]
AGES = (0, 0, 5, 5, 20, 29, -10, 31, 45, 3600)  # of votes, in seconds; some clocks are ahead


class Case(NamedTuple):
    """A world, and the questions worth asking."""

    world: ClusterWorld
    names: list[str]  # plain and federated ones
    clients: list[str]


def case_of(seed: int) -> Case:
    """Return two to four clusters whose Services have the same names."""
    rng = random.Random(seed)
    names = rng.sample(NAMES, rng.choice((2, 2, 3, 3, 4)))
    alike = {"pods": chance(rng, 35), "nodes": chance(rng, 20), "names": chance(rng, 60)}
    made: dict[str, list[Item]] = {}
    addresses: list[str] = []
    for number, name in enumerate(names):
        apart = {what: number * (not same) for what, same in alike.items()}
        if number and chance(rng, 15):  # the last ones overlap, the own cluster does not
            apart["pods"] = 1
        made[name], found = moved(random_cluster.world(rng.randrange(10**6), large=False), apart, name)
        addresses += found
    own = rng.choice(names) if chance(rng, 50) else names[0]
    for number, name in enumerate(names):
        federate(rng, made[name], number)
    if chance(rng, 40):
        agree(rng, made)
    for name in names:
        made[name] += imported(rng, made, name)
        made[name] += votes(rng, made, name)
    world = ClusterWorld(
        made,
        own,
        modes=Modes(
            unknown_client=rng.choice(("strict", "strict", "all")),
            client_source=rng.choice(("pods,nodes", "pods,nodes", "pods,nodes", "nodes", "pods,podlocators,nodes")),
            subnets=SUBNETS,
        ),
        flat=flat(rng, names),
        keys=",".join(keys(rng)) if chance(rng, 50) else DEFAULT_KEYS,
        spares=rng.choice((0, 1, 2, 2, 2, 3, 16)),
        hosts=HOSTS,
        now=NOW,
    )
    clients = rng.sample(sorted(set(addresses)), 8) + rng.sample(IN_SUBNETS, 3)
    for items in made.values():
        for found in shop(items):
            listen(rng, items, found["metadata"]["name"])
    return Case(world, service_names(world), clients)


def service_names(world: ClusterWorld) -> list[str]:
    """Return the federated names of all Services, exported or not, and the plain ones of the own headless ones."""
    keys = {found["metadata"]["name"]: found for items in world.clusters.values() for found in shop(items)}
    own = [found for found in shop(world.clusters[world.own]) if found["spec"].get("clusterIP") == "None"]
    return [f"{name}.shop.{FEDERATION}" for name in sorted(keys)] + [
        f"{found['metadata']['name']}.shop.svc.{PLAIN}" for found in own
    ]


def shop(items: Sequence[Item]) -> list[Item]:
    """Return the Services of the namespace ``shop`` that are no aliases."""
    found = [found for found in of_kind(items, "Service") if found["spec"].get("type") != "ExternalName"]
    return [found for found in found if found["metadata"]["namespace"] == "shop"]


# What makes one of several clusters


def moved(world: random_cluster.World, apart: dict[str, int], name: str) -> tuple[list[Item], list[str]]:
    """Return a cluster's objects and clients in networks of their own, and with nodes of their own names, or not."""
    text = json.dumps([world.items, world.addresses])
    for old, new in (
        ("10.244.", f"10.{244 + apart['pods']}."),
        ("fd00:244:", f"fd00:{244 + apart['pods']}:"),
        ("192.168.", f"192.{168 + apart['nodes']}."),
        ("fd00:1::", f"fd00:{1 + apart['nodes']}::"),
        ("node-", f"{name}-node-" if apart["names"] else "node-"),
    ):
        text = text.replace(old, new)
    items, addresses = json.loads(text)
    outside = {UNKNOWN_CLIENT, OUTSIDE}
    return items, [text for text in addresses if not text.endswith(".0.53") and text not in outside]


def federate(rng: random.Random, items: list[Item], number: int) -> None:
    """Let the Services of a cluster be of some kind, and exported, old, balanced and constrained somehow."""
    for found in shop(items):
        name, spec, meta = found["metadata"]["name"], found["spec"], found["metadata"]
        if spec["clusterIP"] == "None" and chance(rng, 35):
            addresses = cluster_ips(rng, number, int(name[1:]))
            spec |= {"clusterIP": next(iter(addresses), ""), "clusterIPs": addresses}
        spec["ports"] = [*PORTS]
        for owned in slices_of(items, name):
            owned["ports"] = [*PORTS]
        meta["creationTimestamp"] = f"2024-0{rng.randint(1, 3)}-01T00:00:00Z"
        if chance(rng, 35):
            meta["annotations"][TOPOLOGY_KEYS] = ",".join(keys(rng)) if chance(rng, 80) else f"*,{ZONE}"
        if chance(rng, 8):
            meta["annotations"]["topodns.io/health"] = "tcp"
        balance(rng, found, number)
        export(rng, items, found)
        if chance(rng, 12):
            for row in (row for owned in slices_of(items, name) for row in owned["endpoints"]):
                row["conditions"] = {"ready": False}
        if chance(rng, 15):  # as pods of a Deployment have it
            for row in (row for owned in slices_of(items, name) for row in owned["endpoints"]):
                row["hostname"] = "peer"
    for found in of_kind(items, "ServicePolicy"):
        if chance(rng, 25):
            found["spec"].setdefault("topology", {})["key"] = CLUSTER
    for found in of_kind(items, "Node"):
        if chance(rng, 5):
            found["metadata"]["labels"][CLUSTER] = "east"  # not for a node to say


def slices_of(items: Sequence[Item], name: str) -> list[Item]:
    found = of_kind(items, "EndpointSlice")
    return [owned for owned in found if owned["metadata"]["labels"].get(SERVICE_NAME) == name]


def listen(rng: random.Random, items: Sequence[Item], name: str) -> None:
    """Let the pods of a Service listen at its port, some of them elsewhere, or all."""
    percent = rng.choice((0, 0, 50, 100))
    for owned in slices_of(items, name):
        owned["ports"] = [*(OTHER_PORTS if chance(rng, percent) else PORTS)]


def keys(rng: random.Random) -> list[str]:
    """Return valid topology keys, the cluster often among them; most are soft."""
    drawn = list(dict.fromkeys(rng.sample(KEYS, rng.randint(1, 4))))
    return drawn + ["*"] * chance(rng, 80)


def cluster_ips(rng: random.Random, number: int, service: int) -> list[str]:
    """Return cluster IPs of one family or both, the same in several clusters, or none yet."""
    number = number if chance(rng, 60) else 0
    four, six = f"10.96.{number}.{100 + service}", f"fd00:96:{number + 1:x}::{100 + service:x}"
    return rng.choice(([four], [four, six], [six, four], [six], []) if chance(rng, 80) else ([four],))


def balance(rng: random.Random, found: Item, number: int) -> None:
    """Give a Service load balancers, or none; some that another cluster's Service has, too."""
    service, place = int(found["metadata"]["name"][1:]), 9 if chance(rng, 20) else number
    four = [{"ip": f"192.0.2.{place * 20 + service * 3 + item}"} for item in range(3)]
    six = [{"ip": f"2001:db8:{place + 1:x}::{service + 1:x}{item}"} for item in range(2)]
    hosts = [{"hostname": host} for host in rng.sample(sorted(HOSTS), 2)] + [{"hostname": "unknown.lb.example"}]
    ingress = rng.choice(
        ([], four[:1], four[:1], four, six, six[:1], [four[0], six[0]], [four[0], six[0]], hosts[:1], hosts, hosts[2:])
    )
    found["status"] = {"loadBalancer": {"ingress": ingress} if ingress else {}}
    if ingress and found["spec"]["clusterIP"] != "None":
        found["spec"]["type"] = "LoadBalancer"
        if chance(rng, 25):
            found["spec"]["externalTrafficPolicy"] = "Local"


def export(rng: random.Random, items: list[Item], found: Item) -> None:
    """Export a Service by a ServiceExport, by its annotation, by both, or not at all."""
    name, notes = found["metadata"]["name"], found["metadata"]["annotations"]
    items[:] = [other for other in items if (other["kind"], other["metadata"]["name"]) != ("ServiceExport", name)]
    notes.pop(FEDERATED, None)
    how = rng.choice((*["object"] * 5, *["annotation"] * 5, "both", "both", "false", "not", "alien"))
    if how in ("object", "both", "alien"):
        api = rng.choice(MCS) if how != "alien" else "net.gke.io/v1"
        items.append({**item("ServiceExport", name, "shop"), "apiVersion": api})
    if how in ("annotation", "both", "false"):
        notes[FEDERATED] = "true" if how != "false" else rng.choice(("false", "True", ""))


def agree(rng: random.Random, made: dict[str, list[Item]]) -> None:
    """Let the Services of one name ask for the same in all clusters, as people mean to have it."""
    for number in range(5):
        wanted = ",".join(keys(rng))
        for found in (found for items in made.values() for found in shop(items)):
            if found["metadata"]["name"] == f"s{number}":
                found["metadata"]["annotations"][TOPOLOGY_KEYS] = wanted


def imported(rng: random.Random, made: dict[str, list[Item]], name: str) -> list[Item]:
    """Return a slice that an MCS controller might copy from another cluster; it says nothing of where pods are."""
    others = [text for other, items in made.items() if other != name for text in addresses_of(items)]
    if not others or chance(rng, 50):
        return []
    rows = [endpoint(text, nodeName="node-0", zone="a") for text in rng.sample(others, min(3, len(others)))]
    copied = endpoint_slice("imported-s0", 0, rows, labels={IMPORTED_SERVICE_NAME: "s0"})
    del copied["metadata"]["labels"][SERVICE_NAME]
    return [copied]


def addresses_of(items: Sequence[Item]) -> list[str]:
    slices = [owned for owned in of_kind(items, "EndpointSlice") if owned["addressType"] == "IPv4"]
    return [row["addresses"][0] for owned in slices for row in owned["endpoints"]]


def votes(rng: random.Random, made: dict[str, list[Item]], name: str) -> list[Item]:
    """Return what the prober in one cluster says about the load balancers of all; some clusters have none.

    What is down is down for most probers, so that majorities come about.
    """
    if chance(rng, 15):
        return []
    found = []
    for service in (f"s{number}" for number in range(5)):
        balancers = {
            row.get("ip") or row["hostname"]
            for items in made.values()
            for other in shop(items)
            if other["metadata"]["name"] == service
            for row in other["status"]["loadBalancer"].get("ingress", ())
        }
        if balancers and chance(rng, 85):
            told = {text: chance(rng, 20 if sum(text.encode()) % 2 else 90) for text in sorted(balancers)}
            found.append(service_health(service, name, told, NOW - rng.choice(AGES)))
    return found


def flat(rng: random.Random, names: Sequence[str]) -> list[frozenset[str]]:
    pairs = [frozenset(rng.sample(names, 2)) for _ in range(2)]
    return rng.choice(([], [], pairs[:1], pairs, [frozenset(names)]))


# How they change


def changed(case: Case, seed: int) -> Case:
    """Return the world some time later: something changed in one cluster, or what a host name resolves to."""
    rng = random.Random(seed)
    world = case.world
    name = rng.choice(sorted(world.clusters))
    items = copy.deepcopy(list(world.clusters[name]))
    what = rng.choice(("anything", "anything", "export", "balancer", "kind", "votes", "hosts", "ready", "ports"))
    services = shop(items)
    found = rng.choice(services) if services else None
    if what == "hosts":
        return case._replace(world=world._replace(hosts=resolved_later(rng, world.hosts)))
    if what == "anything" or found is None:
        items = random_cluster.changed(items, rng.randrange(10**6))
        for owned in of_kind(items, "EndpointSlice"):
            owned["ports"] = [*PORTS]
    elif what == "export":
        export(rng, items, found)
    elif what == "balancer":
        balance(rng, found, rng.randrange(4))
    elif what == "ports":
        listen(rng, items, found["metadata"]["name"])
    elif what == "kind":
        change_kind(rng, found)
    elif what == "ready":
        for row in (row for owned in slices_of(items, found["metadata"]["name"]) for row in owned["endpoints"]):
            row["conditions"] = {"ready": chance(rng, 50)}
    else:
        items = [vote_again(rng, other) if other["kind"] == "ServiceHealth" else other for other in items]
    later = world._replace(clusters={**world.clusters, name: items})
    return case._replace(world=later, names=service_names(later))


def change_kind(rng: random.Random, found: Item) -> None:
    """Let a Service be headless, or no longer."""
    spec = found["spec"]
    addresses = ["None"] if spec["clusterIP"] != "None" else cluster_ips(rng, 0, int(found["metadata"]["name"][1:]))
    spec |= {"clusterIP": next(iter(addresses), ""), "clusterIPs": addresses}


def vote_again(rng: random.Random, voted: Item) -> Item:
    """Return the votes of one cluster on one Service, renewed now."""
    told = voted["status"]
    votes = {entry["address"]: chance(rng, 50) for entry in told["entries"]}
    return service_health(told["service"]["name"], told["cluster"], votes, NOW)


def resolved_later(rng: random.Random, hosts: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return what a resolver says later: one host name has the addresses of another."""
    names = sorted(HOSTS)
    return {**hosts, rng.choice(names): HOSTS[rng.choice(names)]}
