# SPDX-License-Identifier: Apache-2.0

"""``topodns simulate``: random clusters against the rules, read a second time; the edges, by hand."""

from __future__ import annotations

import copy
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from dnsserver.tools.simulation import groups
from dnsserver.tools.simulation.groups import FEW
from dnsserver.tools.simulation.world import AskingPods
from locator.model import Pod
from locator.places.book import AddressBook
from tests.kit import random_cluster
from tests.kit.api_objects import (
    CLIENTS,
    HOSTNAME,
    MAX_OVERLOAD,
    MIN_ENDPOINTS,
    RACK,
    SERVICE_NAME,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    listed,
)
from tests.kit.commands_in_process import Run
from tests.kit.random_federations import case_of
from tests.oracle.twin import Modes, Twin
from tests.oracle.twin_asked import Row
from tests.oracle.twin_clusters import FEDERATION, TwinClusters
from tests.oracle.twin_map import NEW_NAMES, Where, ip_address, key_of, of_kind

Simulate = Callable[..., Any]
Key = tuple[str, str]  # a Service's namespace and name
NONE: Key = ("", "")  # no Service: every running pod asks
TRIED = (f"{ZONE},*", ZONE, f"{HOSTNAME},{ZONE}", f"{RACK},*", "")
ANNOTATIONS = {
    TOPOLOGY_KEYS: TRIED, MAX_OVERLOAD: ("1.1", "1.1", "1.5", ""), MIN_ENDPOINTS: ("2", ""),
    CLIENTS: ("shop", "shop/app=web; other", ""),
}  # fmt: skip


