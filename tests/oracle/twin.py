# SPDX-License-Identifier: Apache-2.0

"""What a client gets, computed a second time: slow, simple, without any index.

Tests compare it with what topodns answers. It reads objects as kubectl prints them, and shares no code with the
packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from tests.oracle.twin_asked import (
    FIELDS,
    VERSIONS,
    Asked,
    Row,
    are_own,
    by_annotation,
    by_field,
    is_complete,
    of_keys,
    selects,
    tiers_of,
    valid,
    values_of,
)
from tests.oracle.twin_balance import Balance, Cell, Group, Rows, balanced, cell_of, clients_of, max_overload, nodes_of
from tests.oracle.twin_map import HOSTNAME, ZONE, Item, TwinMap, Where, key_of, of_kind


class Modes(NamedTuple):
    """The settings that the rules depend on, as their flags are written."""

    default_keys: Mapping[str, str] = {}  # by DNS zone
    traffic_distribution: str = "honor"
    unknown_client: str = "strict"
    client_source: str = "pods,nodes"
    subnets: Mapping[str, Mapping[str, str]] = {}

    def flags(self) -> dict[str, Any]:
        """Return the settings as a configuration file has them."""
        return {
            "default-topology-keys": [f"{zone}={keys}" for zone, keys in self.default_keys.items()],
            "traffic-distribution": self.traffic_distribution,
            "unknown-client": self.unknown_client,
            "client-source": self.client_source,
            "subnet": [
                f"{network}={','.join(f'{key}={value}' for key, value in labels.items())}"
                for network, labels in self.subnets.items()
            ],
        }


class Given(NamedTuple):
    """What a client gets, and the source that decided.

    ``addresses`` are what A and AAAA say together, ``chosen`` those of the one choice, as SRV has it. ``turn`` is the
    slot of the client's node after that of the Service, None where no balance counts for it.
    """

    addresses: set[str]
    source: str | None
    unmet: bool
    chosen: set[str]
    outcome: str
    turn: int | None


class Twin:
    """One cluster under some settings."""

    def __init__(self, items: Sequence[Item], modes: Modes, *, cluster: str = "") -> None:
        self.modes, self.map = modes, TwinMap(items, modes.client_source, modes.subnets, cluster=cluster)
        self.services = {key_of(service): service for service in of_kind(items, "Service")}
        self.policies = of_kind(items, "ServicePolicy")
        self.ready, self.balance = cache(self._ready), cache(self._balance)
        self.nodes = cache(lambda: nodes_of(self.map, modes.client_source.split(",")))

    def headless(self) -> list[tuple[str, str]]:
        """Return the namespaces and names of all headless Services."""
        return [key for key, service in self.services.items() if service["spec"].get("clusterIP") == "None"]

    def given(self, key: tuple[str, str], where: Where, zone: str = "cluster.local") -> Given:
        """Return what a client gets for the name of a headless Service in a DNS zone."""
        rows, asked = self.ready(key), self.asked(key, zone)
        chosen = self.chosen(asked, key, rows, where)
        balance = self.balance(key, zone)
        cell = self.cell(asked, key, rows, where) if balance is not None else None
        if balance is not None and cell is not None and cell not in balance.answers:  # nobody is counted there
            balance = self._balance(key, zone, also=[where])
        if balance is not None and cell in balance.answers:
            chosen = [rows[number] for number in sorted(balance.answers[cell])]
        spilled = balance is not None and cell in balance.spilled
        if not chosen and not where.labels and self.modes.unknown_client == "all":
            chosen = rows
        addresses = set()
        for version in VERSIONS:
            tier, having = chosen, [row for row in rows if row.of(version)]
            if having and not asked.hard and not any(row.of(version) for row in chosen):
                tier = self.chosen(asked, key, having, where)  # a soft choice never lacks a family that there is
            addresses |= set().union(*(row.of(version) for row in tier))
        unmet, own = bool(rows) and not chosen, set().union(*(row.addresses for row in chosen))
        outcome = "unmet" if not chosen else "spilled" if spilled else self.outcome(asked, key, rows, where)
        return Given(addresses, asked.source, unmet, own, outcome, cell and cell.turn)

    def in_zone(self, key: tuple[str, str], value: str, word: str) -> set[str]:
        """Return what every client gets for ``VALUE.pin._zone`` or ``VALUE.prefer._zone`` of a headless Service."""
        rows, found = self.ready(key), set()
        near = [row for row in rows if row.labels.get(ZONE) == value]
        for version in VERSIONS:
            of_family = [row.of(version) for row in near if row.of(version)]
            if word == "prefer" and not of_family:
                of_family = [row.of(version) for row in rows]
            found |= set().union(*of_family)
        return found

    def _ready(self, key: tuple[str, str]) -> list[Row]:
        """Return the ready endpoints; entries of one pod, or of one address, are one endpoint."""
        found: dict[str, list[Item]] = {}
        entries = [
            entry
            for endpoint_slice in sorted(self.map.slices, key=key_of)
            for entry in endpoint_slice["endpoints"]
            if (
                endpoint_slice["metadata"]["namespace"],
                endpoint_slice["metadata"]["labels"].get("kubernetes.io/service-name"),
            )
            == key
        ]
        living = {text for entry in entries if not terminates(entry) for text in entry["addresses"]}
        for entry in entries:
            dead = terminates(entry) and not living.isdisjoint(entry["addresses"])  # each has one address
            if entry.get("conditions", {}).get("ready", True) and not dead:
                target = entry.get("targetRef", {})
                name = target["name"] if target.get("kind") == "Pod" else entry["addresses"][0]
                found.setdefault(name, []).append(entry)
        places = [self.map.of_endpoint(key[0], joined(entries)) for entries in found.values()]
        return [
            Row(
                frozenset(address for entry in entries for address in entry["addresses"]),
                where.node,
                where.labels,
                entries,
            )
            for entries, where in zip(found.values(), places, strict=True)
        ]

    # What a Service asks for

    def asked(self, key: tuple[str, str], zone: str = "cluster.local") -> Asked:
        """Return what the first source that declares a constraint asks for."""
        service = self.services[key]
        policies, own = self.by_policies(service), (by_annotation(service), by_field(service))
        others = self.by_hints(self.ready(key)), self.by_distribution(service), self.by_zone(service, zone)
        peers = service["spec"].get("publishNotReadyAddresses", False)
        for asked in (*own, policies, *others) if peers else (policies, *own, *others):
            if asked is not None:
                return Asked(asked.source) if peers and asked not in own else asked
        return Asked()

    def by_policies(self, service: Item) -> Asked | None:
        rows = []
        for policy in self.policies:
            meta, spec = policy["metadata"], policy["spec"]
            topology = spec.get("topology", {})
            written, label = topology.get("mode"), topology.get("key")
            mode = written.lower() if written in ("Required", "Preferred", "Ignored") else written
            here = meta["namespace"] == service["metadata"]["namespace"]
            selected = selects(spec.get("serviceSelector"), service["metadata"].get("labels") or {})
            silent = mode in (None, "ignored") or (label is None and mode in ("required", "preferred"))
            if here and selected and not silent:
                rows.append((meta.get("creationTimestamp", ""), meta["name"], mode, label or ""))
        if not rows:
            return None
        keys = [label for *_, label in sorted(rows)]
        modes = {mode for _, _, mode, _ in rows}
        if "*" in keys or not modes <= {"required", "preferred"} or not valid(list(dict.fromkeys(keys)), service):
            return Asked("policy")
        required, preferred = (
            [label for _, _, mode, label in sorted(rows) if mode == wanted] for wanted in ("required", "preferred")
        )
        return Asked("policy", required=required, preferred=preferred)

    def by_hints(self, rows: Sequence[Row]) -> Asked | None:
        counting = {field: [version for version in VERSIONS if is_complete(rows, field, version)] for field in FIELDS}
        if self.modes.traffic_distribution == "ignore" or not any(counting.values()):
            return None  # hints that only some carry say nothing
        return Asked("hints", by_hints=counting)

    def by_distribution(self, service: Item) -> Asked | None:
        word = service["spec"].get("trafficDistribution")
        keys = {"PreferSameZone": (ZONE, "*"), "PreferClose": (ZONE, "*"), "PreferSameNode": (HOSTNAME, ZONE, "*")}
        if self.modes.traffic_distribution == "ignore" or word not in keys:
            return None
        notes = service["metadata"].get("annotations") or {}
        mode = notes.get("service.kubernetes.io/topology-mode")
        mode = notes.get("service.kubernetes.io/topology-aware-hints", mode)
        return Asked("traffic-distribution", () if mode in ("Auto", "auto") else keys[word])

    def by_zone(self, service: Item, zone: str) -> Asked | None:
        if zone not in self.modes.default_keys:
            return None
        return of_keys("zone-default", self.modes.default_keys[zone].split(","), service)

    # Which endpoints that leaves

    def least(self, key: tuple[str, str]) -> int:
        text = (self.services[key]["metadata"].get("annotations") or {}).get("topodns.io/min-endpoints", "")
        return max(1, int(text)) if re.fullmatch(r"\s*[0-9]{1,9}\s*", text) else 1

    def chosen(self, asked: Asked, key: tuple[str, str], rows: list[Row], where: Where) -> list[Row]:
        """Return what a client gets without balance."""
        least, tiers = self.least(key), tiers_of(asked, rows, where, self.least(key))
        if asked.by_hints:
            return next(filter(None, tiers), [])
        if asked.keys:
            enough = [tier for label, tier in zip(asked.keys, tiers, strict=True) if label == "*" or len(tier) >= least]
            return next(iter([*enough, *filter(None, tiers)]), [])
        return tiers[0]

    def outcome(self, asked: Asked, key: tuple[str, str], rows: list[Row], where: Where) -> str:
        """Return how a client gets endpoints that is not passed on."""
        tiers = tiers_of(asked, rows, where, self.least(key))
        if not asked.constrains:
            return "unconstrained"
        if asked.by_hints:
            near = any(tiers[:-1])
        elif asked.keys:
            near = asked.hard or any(len(tier) >= self.least(key) for tier in tiers[:-1])
        else:
            near = asked.hard or len(tiers) > 1
        return "nearest" if near else "all"

    # Balance

    def _balance(
        self, key: tuple[str, str], zone: str = "cluster.local", *, also: Sequence[Where] = ()
    ) -> Balance | None:
        """Return what becomes of all clients of a Service, and of those that are *also* there.

        None where ``max-overload`` is not heard, or by nobody.
        """
        rows, asked, service = self.ready(key), self.asked(key, zone), self.services[key]
        overload = max_overload(service)
        ordered = are_own(rows, asked) if asked.by_hints else asked.constrains
        if overload is None or not ordered or not rows:
            return None
        sources = self.modes.client_source.split(",")
        clients = clients_of(self.map, key, service, sources)
        cells = {
            self.cell(asked, key, rows, where): self.group(0, asked, key, where) for where in (*self.nodes(), *also)
        }
        others = []
        for where in clients:
            cell = self.cell(asked, key, rows, where)
            if cell is None:
                others.append(self.group(1, asked, key, where))
            else:
                cells[cell] = cells[cell]._replace(clients=cells[cell].clients + 1)
        least = 1 if asked.by_hints else self.least(key)  # kube-proxy does not hear it
        return balanced(cells, others, endpoints=len(rows), least=least, overload=overload)

    def group(self, clients: int, asked: Asked, key: tuple[str, str], where: Where) -> Group:
        """Return what clients at one place may get."""
        rows = self.ready(key)

        def numbers(some: list[Row]) -> Rows:
            return frozenset(number for number, row in enumerate(rows) if any(row is one for one in some))

        tiers = tiers_of(asked, rows, where, self.least(key))
        return Group(clients, numbers(self.chosen(asked, key, rows, where)), list(map(numbers, tiers)))

    def cell(self, asked: Asked, key: tuple[str, str], rows: list[Row], where: Where) -> Cell | None:
        """Return the cell that a client belongs to, None if its node is not known. Subnets may say more labels."""
        known = [node.labels for node in self.nodes() if node.node == where.node]
        if where.node is None or where.by_slice or not any(labels.items() <= where.labels.items() for labels in known):
            return None
        return cell_of(key, where.node, values_of(asked, rows, where))


def joined(entries: Sequence[Item]) -> Item:
    """Return one endpoint with the addresses of all its entries."""
    return {**entries[0], "addresses": [text for entry in entries for text in entry["addresses"]]}


def terminates(entry: Item) -> bool:
    return entry.get("conditions", {}).get("terminating") is True
