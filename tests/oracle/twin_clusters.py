# SPDX-License-Identifier: Apache-2.0

"""What a client gets from several clusters, computed a second time: slow, simple, without any index.

Tests compare it with what topodns answers. It reads each cluster's objects as kubectl prints them, and shares no code
with the packages. ``tests/oracle/twin.py`` judges one cluster; this adds in which cluster an address is, what federated
names give, and which votes count. Names are asked for in one federated zone, and in the own cluster's
``cluster.local``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from typing import Any, NamedTuple

from tests.oracle.twin import Given, Modes, Twin
from tests.oracle.twin_asked import Asked, by_annotation, by_field
from tests.oracle.twin_map import (
    CLUSTER,
    HOSTNAME,
    NEW_NAMES,
    UNKNOWN,
    Item,
    TwinMap,
    Where,
    ip_address,
    ip_network,
    key_of,
    longest_first,
    of_kind,
    shared,
)

PLAIN = "cluster.local"
FEDERATION = "global.example.org"
DEFAULT_KEYS = f"{CLUSTER},topology.kubernetes.io/zone,topology.kubernetes.io/region,*"
FAMILIES = {"A": (4,), "AAAA": (6,), "SRV": (4, 6)}
IMPORTED = "multicluster.kubernetes.io/service-name"  # the label of EndpointSlices that come from other clusters
VOTE_LIFETIME = 30  # seconds

ANSWER = "answer"
NODATA = "NODATA"  # kept by caches or not: nobody gets a record of this type
UNKEPT = "NODATA that no cache may keep"  # the SOA's TTL and minimum are 0, since other clients do get records
NXDOMAIN = "NXDOMAIN"

Key = tuple[str, str]  # a Service's namespace and name


class ClusterWorld(NamedTuple):
    """Several clusters, the settings of the server in one of them, and what is true at one moment."""

    clusters: Mapping[str, Sequence[Item]]
    own: str
    modes: Modes = Modes()
    flat: Sequence[frozenset[str]] = ()
    keys: str = DEFAULT_KEYS  # --federation-topology-keys
    spares: int = 2
    hosts: Mapping[str, Sequence[str]] = {}  # the addresses of load balancers' host names
    now: float = 1_700_000_000  # when everything was read for the first time

    def flags(self) -> dict[str, Any]:
        """Return the settings as a configuration file has them, except for where the other clusters are read."""
        return {
            **self.modes.flags(),
            "cluster-name": self.own,
            "flat-network": [",".join(sorted(names)) for names in self.flat],
            "federation": [FEDERATION],
            "federation-topology-keys": self.keys,
            "federation-spares": self.spares,
        }


class Expected(NamedTuple):
    """What a client gets: which kind of reply, the selection's addresses, and the spares that follow them.

    A and AAAA have addresses of their family. SRV has both families, and addresses stand for the targets that have
    them; its spares of a family are those of A or AAAA. In a plain name there are no spares.
    """

    kind: str
    addresses: frozenset[str] = frozenset()
    spares: Mapping[int, tuple[str, ...]] = {}  # by IP version, in their order; only what was asked for


class Entry(NamedTuple):
    """What a cluster offers one client: an endpoint, its cluster IPs, or one item of a load balancer's status."""

    cluster: str
    addresses: frozenset[str]
    labels: Mapping[str, str]
    voted_on: str | None = None  # what votes call it; only a load balancer is probed

    def of(self, family: int) -> list[str]:
        """Return the addresses of one family, in the order of their bytes."""
        return sorted((text for text in self.addresses if version(text) == family), key=packed)