@pytest.fixture(params=[FEW, 0], ids=["few-groups", "many-groups"])
def _few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large cluster, only groups with an endpoint are gone through: here of small ones, too."""
    monkeypatch.setattr(groups, "FEW", request.param)


@pytest.fixture
def simulate(topodns: Run, tmp_path: Path) -> Simulate:
    def run(items: Any, *flags: str, status: int = 0) -> Any:
        path = tmp_path / "cluster.json"
        path.write_text(items if isinstance(items, str) else listed(items))
        ran = topodns("simulate", "--snapshot", str(path), "-o", "json", "--client-source", "pods,nodes", *flags)
        assert ran.status == status, ran.err
        return ran.json if status == 0 else ran.err

    return run


# What becomes of a Service when every client asks, computed a second time: client by client, by the rules of ``Twin``


class FixedTwin(Twin):
    """A Twin of a cluster that does not change: it remembers what it has worked out."""

    def __init__(self, items: Sequence[Item], modes: Modes) -> None:
        super().__init__(items, modes)
        self.ready = cache(self.ready)  # type: ignore[method-assign]
        self.asked = cache(self.asked)  # type: ignore[method-assign]
        self.locate = cache(self.map.locate)


class Expected(NamedTuple):
    """The figures of one Service; shares by the addresses of the endpoint, domains with the addresses that they get."""

    shares: Mapping[frozenset[str], float]
    crossing_before: float
    crossing: float
    unmet: int
    unknown: int
    domains: Mapping[tuple[Any, ...], int]


def tried(items: Sequence[Item], key: Key, annotations: Mapping[str, str]) -> list[Item]:
    """Return the cluster as if a Service had other annotations, "" for none."""
    later = copy.deepcopy(list(items))
    for service in of_kind(later, "Service"):
        if key_of(service) == key:
            there = service["metadata"].setdefault("annotations", {})
            for name, text in annotations.items():
                there.pop(name, None)
                if text:
                    there[name] = text
    return later


def failed(items: Sequence[Item], twin: Twin, label: str, value: str) -> list[Item]:
    """Return the cluster as if nothing in a topology domain were ready."""
    later = copy.deepcopy(list(items))
    there = {
        (key, address)
        for key in twin.services
        for row in twin.ready(key)
        if row.labels.get(label) == value
        for address in row.addresses  # where one of them is, the whole endpoint is
    }
    for endpoint_slice in of_kind(later, "EndpointSlice"):
        key = endpoint_slice["metadata"]["namespace"], endpoint_slice["metadata"]["labels"].get(SERVICE_NAME)
        for endpoint in endpoint_slice["endpoints"]:
            if any((key, address) in there for address in endpoint["addresses"]):
                endpoint["conditions"] = {"ready": False}
    return later


def clients_of(items: Sequence[Item], key: Key) -> list[str]:
    """Return the first address of each running pod that is no endpoint of the Service, ready or not."""
    return [own[0] for own in pods_that_ask(items, key).values()]


def pods_that_ask(items: Sequence[Item], key: Key) -> dict[Key, list[str]]:
    """Return all addresses of the same pods, by their namespaces and names."""
    endpoints = [
        endpoint
        for endpoint_slice in of_kind(items, "EndpointSlice")
        if (endpoint_slice["metadata"]["namespace"], endpoint_slice["metadata"]["labels"].get(SERVICE_NAME)) == key
        for endpoint in endpoint_slice["endpoints"]
    ]
    names = {pod for endpoint in endpoints if (pod := pod_of(endpoint))}
    addresses = {text for endpoint in endpoints if not pod_of(endpoint) for text in endpoint["addresses"]}
    clients = {}
    for pod in of_kind(items, "Pod"):
        own = [row["ip"] for row in pod["status"].get("podIPs", ())]
        is_endpoint = (pod["metadata"]["namespace"] == key[0] and pod["metadata"]["name"] in names) or any(
            text in addresses for text in own
        )
        if pod["status"]["phase"] == "Running" and own and not is_endpoint:
            clients[key_of(pod)] = own
    return clients


def pod_of(endpoint: Item) -> str | None:
    """Return the name of the Pod that an endpoint is, None if it is something else, a Node for example."""
    target = endpoint.get("targetRef", {})
    return target["name"] if target.get("kind") == "Pod" else None


def expected(twin: FixedTwin, key: Key, clients: Sequence[Sequence[str]], keys: Sequence[str]) -> Expected:
    """Ask for the Service's name from each client, by its addresses; *keys* are those of which a domain has values."""
    rows = twin.ready(key)
    loads = {row.addresses: 0.0 for row in rows}
    domains: Counter[tuple[Any, ...]] = Counter()
    arriving = crossing = crossing_before = 0.0
    unmet = unknown = 0
    for client in clients:
        where, versions = twin.locate(client[0]), {ip_address(text).version for text in client}
        given = twin.given(key, where)
        addresses = given.chosen if len(versions) > 1 else given.addresses
        chosen = [row for row in rows if any(row.of(version) & addresses for version in versions)]
        unknown += not where.labels
        unmet += not chosen
        arriving += bool(chosen)
        for row in chosen:
            loads[row.addresses] += 1 / len(chosen)
        crossing += part_elsewhere(where, chosen)
        crossing_before += part_elsewhere(where, [row for row in rows if any(map(row.of, versions))])
        domain = {name: where.labels[now] for name in keys if (now := NEW_NAMES.get(name, name)) in where.labels}
        domains[tuple(sorted(domain.items())), frozenset(row.addresses for row in chosen)] += 1
    return Expected(
        {addresses: load / (arriving or 1) for addresses, load in loads.items()},
        crossing_before / len(clients) if rows and clients else 0.0,
        crossing / (arriving or 1),
        unmet,
        unknown,
        domains,
    )


def part_elsewhere(where: Where, rows: Sequence[Row]) -> float:
    """Return the part of some endpoints that is known to be in another zone."""
    here = where.labels.get(ZONE)
    others = [row for row in rows if None not in (here, row.labels.get(ZONE)) and row.labels[ZONE] != here]
    return len(others) / len(rows) if rows else 0.0


# ``topodns simulate`` beside it


