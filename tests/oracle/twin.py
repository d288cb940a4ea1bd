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

from tests.oracle.twin_map import HOSTNAME, NEW_NAMES, ZONE, Item, TwinMap, Where, ip_address, key_of, of_kind


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


class Row(NamedTuple):
    """A ready endpoint: its addresses of both families, its labels, and its entries in the slices."""

    addresses: frozenset[str]
    labels: Mapping[str, str]
    entries: Sequence[Item]

    def hints(self, field: str) -> set[str]:
        """Return the names in ``forNodes`` or ``forZones`` of any entry of the endpoint."""
        said = [{hint["name"] for hint in (entry.get("hints") or {}).get(field) or ()} for entry in self.entries]
        return set().union(*said) - {""}

    def of(self, version: int) -> set[str]:
        """Return the addresses of one family."""
        return {text for text in self.addresses if ip_address(text).version == version}


FIELDS = ("forNodes", "forZones")
VERSIONS = (4, 6)


class Asked(NamedTuple):
    """What a Service asks for: the source, and one of these; all are empty if the source leaves every endpoint."""

    source: str | None = None
    keys: Sequence[str] = ()  # the first one with enough endpoints decides
    required: Sequence[str] = ()  # all of them must hold
    preferred: Sequence[str] = ()  # then each narrows
    by_hints: Mapping[str, Sequence[int]] = {}  # by field: the families of which all endpoints have hints

    @property
    def hard(self) -> bool:
        """Whether there may be endpoints, and none for this client."""
        return bool(self.required) or bool(self.keys and "*" not in self.keys)


class Given(NamedTuple):
    """What a client gets, and the source that decided.

    ``addresses`` are what A and AAAA say together, ``chosen`` those of the one choice, as SRV has it.
    """

    addresses: set[str]
    source: str | None
    unmet: bool
    chosen: set[str]


