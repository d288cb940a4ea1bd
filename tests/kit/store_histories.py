# SPDX-License-Identifier: Apache-2.0

"""Random histories of a store's objects, the objects that they end in, and what a snapshot says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from locator.api.deltas import Delta, Drop, Put, Replace
from locator.endpoints import compact
from locator.ip import Network, host_network, parse_address, parse_network
from locator.labels import Selector, parse_selector, requirement
from locator.model import (
    KINDS,
    MIRRORING_CONTROLLER,
    REGION,
    RUNNING,
    SLICE_CONTROLLER,
    ZONE,
    ClientPod,
    Endpoint,
    EndpointSlice,
    Location,
    Namespace,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    ServiceExport,
    ServiceImport,
    ServicePolicy,
    canonical_labels,
    kind_of,
    labels_of,
)
from locator.places.address_map import keys_at
from locator.state.snapshot import CompiledService, Snapshot
from locator.state.store import Store, StoreOptions
from locator.topology.constraints import IGNORED, PREFERRED, REQUIRED
from locator.topology.scope import Scope
from locator.topology.selection import LocatedEndpoint
from tests.kit.in_memory import NOW, addresses_in, read_again
from tests.kit.unshrunk import unshrunk

steady = settings(unshrunk, max_examples=80)
FOREVER = NOW + 10**6  # when nobody who left is trusted any more
DNS = "kube-system/dns"


def ip(text: str) -> bytes:
    return parse_address(text)


def at(location: Location) -> tuple[object, ...]:
    return location.known, location.node, sorted(location.labels.items())


ADDRESSES = [ip(f"10.0.{net}.{host}") for net in (0, 1, 2) for host in (1, 2, 17)]
ADDRESSES += [ip("fd00::1"), ip("fd00::2"), ip("192.168.0.1"), ip("192.168.0.2"), ip("198.51.100.7"), ip("203.0.113.9")]
BLOCKS = ["10.0.0.0/24", "10.0.1.0/25", "10.0.0.0/28", "10.0.0.0/23", "10.0.0.0/16", "10.0.2.0/24", "10.0.0.0/8",
          "0.0.0.0/0", "192.168.0.0/30", "198.51.0.0/16", "fd00::/64", "fd00::/127", "fd00::/16", "::/0"]  # fmt: skip


def located(rows: Iterable[LocatedEndpoint]) -> list[tuple[object, ...]]:
    return [(row.endpoint, at(row.location)) for row in rows]


def service_content(each: CompiledService) -> tuple[object, ...]:
    return each.service, each.declaration, each.empty, located(each.endpoints), each.plans


def content_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the content of a snapshot, without its serial, as values that can be compared."""
    book, flat = snapshot.addresses, {}
    for name, ask in (("source", book.source), ("locate", book.locate)):
        for address in ADDRESSES:
            place = ask(address)
            flat[name, address] = at(place.location), place.located_by, place.forwarder
    for block in BLOCKS:
        place = book.locate_network(parse_network(block))
        flat["block", block.encode()] = at(place.location), place.located_by, place.block, place.forwarder
    return {
        "services": {key: service_content(service) for key, service in snapshot.services.items()},
        "balances": dict(snapshot.balances),
        "unready": {key: located(rows) for key, rows in snapshot.unready.items()},
        "places": flat,
        "held": {a: (at(p.location), p.located_by, p.block, p.forwarder) for a, p in book.places.items()},
        "distrusted": book.distrusted_cidrs,
        "namespaces": snapshot.namespaces,
        "holders": {
            address: keys_at(snapshot.service_addresses, address)
            for address in addresses_in(snapshot.service_addresses)
        },
        "pods": dict(snapshot.pod_namespaces.items()),
        "findings": snapshot.findings,
        "objects": snapshot.object_counts,
        "sizes": [len(book.places), len(snapshot.pod_namespaces)],
    }


def holders(snapshot: Snapshot) -> dict[Network, str]:
    """Return who holds each address and block, which the latest snapshot alone can tell."""
    held = [Network(address, 8 * len(address)) for address, _ in snapshot.addresses.places.items()]
    book, networks = snapshot.addresses, [*held, *map(parse_network, BLOCKS), *map(host_network, ADDRESSES)]
    return {network: book.holder(network) + book.overlooked(network) for network in networks}


def some(values: Sequence[Any], most: int = 2, least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), min_size=least, max_size=most, unique=True).map(tuple)