def assert_same(row: Mapping[str, Any], wanted: Expected) -> None:
    """Compare what was simulated for one Service with the figures of the second reading."""
    assert len(row["endpoints"]) == len(wanted.shares)
    for endpoint in row["endpoints"]:
        (share,) = [share for addresses, share in wanted.shares.items() if endpoint["address"] in addresses]
        assert endpoint["share"] == pytest.approx(share)
        assert endpoint["even_share"] == pytest.approx(1 / len(wanted.shares))
    assert row["max_overload"] == pytest.approx(max(wanted.shares.values(), default=0) * len(wanted.shares))
    assert len(row["idle"]) == list(wanted.shares.values()).count(0)
    assert row["cross_zone"]["before"] == pytest.approx(wanted.crossing_before)
    assert row["cross_zone"]["after"] == pytest.approx(wanted.crossing)
    assert (row["unmet_clients"], row["unknown_clients"]) == (wanted.unmet, wanted.unknown)
    assert domains_of(row, wanted) == wanted.domains


def domains_of(row: Mapping[str, Any], wanted: Expected) -> dict[Any, int]:
    """Return the domains with all addresses of each endpoint, as ``Expected`` has them."""
    whole = {address: addresses for addresses in wanted.shares for address in addresses}
    found: dict[Any, int] = {}
    outcomes = set[Any]()
    for domain in row["domains"]:
        chosen = frozenset(whole[address] for address in domain["endpoints"])
        key = tuple(sorted(domain["domain"].items())), chosen
        assert (*key, domain["outcome"]) not in outcomes, "a domain twice"
        outcomes.add((*key, domain["outcome"]))
        found[key] = found.get(key, 0) + domain["clients"]
    return found


def compared(rows: Any, twin: FixedTwin, items: Any) -> int:
    crossing = arriving = 0.0
    distinct = set[Key]()
    for row in rows["services"]:
        key: Key = (row["namespace"], row["name"])
        asked = twin.asked(key)
        narrows = asked.keys or asked.required or asked.preferred or asked.by_hints
        keys = [name for name in row["constraint"]["keys"] if name != "*"] if row["constraint"] and narrows else []
        asking = pods_that_ask(items, key)
        distinct |= asking.keys()
        wanted = expected(twin, key, list(asking.values()), keys)
        assert_same(row, wanted)
        arriving += len(asking) - wanted.unmet
        crossing += wanted.crossing * (len(asking) - wanted.unmet)
    assert rows["totals"]["clients"] == len(distinct)
    assert rows["totals"]["cross_zone"]["after"] == pytest.approx(crossing / (arriving or 1))
    return len(rows["services"])


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("seed", range(25, 35))
def test_random_clusters(simulate: Simulate, seed: int) -> None:
    """Every Service of a random cluster; the same as if one had other keys; and as if a domain had failed."""
    items, rng = random_cluster.world(seed).items, random.Random(seed)
    twin = FixedTwin(items, Modes(client_source="pods,nodes"))
    if not clients_of(items, NONE):
        assert "--clients: " in simulate(items, "--service", "shop/s0", status=2)
        return
    headless = twin.headless()
    services = [word for key in headless for word in ("--service", "/".join(key))]
    if services:
        assert compared(simulate(items, *services), twin, items) == len(headless)
    for key in headless[:1]:
        keys = rng.choice(TRIED)
        later = tried(items, key, {TOPOLOGY_KEYS: keys})
        if twin.services[key]["spec"].get("externalTrafficPolicy") == "Local" and keys:
            continue
        flag = f"--with={'/'.join(key)}={keys}"
        assert compared(simulate(items, *services, flag), FixedTwin(later, twin.modes), items)
        labels = {(label, value) for row in twin.ready(key) for label, value in row.labels.items() if label == ZONE}
        for label, value in sorted(labels)[:1]:
            gone = failed(later, twin, label, value)
            rows = simulate(items, *services, flag, "--fail", f"{label}={value}")
            assert compared(rows, FixedTwin(gone, twin.modes), items)