class TwinClusters:
    """Several clusters, and what their clients get."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world, modes = world, world.modes
        self.places = TwinPlaces(world)
        self.twins = {
            name: Twin(without_imported(items), modes, cluster=name) for name, items in world.clusters.items()
        }

    def expected(self, name: str, qtype: str, client: str) -> Expected:
        """Return what *client* gets for a Service's federated or plain name, or, if *qtype* is SRV, for a port's."""
        plain = name.endswith(f".svc.{PLAIN}")
        service, namespace = name.removesuffix(f".svc.{PLAIN}" if plain else f".{FEDERATION}").split(".")[-2:]
        return (self.plain if plain else self.federated)((namespace, service), qtype, client)

    # Plain names

    def plain(self, key: Key, qtype: str, client: str) -> Expected:
        """Return what a client gets for a headless Service of the own cluster."""
        ready = self.twins[self.world.own].ready(key)
        given = self.given(key, client)
        addresses = given.chosen if qtype == "SRV" else given.addresses
        return reply(qtype, [row.addresses for row in ready], addresses)

    def given(self, key: Key, client: str) -> Given:
        """Return what the own cluster gives a client, who may be in another one: nodes there are other nodes."""
        where = self.places.locate(client)
        if where.labels.get(CLUSTER, self.world.own) != self.world.own:
            labels = {label: value for label, value in where.labels.items() if label != HOSTNAME}
            where = Where(where.located_by, None, labels)
        return self.twins[self.world.own].given(key, where)

    # Federated names

    def federated(self, key: Key, qtype: str, client: str) -> Expected:
        contexts = [*self.world.clusters, None]
        for_anybody = [entry.addresses for context in contexts for entry in self.entries(key, context, "SRV")]
        tiers, asked = self.tiers(key, client, qtype), self.constraint(key, client)
        found = reply(qtype, for_anybody, set().union(*(entry.addresses for entry in tiers[0])))
        if found.kind != ANSWER:
            return found
        spares = {family: () if asked.hard else self.spares(tiers, family) for family in FAMILIES[qtype]}
        return found._replace(spares=spares)

    def exported(self, key: Key) -> dict[str, Item]:
        """Return the Services of this key where they are exported, by cluster."""
        found = {name: twin.services[key] for name, twin in self.twins.items() if key in twin.services}
        return {
            name: service
            for name, service in found.items()
            if (service["metadata"].get("annotations") or {}).get("topodns.io/federated") == "true"
            or key in map(key_of, self.exports(name))
        }

    def exports(self, cluster: str) -> list[Item]:
        found = of_kind(self.world.clusters[cluster], "ServiceExport")
        return [export for export in found if export["apiVersion"].startswith("multicluster.x-k8s.io/")]

    def entries(self, key: Key, context: str | None, qtype: str) -> list[Entry]:
        """Return what a client in the cluster *context*, or in none, could get, whatever the votes say.

        Over all contexts, SRV has whatever any type has.
        """
        found: list[Entry] = []
        for name, service in self.exported(key).items():
            rows = self.twins[name].ready(key)
            if not rows:
                continue
            labels = {**shared(Where("", None, row.labels) for row in rows).labels, CLUSTER: name}
            if context == name and service["spec"].get("clusterIP") != "None":
                found.append(Entry(name, frozenset(service["spec"].get("clusterIPs") or ()), labels))
            elif context == name or (
                any({context, name} <= joined for joined in self.world.flat)
                and (qtype == "SRV" or service["spec"].get("clusterIP") == "None" or self.listens(name, key))
            ):
                found += [Entry(name, row.addresses, {**row.labels, CLUSTER: name}) for row in rows]
            else:
                for item in service.get("status", {}).get("loadBalancer", {}).get("ingress") or ():
                    voted_on = item.get("ip") or item["hostname"]
                    addresses = [item["ip"]] if item.get("ip") else self.world.hosts.get(item["hostname"], ())
                    found.append(Entry(name, frozenset(addresses), labels, voted_on))
        return [entry for entry in found if entry.addresses]

    def listens(self, cluster: str, key: Key) -> bool:
        """Whether all ready pods listen at the numbers of the Service's ports."""

        def numbers(ports: Iterable[Item]) -> set[tuple[str, str, int]]:
            return {(port["name"], port["protocol"], port["port"]) for port in ports}

        twin = self.twins[cluster]
        ready = [entry for row in twin.ready(key) for entry in row.entries]
        slices = [
            found for found in twin.map.slices if any(one is other for one in found["endpoints"] for other in ready)
        ]
        return all(numbers(found["ports"]) == numbers(twin.services[key]["spec"]["ports"]) for found in slices)

    def constraint(self, key: Key, client: str) -> Asked:
        """Return the first valid constraint: of the client's cluster, of the oldest Service, else of the settings."""
        context = self.places.locate(client).labels.get(CLUSTER)

        def order(cluster: str) -> tuple[bool, str, str]:
            return cluster != context, exported[cluster]["metadata"].get("creationTimestamp", ""), cluster

        exported = self.exported(key)
        for name in sorted(exported, key=order):
            asked = self.asked(name, exported[name])
            if asked is not None and (asked.keys or asked.required or asked.preferred):
                return asked
        return Asked("settings", [label.strip() for label in self.world.keys.split(",")])

    def asked(self, cluster: str, service: Item) -> Asked | None:
        """Return what the first source that declares a constraint asks for, without keys if that is invalid."""
        spec = {name: value for name, value in service["spec"].items() if name != "externalTrafficPolicy"}
        free = {**service, "spec": spec}
        policies = None if spec.get("publishNotReadyAddresses") else self.twins[cluster].by_policies(free)
        return next((asked for asked in (policies, by_annotation(free), by_field(free)) if asked is not None), None)

    def tiers(self, key: Key, client: str, qtype: str) -> list[list[Entry]]:
        """Return the selection, and after it the tiers that follow, nearest first; each may hold those before it.

        What was voted out is left out, unless that leaves the client nothing.
        """
        where, asked = self.places.locate(client), self.constraint(key, client)
        everything = self.entries(key, where.labels.get(CLUSTER), qtype)
        healthy = [entry for entry in everything if not self.voted_out(key, entry)]
        tiers: list[list[Entry]] = [[]]
        for candidates in (healthy, everything):
            tiers = tiers_of(asked, candidates, where)
            if not tiers[0] and not where.labels and self.world.modes.unknown_client == "all":
                tiers = [candidates]
            if tiers[0]:
                break
        return tiers

    def spares(self, tiers: Sequence[Sequence[Entry]], family: int) -> tuple[str, ...]:
        """Return the addresses of the spares of one family, nearest first."""
        listed = [text for entry in tiers[0] for text in entry.of(family)]
        found: list[str] = []
        for tier in tiers[1:]:
            rows = sorted((entry.cluster, packed(text), text) for entry in tier for text in entry.of(family))
            for *_, text in rows:
                if text not in (*listed, *found):
                    found.append(text)
        return tuple(found[: self.world.spares])

    # Votes

    def voted_out(self, key: Key, entry: Entry) -> bool:
        """Whether more than half of all clusters say now that an entry is unhealthy."""
        against = [name for name in self.world.clusters if self.votes_against(name, key, entry.voted_on)]
        return 2 * len(against) > len(self.world.clusters)

    def votes_against(self, cluster: str, key: Key, voted_on: str | None) -> bool:
        return any(
            row["address"] == voted_on and not row["healthy"]
            for health in of_kind(self.world.clusters[cluster], "ServiceHealth")
            if (health["status"]["service"]["namespace"], health["status"]["service"]["name"]) == key
            if self.world.now - datetime.fromisoformat(health["status"]["renewTime"]).timestamp() <= VOTE_LIFETIME
            for row in health["status"]["entries"]
        )