NODES, SPACES, NAMES, PODS = ("n0", "n1", "n2"), ("shop", "lab", "kube-system"), ("web", "api"), ("p0", "p1", "p2")
CIDRS = [parse_network(text) for text in ("10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/16", "10.0.0.0/28", "fd00::/64")]
labels = st.dictionaries(st.sampled_from((ZONE, "rack")), st.sampled_from("ab"), max_size=2)
node_labels = st.dictionaries(st.sampled_from((ZONE, "rack", REGION)), st.sampled_from("ab"), max_size=3)
KEEPERS = (SLICE_CONTROLLER, SLICE_CONTROLLER, SLICE_CONTROLLER, MIRRORING_CONTROLLER, "operator")
maybe_node = st.sampled_from((*NODES, *NODES, None))
held = some(ADDRESSES[:13])


def canonical(node: str | None, own: dict[str, str]) -> dict[str, str]:
    return canonical_labels(own, node=node)


nodes = st.builds(
    lambda name, own, *rest: Node(name, canonical(name, own), *rest),
    st.sampled_from(NODES), node_labels, some(ADDRESSES[9:13]), some(CIDRS),
)  # fmt: skip
POD_LABELS = ("app", "tier")
PHASES = (RUNNING, RUNNING, RUNNING, "Pending", "Succeeded", "Failed")
pods = st.builds(
    Pod, st.sampled_from(SPACES), st.sampled_from(PODS), held, maybe_node, st.sampled_from((False, False, True)),
    st.sampled_from(PHASES), st.sampled_from(("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z")),
)  # fmt: skip
locators = st.builds(
    lambda space, name, addresses, node, own: PodLocator(space, name, addresses, node, canonical(node, own)),
    st.sampled_from(SPACES), st.sampled_from(PODS), held, maybe_node, labels,
)  # fmt: skip


def endpoints_with(addresses: st.SearchStrategy[tuple[bytes, ...]]) -> st.SearchStrategy[list[Endpoint]]:
    endpoint = st.builds(
        lambda addresses, node, word, ready, pod, target, terminating: Endpoint(
            addresses, node=node, slice_labels=word, ready=ready, pod=None if target else pod, target_node=target,
            terminating=terminating,
        ),
        addresses, maybe_node, labels, st.sampled_from((True, True, False)), st.sampled_from((*PODS, None)),
        st.sampled_from((*[None] * 4, "n1")), st.sampled_from((False, False, False, True)),
    )  # fmt: skip
    return st.lists(endpoint, max_size=4)


endpoints = (endpoints_with(some(ADDRESSES[:9], 1, 1)) | endpoints_with(some(ADDRESSES[:13], least=1))).map(compact)
slices = st.builds(
    lambda space, name, service, rows, keeper, deleting, imported: EndpointSlice(
        space, name, service, rows, managed_by=keeper, deleting=deleting, imported_service=imported
    ),
    st.sampled_from(SPACES), st.sampled_from(("x", "y", "z")),
    st.sampled_from((*NAMES, "dns", None)), endpoints, st.sampled_from(KEEPERS),
    st.sampled_from((*[False] * 7, True)), st.sampled_from((*[None] * 7, "web")),
)  # fmt: skip
services = st.builds(
    lambda space, name, ips, keys, alias, own, selects: Service(
        space, name, headless=not ips and alias is None, cluster_ips=ips, alias=alias, labels=own, selects_pods=selects,
        annotations={"topodns.io/topology-keys": keys} if keys else {},
    ),
    st.sampled_from(SPACES), st.sampled_from(NAMES), some(ADDRESSES[-2:], 1),
    st.sampled_from(("", " ", ZONE, "rack,*", f"{ZONE}s,racks,*", "*,rack")),
    st.sampled_from((None, None, None, "example.org")),
    st.builds(
        lambda own, dns: {**own, **dns},
        st.dictionaries(st.sampled_from(("app", "version")), st.sampled_from("12"), max_size=2),
        st.sampled_from(({}, {"k8s-app": "kube-dns"}, {"k8s-app": "web"}, {"topodns.io/hints": "true"})),
    ),
    st.sampled_from((True, True, False)),
)  # fmt: skip
policies = st.builds(
    lambda space, name, created, value, key, mode: ServicePolicy(
        space, name, created, Selector((requirement("app", "in", [value]),)), key, mode
    ),
    st.sampled_from(SPACES), st.sampled_from(("q", "r")), st.sampled_from(("2024", "2025")), st.sampled_from("12"),
    st.sampled_from((ZONE, "rack", "-bad-", None)), st.sampled_from((REQUIRED, PREFERRED, IGNORED)),
)  # fmt: skip
namespaces = st.builds(Namespace, st.sampled_from(SPACES), st.dictionaries(st.just("team"), st.sampled_from("ab")))
exports = st.builds(ServiceExport, st.sampled_from(SPACES), st.sampled_from(NAMES))
imports = st.builds(
    ServiceImport, st.sampled_from(SPACES), st.sampled_from(NAMES), st.booleans(), clusters=some(("east", "west"), 1)
)
STRATEGIES: dict[type[Object], st.SearchStrategy[Any]] = {
    Namespace: namespaces, Node: nodes, Pod: pods, PodLocator: locators, Service: services, ServicePolicy: policies,
    EndpointSlice: slices, ServiceExport: exports, ServiceImport: imports,
}  # fmt: skip