@pytest.mark.parametrize("seed", range(100, 130))
def test_what_is_tried_is_what_would_be(simulate: Simulate, seed: int) -> None:
    """``--with`` and ``--fail`` are the cluster with these annotations, and without what is ready in a domain."""
    items, rng = random_cluster.world(seed).items, random.Random(seed)
    for asking in of_kind(items, "Pod"):
        asking["metadata"]["labels"] = {"app": rng.choice(("web", "db"))}
    twin = FixedTwin(items, Modes(client_source="pods,nodes"))
    for key in twin.headless()[:2] if clients_of(items, NONE) else ():
        if twin.services[key]["spec"].get("externalTrafficPolicy") == "Local":
            continue
        annotations = {name: rng.choice(values) for name, values in ANNOTATIONS.items() if rng.random() < 0.7}
        flags = ["--service", "/".join(key)]
        for name, text in annotations.items():
            short = "" if name == TOPOLOGY_KEYS else f":{name.partition('/')[2]}"
            flags += ["--with", f"{'/'.join(key)}{short}={text}"]
        later = tried(items, key, annotations)
        assert simulate(items, *flags)["services"] == simulate(later, *flags[:2])["services"]
        for label, value in sorted({(ZONE, row.labels[ZONE]) for row in twin.ready(key) if ZONE in row.labels})[:1]:
            gone = failed(later, twin, label, value)
            found = simulate(items, *flags, "--fail", f"{label}={value}")["services"]
            assert found == simulate(gone, *flags[:2])["services"]


@pytest.mark.parametrize("seed", range(16, 22))
def test_random_federations(simulate: Simulate, tmp_path: Path, seed: int) -> None:
    """The federated names of several random clusters: each client gets the entries that it would be given."""
    case = case_of(seed)
    kept = {name: [found for found in items if found["kind"] != "ServiceHealth"]
            for name, items in case.world.clusters.items()}  # fmt: skip
    modes = case.world.modes._replace(client_source="pods,nodes", unknown_client="strict")
    world = case.world._replace(clusters=kept, hosts={}, modes=modes)
    others = []
    for name, items in kept.items():
        path = tmp_path / f"{name}.json"
        path.write_text(listed(items))
        others += ["--cluster", f"{name}={path}"] if name != world.own else []
    flags = tmp_path / "flags.yaml"
    flags.write_text(yaml.safe_dump({**world.flags(), "upstream": "off", "client-source": "pods,nodes"}))
    twins = {name: TwinClusters(world._replace(own=name)) for name in kept}  # each asks the server of its own cluster
    twin = twins[world.own]
    keys = sorted({(found["metadata"]["namespace"], found["metadata"]["name"])
                   for items in kept.values() for found in items if found["kind"] == "Service"})  # fmt: skip
    keys = [key for key in keys if any(twin.entries(key, context, "SRV") for context in (*kept, None))]
    if not keys or not any(clients_of(items, NONE) for items in kept.values()):
        return
    rows = simulate(kept[world.own], "--config", str(flags), *others)["services"]
    federated = {(row["namespace"], row["name"]): row for row in rows if row["zone"] == FEDERATION}
    assert sorted(federated) == keys
    for key, row in federated.items():
        exported = twin.exported(key)
        clients = [
            (name, text)
            for name, items in kept.items()
            for text in clients_of(items, key if name in exported else NONE)
        ]
        loads, unmet = Counter[str](), 0
        known = {endpoint["address"] for endpoint in row["endpoints"]}
        for name, client in clients:
            chosen = twins[name].tiers(key, client, "A")[0]
            unmet += not chosen
            for entry in chosen:
                (address,) = known & entry.addresses  # the seeds have no two entries that share one
                loads[address] += 1 / len(chosen)
        arriving = len(clients) - unmet
        shares = Counter[str]()
        for endpoint in row["endpoints"]:
            shares[endpoint["address"]] += endpoint["share"]
        assert row["unmet_clients"] == unmet
        assert shares == pytest.approx({address: loads[address] / (arriving or 1) for address in known})


def test_a_client_takes_little_memory() -> None:
    """The console keeps who asks, beside the pods that the server has read: 150,000 in the largest cluster."""
    pods = [Pod(f"ns-{number % 40}", f"web-{number}", (number.to_bytes(4),), "node-1") for number in range(20_000)]
    tracemalloc.start()
    try:
        clients = AskingPods()
        for pod in pods:
            clients.add("cluster", pod, AddressBook())
        assert tracemalloc.get_traced_memory()[0] < 100 * len(pods)
    finally:
        tracemalloc.stop()
    assert len(clients) == len({*clients}) == len(pods)