class Twin:
    """One cluster under some settings."""

    def __init__(self, items: Sequence[Item], modes: Modes, *, cluster: str = "") -> None:
        self.modes, self.map = modes, TwinMap(items, modes.client_source, modes.subnets, cluster=cluster)
        self.services = {key_of(service): service for service in of_kind(items, "Service")}
        self.policies = of_kind(items, "ServicePolicy")
        self.ready = cache(self._ready)

    def headless(self) -> list[tuple[str, str]]:
        """Return the namespaces and names of all headless Services."""
        return [key for key, service in self.services.items() if service["spec"].get("clusterIP") == "None"]

    def given(self, key: tuple[str, str], where: Where, zone: str = "cluster.local") -> Given:
        """Return what a client gets for the name of a headless Service in a DNS zone."""
        rows, asked = self.ready(key), self.asked(key, zone)
        chosen = self.chosen(asked, key, rows, where)
        if not chosen and not where.labels and self.modes.unknown_client == "all":
            chosen = rows
        addresses = set()
        for version in VERSIONS:
            tier, having = chosen, [row for row in rows if row.of(version)]
            if having and not asked.hard and not any(row.of(version) for row in chosen):
                tier = self.chosen(asked, key, having, where)  # a soft choice never lacks a family that there is
            addresses |= set().union(*(row.of(version) for row in tier))
        unmet, own = bool(rows) and not chosen, set().union(*(row.addresses for row in chosen))
        return Given(addresses, asked.source, unmet, own)

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
        return [
            Row(
                frozenset(address for entry in entries for address in entry["addresses"]),
                self.map.of_endpoint(key[0], joined(entries)).labels,
                entries,
            )
            for entries in found.values()
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
            written, label = topology.get("mode"), topology.get("key", "")
            mode = written.lower() if written in ("Required", "Preferred", "Ignored") else written
            here = meta["namespace"] == service["metadata"]["namespace"]
            selected = selects(spec.get("serviceSelector"), service["metadata"].get("labels") or {})
            if here and selected and mode not in (None, "ignored"):
                rows.append((meta.get("creationTimestamp", ""), meta["name"], mode, label))
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

    def chosen(self, asked: Asked, key: tuple[str, str], rows: list[Row], where: Where) -> list[Row]:
        text = (self.services[key]["metadata"].get("annotations") or {}).get("topodns.io/min-endpoints", "")
        least = max(1, int(text)) if re.fullmatch(r"\s*[0-9]{1,9}\s*", text) else 1
        if asked.by_hints:
            return by_hints(rows, where, asked.by_hints)
        if asked.keys:
            tiers = [near(rows, label, where) for label in asked.keys]
            enough = [tier for label, tier in zip(asked.keys, tiers, strict=True) if label == "*" or len(tier) >= least]
            return next(iter([*enough, *filter(None, tiers)]), [])
        for label in asked.required:
            rows = near(rows, label, where)
        for label in asked.preferred:
            tier = near(rows, label, where)
            rows = tier if len(tier) >= least else rows
        return rows


def joined(entries: Sequence[Item]) -> Item:
    """Return one endpoint with the addresses of all its entries."""
    return {**entries[0], "addresses": [text for entry in entries for text in entry["addresses"]]}


def terminates(entry: Item) -> bool:
    return entry.get("conditions", {}).get("terminating") is True


def by_annotation(service: Item) -> Asked | None:
    text = (service["metadata"].get("annotations") or {}).get("topodns.io/topology-keys", "")
    return of_keys("annotation", [key.strip() for key in text.split(",")], service) if text.strip() else None


def by_field(service: Item) -> Asked | None:
    keys = service["spec"].get("topologyKeys")
    return of_keys("field", keys, service) if keys else None


def of_keys(source: str, keys: Sequence[str], service: Item) -> Asked:
    return Asked(source, keys if valid(keys, service) else ())


def valid(keys: Sequence[str], service: Item) -> bool:
    return (
        len(set(keys)) == len(keys) <= 16
        and "*" not in keys[:-1]
        and all(key == "*" or is_label_key(key) for key in keys)
        and service["spec"].get("externalTrafficPolicy") != "Local"
    )


def is_label_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    return (
        re.fullmatch("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", name) is not None
        and (not slash or re.fullmatch(rf"{label}(\.{label})*", prefix) is not None)
        and len(prefix) <= 253
    )


def selects(selector: Item | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects: all parts must hold; an empty or malformed one selects nothing."""
    parts = [(key, "In", [value]) for key, value in ((selector or {}).get("matchLabels") or {}).items()]
    for row in (selector or {}).get("matchExpressions") or ():
        parts.append((row["key"], row["operator"], row.get("values") or []))
    if any((operator in ("In", "NotIn")) != bool(values) for _, operator, values in parts):
        return False
    holds = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, values: key in labels,
        "DoesNotExist": lambda key, values: key not in labels,
    }
    return bool(parts) and all(operator in holds and holds[operator](key, values) for key, operator, values in parts)


def near(rows: list[Row], key: str, where: Where) -> list[Row]:
    """Return the rows that have the client's value of a key; ``*`` takes all."""
    key = NEW_NAMES.get(key, key)
    return [row for row in rows if key == "*" or (key in where.labels and row.labels.get(key) == where.labels[key])]


def is_complete(rows: Sequence[Row], field: str, version: int) -> bool:
    """Whether every row with an address of one family has hints."""
    of_family = [row for row in rows if row.of(version)]
    return bool(of_family) and all(row.hints(field) for row in of_family)


def by_hints(rows: list[Row], where: Where, counting: Mapping[str, Sequence[int]]) -> list[Row]:
    """Return what kube-proxy on the client's node would use."""
    for field, name in zip(FIELDS, (where.node, where.labels.get(ZONE)), strict=True):
        named = [row for row in rows if name in row.hints(field) and any(map(row.of, counting[field]))]
        if named:
            return named
    return rows