PUBLISH = "publish"
HAPPENS = (*KINDS, Node, Pod, Pod, Service, EndpointSlice, EndpointSlice, PUBLISH, PUBLISH, PUBLISH)


# Few nodes, blocks within blocks, and endpoints that lie in them, some of them forwarders: much depends on much here.
BLOCKS_ALONE: dict[type[Object], st.SearchStrategy[Any]] = {
    Node: st.builds(
        lambda name, zone, cidrs: Node(name, canonical(name, {ZONE: zone}), (), cidrs),
        st.sampled_from(NODES), st.sampled_from("ab"), some(CIDRS[:4], 3),
    ),
    Pod: st.builds(
        lambda name, address, node: Pod("kube-system", name, (address,), node),
        st.sampled_from(PODS), st.sampled_from(ADDRESSES[:4]), maybe_node,
    ),
    Service: st.builds(
        lambda name, selects: Service("kube-system", name, headless=True, selects_pods=selects),
        st.sampled_from(("web", "dns")), st.sampled_from((True, True, False)),
    ),
    EndpointSlice: st.builds(
        lambda name, service, rows, keeper: EndpointSlice(
            "kube-system", name, service, compact(rows), managed_by=keeper
        ),
        st.sampled_from("xy"), st.sampled_from(("web", "dns")),
        st.lists(st.builds(lambda address, node, pod: Endpoint((address,), node=node, pod=pod),
                           st.sampled_from((ADDRESSES[0], ADDRESSES[2], ADDRESSES[3])), maybe_node,
                           st.sampled_from((*PODS[:2], None))), max_size=2),
        st.sampled_from(KEEPERS),
    ),
}  # fmt: skip

# A Service that asks for zones, with few endpoints that often nothing locates but the places of their addresses.
UNLOCATED_ALONE: dict[type[Object], st.SearchStrategy[Any]] = {
    Node: st.builds(
        lambda name, cidrs: Node(name, canonical(name, {ZONE: "a"}), (), cidrs), st.just("n0"), some(CIDRS[:2])
    ),
    Service: st.just(Service("shop", "web", headless=True, annotations={"topodns.io/topology-keys": ZONE})),
    EndpointSlice: st.builds(
        lambda name, rows: EndpointSlice("shop", name, "web", compact(rows)), st.sampled_from("xy"),
        st.lists(
            st.builds(
                lambda addresses, node, word, pod, ready, terminating: Endpoint(
                    addresses, node=node, slice_labels=word, pod=pod, ready=ready, terminating=terminating
                ),
                some(ADDRESSES[:4], 2, 1), st.sampled_from((None, None, "n1")), st.sampled_from(({}, {}, {ZONE: "b"})),
                st.sampled_from((None, None, "p0")), st.booleans(), st.sampled_from((False, False, True)),
            ), min_size=1, max_size=2,
        ),
    ),
}  # fmt: skip

# Services that gain and lose the label by which the cluster's DNS is found, and their slices.
DNS_ALONE: dict[type[Object], st.SearchStrategy[Any]] = {
    Service: st.builds(
        lambda space, name, label: Service(space, name, cluster_ips=(ADDRESSES[-1],), labels={"k8s-app": label}),
        st.sampled_from(("kube-system", "kube-system", "shop")), st.sampled_from((*NAMES, "kube-dns")),
        st.sampled_from(("kube-dns", "web")),
    ),
    EndpointSlice: st.builds(
        lambda name, service, address: EndpointSlice("kube-system", name, service, compact((Endpoint((address,)),))),
        st.sampled_from("xy"), st.sampled_from((*NAMES, "kube-dns")), st.sampled_from(ADDRESSES[:3]),
    ),
}  # fmt: skip