def reply(qtype: str, everything: Iterable[Iterable[str]], chosen: Set[str]) -> Expected:
    """Return the reply for the addresses that were chosen out of what anybody can get."""
    for_anybody, families = set().union(*everything), FAMILIES[qtype]
    if not for_anybody:
        return Expected(NXDOMAIN)
    addresses = frozenset(text for text in chosen if version(text) in families)
    if addresses:
        return Expected(ANSWER, addresses)
    somebody = any(version(text) in families for text in for_anybody)
    return Expected(UNKEPT if somebody else NODATA)


def tiers_of(asked: Asked, entries: list[Entry], where: Where) -> list[list[Entry]]:
    """Return the selection and the tiers that follow, by keys or by policies."""
    if asked.keys:
        tiers = [near(entries, key, where) for key in asked.keys]
        first = next((number for number, tier in enumerate(tiers) if tier), len(tiers))
        return tiers[first:] or [[]]
    for key in asked.required:
        entries = near(entries, key, where)
    steps = [entries]
    for key in asked.preferred:
        steps += filter(None, [near(steps[-1], key, where)])
    return steps[::-1]


def near(entries: list[Entry], key: str, where: Where) -> list[Entry]:
    """Return the entries that have the client's value of a key; nodes of two clusters are never the same."""
    key = NEW_NAMES.get(key, key)
    same = [entry for entry in entries if key in where.labels and entry.labels.get(key) == where.labels[key]]
    if key == HOSTNAME:
        same = [entry for entry in same if where.labels.get(CLUSTER, entry.cluster) == entry.cluster]
    return entries if key == "*" else same


def version(text: str) -> int:
    return ip_address(text).version


def packed(text: str) -> bytes:
    return ip_address(text).packed


# Where clients are


class TwinPlaces:
    """Where addresses are, as the server in one of several clusters sees it."""

    def __init__(self, world: ClusterWorld) -> None:
        self.own, (source, subnets) = world.own, (world.modes.client_source, world.modes.subnets)
        self.maps = {
            name: TwinMap(without_imported(items), source, {}, subnets) for name, items in world.clusters.items()
        }
        self.subnets = {ip_network(text): labels for text, labels in subnets.items()}

    def locate(self, text: str) -> Where:
        """Return where an address is: in the own cluster, in the one other that has it, else by ``--subnet``."""
        having = [name for name, found in self.maps.items() if found.locate(text) != UNKNOWN]
        if self.own in having:
            return self.within(self.own, text)
        if having:
            return self.within(having[0], text) if len(having) == 1 else UNKNOWN
        for network in longest_first(self.subnets, ip_address(text))[:1]:
            return Where("subnet", None, self.subnets[network])
        return UNKNOWN

    def within(self, cluster: str, text: str) -> Where:
        where = self.maps[cluster].locate(text)
        return Where(where.located_by, where.node, {**where.labels, CLUSTER: cluster})


def without_imported(items: Iterable[Item]) -> list[Item]:
    """Return a cluster's objects without the slices that were imported: they say nothing of this cluster."""
    return [item for item in items if IMPORTED not in (item["metadata"].get("labels") or {})]