@st.composite
def happenings(draw: st.DrawFn, strategies: Any = None) -> Any:
    """A delta, or the request for a snapshot."""
    strategies = strategies or STRATEGIES
    kind: Any = draw(st.sampled_from([each for each in HAPPENS if each == PUBLISH or each in strategies]))
    if kind == PUBLISH:
        return PUBLISH
    how, each = draw(st.sampled_from((Put, Put, Drop, Replace))), strategies[kind]
    if how is Replace:
        return Replace(kind, draw(st.lists(each, max_size=4)))
    return Put(draw(each)) if how is Put else Drop(kind, draw(each).key)


history = st.lists(happenings(), min_size=15, max_size=40)  # short ones say little
history_of_blocks = st.lists(happenings(BLOCKS_ALONE), min_size=8, max_size=20)
history_of_unlocated = st.lists(happenings(UNLOCATED_ALONE), min_size=8, max_size=20)
history_of_dns = st.lists(happenings(DNS_ALONE), min_size=8, max_size=20)
SUBNETS = {
    parse_network("198.51.100.0/24"): {ZONE: "a"},
    parse_network("10.0.0.0/12"): {ZONE: "b"},
    parse_network("10.0.0.16/28"): {ZONE: "a", "rack": "a"},  # within the nodes' pod CIDRs
}
STORES: list[dict[str, Any]] = [
    {},
    {"pod_locators": True},
    {"pods": False},
    {"pods": False, "nodes": False, "pod_locators": True},
    {"pods": False, "pod_locators": True},
    {"nodes": False, "pod_locators": True, "pod_names": True},
    {"pods": False, "pod_names": True, "forwarders": [parse_network("10.0.1.0/24")]},
    {"scope": Scope(frozenset(("shop", "lab")), parse_selector("team=a"), parse_selector("version=1"))},
    {"scope": Scope(frozenset(("shop",))), "endpoint_records": False, "pod_names": True},
    {"forwarder_services": None, "default_keys": {"topo.local": ("rack", ZONE)}},
    {"subnets": None, "pods": False},
    {"exports": True, "imports": True},
    {"forwarder_services": None, "pods": False, "scope": Scope(frozenset(("shop",)))},
]


def store_with(**options: Any) -> Store:
    return Store(StoreOptions(**{"subnets": SUBNETS, "forwarder_services": [DNS], **options}))


class State:
    """The objects after some deltas: what a list of each kind would return.

    A reader reads only some labels of Pods, those of the last list.
    """

    def __init__(self) -> None:
        self.objects: dict[type[Object], dict[str, Object]] = {kind: {} for kind in KINDS}
        self.read: frozenset[str] = frozenset()
        """The keys of the labels of Pods that are read."""

    def apply(self, change: Delta) -> Delta:
        """Take a delta of whole objects in; return it as a reader of Pods passes it on."""
        if isinstance(change, Put):
            kind = kind_of(change.object)
            self.objects[kind][change.object.key] = change.object
            return Put(self._as_read(change.object)) if kind is Pod else change
        if isinstance(change, Drop):
            self.objects[change.kind].pop(change.key, None)
            return change
        self.objects[change.kind] = {obj.key: obj for obj in change.objects}
        return self.listed(change.kind, change.labels)

    def listed(self, kind: type[Object], labels: Iterable[str] = POD_LABELS) -> Replace:
        """Return a list of a kind; if of Pods, with these labels, as they are read from now on."""
        rows = [*self.objects[kind].values()]
        if kind is not Pod:
            return Replace(kind, rows)
        self.read = frozenset(labels)
        return Replace(kind, [*map(self._as_read, rows)], labels=self.read)

    def _as_read(self, pod: Any) -> Pod:
        labels = {key: value for key, value in labels_of(pod).items() if key in self.read}
        plain = {name: value for name, value in asdict(pod).items() if name != "labels"}
        return ClientPod(**plain, labels=labels) if labels else Pod(**plain)

    def fresh(self, options: dict[str, Any], *, backwards: bool = False, kept: Snapshot | None = None) -> Store:
        """Return a new store with the same objects, which came in one order or the other, after a *kept* snapshot."""
        store = store_with(**options)
        if kept is not None:
            store.start_from(read_again(kept))
        for kind in reversed(self.objects) if backwards else self.objects:
            if kind in store.kinds:
                change = self.listed(kind)
                store.apply(replace(change, objects=change.objects[::-1] if backwards else change.objects))
        return store
