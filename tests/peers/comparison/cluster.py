# SPDX-License-Identifier: Apache-2.0

"""Objects for a real API server: usual ones, and corner cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from tests.kit import api_objects
from tests.kit.api_objects import (
    SERVICE_NAME,
    ZONE,
    Item,
    Port,
    endpoint,
    endpoint_slice,
    external,
    imported_slice,
    namespace,
    node,
    service_import,
)
from tests.kit.kube import Api
from tests.kit.waiting import until

SHOP, LAB = "shop-1", "lab-1"  # namespaces of usual Services
ZONES = ("eu-west-1a", "eu-west-1b", "dc1.example.com", "Rack-7")  # values may hold dots and capitals
ROLE = "example.com/role"  # a label of Services and namespaces, for the settings that select by it
OUTSIDE = "outside.example"  # the domain of the upstream's names
EDGE = "edge"  # the namespace of the corner cases

PORTS: Sequence[Sequence[Port]] = (
    (("http", 80, "TCP"),),
    (("http", 80, "TCP"), ("metrics", 9090, "TCP")),
    (("dns", 53, "UDP"), ("dns-tcp", 53, "TCP")),
    (("sip", 5060, "SCTP"), ("sip-udp", 5060, "UDP"), ("sip-tcp", 5060, "TCP")),
    ((None, 6379, "TCP"),),
    (),
)
FAMILIES: Sequence[Sequence[str]] = (("IPv4",), ("IPv6",), ("IPv4", "IPv6"), ("IPv6", "IPv4"))


def service(
    name: str,
    where: str,
    *,
    ports: Sequence[Port] = (),
    families: Sequence[str] = ("IPv4",),
    addresses: Sequence[str] = ("None",),
    selects: str | None = None,
    labels: dict[str, str] | None = None,
    **more: Any,
) -> Item:
    """Return a Service; *selects* is the label ``app`` of its pods; its TCP ports lead to the pods' port ``web``."""
    service = api_objects.service(
        name,
        where=where,
        cluster_ips=addresses,
        ports=ports,
        labels=labels,
        ipFamilies=list(families),
        ipFamilyPolicy="RequireDualStack" if len(families) > 1 else "SingleStack",
        **({"selector": {"app": selects}} if selects else {}),
        **more,
    )
    for port in service["spec"]["ports"]:
        port["targetPort"] = "web" if port["protocol"] == "TCP" else port["port"]
    return service


def pod(
    name: str,
    where: str,
    on: str,
    addresses: Sequence[str],
    *,
    app: str = "none",
    ready: bool = True,
    phase: str = "Running",
    port: int = 8080,
    **spec: Any,
) -> Item:
    containers = [{"name": "main", "image": "none", "ports": [{"name": "web", "containerPort": port}]}]
    return api_objects.pod(
        name, addresses, on, where=where, labels={"app": app}, phase=phase, ready=ready, containers=containers, **spec
    )


def slice_of(
    owner: str,
    number: int,
    endpoints: Sequence[Item],
    where: str = EDGE,
    *,
    ports: Sequence[Port] = (("http", 80, "TCP"),),
    **more: Any,
) -> Item:
    """Return an EndpointSlice as users write it for a Service without a selector."""
    return endpoint_slice(owner, number, endpoints, where=where, ports=ports, **more)


def labelled(name: str, **labels: str) -> Item:
    """Return a namespace with the label that ``namespace_labels`` selects by."""
    return namespace(name, {f"example.com/{key}": value for key, value in labels.items()})


def usual() -> list[Item]:
    """Return two namespaces with a Service for all ports and families, whose pods or slices are drawn from a seed."""
    rng = random.Random(1)
    items = [labelled(SHOP, role="served"), labelled(LAB)]
    for number, labels in enumerate(({}, *({ZONE: zone} for zone in ZONES[:3]))):
        items.append(node(f"node-{number}", labels, addresses=[f"10.201.0.{number + 1}"]))
    for number, (ports, families) in enumerate(itertools.product(PORTS, FAMILIES)):
        items += _usual_service(rng, number, ports, families)
    return items


def _usual_service(rng: random.Random, number: int, ports: Sequence[Port], families: Sequence[str]) -> list[Item]:
    """Return a Service with pods or, if it selects none, with slices as a user writes them, each with its own ports."""
    name, where, labels = f"s{number}", rng.choice((SHOP, LAB)), rng.choice(({ROLE: "served"}, {}))
    addresses = {"IPv4": f"10.96.1.{number + 1}", "IPv6": f"fd00:96::1{number:02x}"}
    headless, selects = not ports or rng.randrange(3) > 0, rng.randrange(3) > 0
    items = [
        service(
            name, where, ports=ports, families=families, labels=labels, selects=name if selects else None,
            addresses=("None",) if headless else tuple(addresses[family] for family in families),
            publishNotReadyAddresses=rng.randrange(4) == 0,
        )
    ]  # fmt: skip
    hostname = rng.choice(("", "h{}", "h"))  # none, one of its own, a shared one
    for row in range(rng.choice((0, 1, 2, 3, 5))):
        own = {"IPv4": f"10.1.{number}.{row + 1}", "IPv6": f"fd00:1:{number:x}::{row + 1}"}
        named = {"hostname": hostname.format(row)} if hostname else {}
        on = f"node-{rng.randrange(4)}"
        if selects:
            named |= {"subdomain": name} if hostname else {}
            port = 8080 if hostname == "h" else rng.choice((8080, 8080, 8081))  # a name for several zones has one port
            more = {"ready": rng.randrange(4) > 0, "port": port, **named}
            ips = rng.sample([*own.values()], rng.choice((1, 2, 2)))
            items.append(pod(f"{name}-{row}", where, on, ips, app=name, **more))
        else:
            family, ready = rng.choice(families), rng.choice((True, True, None, False))
            named |= rng.choice(({"nodeName": on}, {}))
            some = rng.sample(list(ports), rng.randint(1, len(ports))) if ports else ()
            one = endpoint(own[family], ready=ready, **named)
            items.append(slice_of(name, row, [one], where, family=family, ports=some, labels=labels))
    return items


HTTP = (("http", 80, "TCP"),)
CHAIN = 12  # Services in a chain of CNAMEs, longer than either server follows


def corners() -> list[Item]:
    """Return the corner cases, in a namespace of their own."""
    return [
        labelled(EDGE, role="served"),
        namespace("empty"),
        node("edge-a", {ZONE: "eu-west-1a"}, addresses=["10.200.0.1", "fd00:200::1"]),
        node("edge-b", {ZONE: "Rack-7"}, addresses=["10.200.0.2"]),
        *_endpoints(),
        *_pods(),
        *_externals(),
        *_imports(),
    ]


def _endpoints() -> list[Item]:
    dual = ("IPv4", "IPv6")
    return [
        service("web", EDGE, ports=HTTP, families=dual, labels={ROLE: "served"}),
        slice_of("web", 4, [
            endpoint("10.100.0.1", hostname="web-0", nodeName="edge-a"),
            endpoint("10.100.0.2", hostname="web-1", nodeName="edge-b"),
            endpoint("10.100.0.3", hostname="web-2", nodeName="edge-b", ready=False),
        ], labels={ROLE: "served"}),
        slice_of("web", 6, [
            endpoint("fd00:100::1", hostname="web-0", nodeName="edge-a"),
            endpoint("fd00:100::2", nodeName="edge-b"),
            endpoint("fd00:100::", nodeName="edge-b"),
        ], family="IPv6", labels={ROLE: "served"}),
        # One port name for two protocols: a Service may not have it, its slices may.
        service("both", EDGE),
        slice_of("both", 0, [endpoint("10.100.1.1"), endpoint("10.100.1.2")], ports=(("dns", 53, "TCP"),)),
        slice_of("both", 1, [endpoint("10.100.1.1"), endpoint("10.100.1.3")], ports=(("dns", 53, "UDP"),)),
        # Ports without a number, without a name; none at all.
        service("any-port", EDGE),
        slice_of("any-port", 0, [endpoint("10.100.2.1")], ports=(("all", None, "TCP"),)),
        slice_of("any-port", 1, [endpoint("10.100.2.2")], ports=((None, 7, "TCP"), ("echo", 7, "UDP"))),
        slice_of("any-port", 2, [endpoint("10.100.2.3")], ports=()),
        # One hostname for all endpoints, in several slices and both families; and one address twice.
        service("one-host", EDGE, ports=HTTP, families=dual),
        slice_of("one-host", 0, [endpoint(f"10.100.3.{n}", hostname="all") for n in (1, 2, 3)]),
        slice_of("one-host", 1, [endpoint("10.100.3.1", hostname="all")], ports=(*HTTP, ("alt", 81, "TCP"))),
        slice_of("one-host", 2, [endpoint("fd00:100:3::1", hostname="all")], family="IPv6"),
        service("six", EDGE, ports=HTTP, families=("IPv6",)),
        slice_of("six", 0, [endpoint("fd00:100:6::1"), endpoint("::abcd"), endpoint("fd00:100:7::")], family="IPv6"),
        # A host name in place of an address.
        service("names", EDGE, ports=HTTP),
        slice_of("names", 0, [endpoint("www.outside.example")], family="FQDN"),
        # An ExternalName Service with a slice.
        external("sliced", "www.outside.example", where=EDGE),
        slice_of("sliced", 0, [endpoint("10.100.8.1", hostname="host")]),
        service("nobody", EDGE, ports=HTTP),
        service("not-ready", EDGE, ports=HTTP),
        slice_of("not-ready", 0, [endpoint("10.100.4.1", ready=False)]),
        service("vip", EDGE, ports=HTTP, families=dual, addresses=("10.96.0.77", "fd00:96::77")),
        slice_of("vip", 0, [
            endpoint("10.100.5.1", hostname="behind"),
            endpoint("10.100.5.2"),
        ], ports=(("other", 90, "TCP"),)),
        service("vip-empty", EDGE, ports=HTTP, addresses=("10.96.0.78",)),
        service("vip-six", EDGE, ports=HTTP, families=("IPv6",), addresses=("fd00:96::78",)),
        # Slices whose Service does not exist.
        slice_of("orphan", 0, [endpoint("10.100.7.1"), endpoint("10.100.0.2")]),
    ]  # fmt: skip


def _pods() -> list[Item]:
    long = "a-pod-with-a-name-that-is-longer-than-any-label-of-a-name-may-be-64"
    return [
        service("pods", EDGE, ports=HTTP, families=("IPv4", "IPv6"), selects="pods"),
        service("pods-vip", EDGE, ports=HTTP, selects="pods", addresses=("10.96.0.79",)),
        pod("pods-0", EDGE, "edge-a", ["10.101.0.1", "fd00:101::1"], app="pods"),
        pod("pods-1", EDGE, "edge-b", ["10.101.0.2", "fd00:101::2"], app="pods"),
        pod(long, EDGE, "edge-b", ["10.101.0.3"], app="pods"),
        pod("dotted.name", EDGE, "edge-b", ["10.101.0.8"], app="pods"),
        pod("pods-2", EDGE, "edge-b", ["10.101.0.4"], app="pods", ready=False),
        pod("six-first", EDGE, "edge-b", ["fd00:101::5", "10.101.0.5"]),
        pod("failed", EDGE, "edge-b", ["10.101.0.6"], phase="Failed"),
        pod("pending", EDGE, "edge-b", ["10.101.0.7"], phase="Pending", ready=False),
        pod("on-host-1", EDGE, "edge-a", ["10.200.0.1", "fd00:200::1"], hostNetwork=True),
        pod("on-host-2", EDGE, "edge-a", ["10.200.0.1", "fd00:200::1"], hostNetwork=True),
    ]


def _externals() -> list[Item]:
    outside = ("www", "alias", "four", "gone", "bare", "refused", "broken", "back")
    inside = {
        "to-web": f"web.{EDGE}.svc.cluster.local",
        "to-vip": f"vip.{EDGE}.svc.cluster.local",
        "to-six": f"six.{EDGE}.svc.cluster.local",
        "to-endpoint": f"web-0.web.{EDGE}.svc.cluster.local",
        "to-pod": f"10-101-0-1.{EDGE}.pod.cluster.local",
        "to-nobody": f"nobody.{EDGE}.svc.cluster.local",
        "to-missing": f"missing.{EDGE}.svc.cluster.local",
        "to-no-namespace": "web.missing.svc.cluster.local",
        "to-namespace": f"{EDGE}.svc.cluster.local",
        "to-zone": "cluster.local",
        "to-version": "dns-version.cluster.local",
        "to-reverse": "1.0.100.10.in-addr.arpa",
        "to-alias": f"to-web.{EDGE}.svc.cluster.local",
        "to-outside": f"www.{EDGE}.svc.cluster.local",
        "to-missing-by-alias": f"to-missing.{EDGE}.svc.cluster.local",
        "to-address": f"address.{EDGE}.svc.cluster.local",
        "to-itself": f"to-itself.{EDGE}.svc.cluster.local",
        "loop-1": f"loop-2.{EDGE}.svc.cluster.local",
        "loop-2": f"loop-1.{EDGE}.svc.cluster.local",
        "to-loop": f"loop-1.{EDGE}.svc.cluster.local",
        "address": "10.1.2.3",
    }
    links = {f"chain-{number}": f"chain-{number + 1}.{EDGE}.svc.cluster.local" for number in range(CHAIN)}
    links[f"chain-{CHAIN}"] = f"web.{EDGE}.svc.cluster.local"
    return [
        *[external(name, f"{name}.{OUTSIDE}", where=EDGE) for name in outside],
        *[external(name, target, where=EDGE) for name, target in {**inside, **links}.items()],
    ]


def _imports() -> list[Item]:
    """Return multi-cluster Services, as an MCS controller imports them from three clusters."""

    def imported(owner: str, cluster: str, number: int, endpoints: Sequence[Item], **more: Any) -> Item:
        return imported_slice(owner, cluster, endpoints, number, where=EDGE, **{"ports": HTTP, **more})

    several = (("http", 80, "TCP"), ("dns", 53, "UDP"), ("dns-tcp", 53, "TCP"))
    reference = {"kind": "Pod", "name": "pod-0"}
    return [
        service_import("vip", where=EDGE, ips=["10.97.0.1", "fd00:97::1"], ports=several),
        imported("vip", "east", 4, [endpoint("10.110.0.1", hostname="behind"), endpoint("10.110.0.2")]),
        imported("vip", "west", 6, [endpoint("fd00:110::1"), endpoint("fd00:110::2", ready=False)], family="IPv6"),
        service_import("vip-empty", where=EDGE, ips=["10.97.0.2"], ports=HTTP),
        service_import("vip-not-ready", where=EDGE, ips=["fd00:97::3"], ports=HTTP),
        imported("vip-not-ready", "east", 0, [endpoint("10.110.1.1", ready=False)]),
        service_import("vip-pending", where=EDGE, ports=HTTP, type="ClusterSetIP"),
        service_import("vip-no-ports", where=EDGE, ips=["10.97.0.4", "fd00:97::4"], ports=()),
        # One name for pods of two clusters, one address in two clusters, both families, an endpoint that is not ready.
        service_import("db", where=EDGE, ports=HTTP),
        imported("db", "east", 4, [
            endpoint("10.110.2.1", hostname="db-0", nodeName="edge-a", targetRef=reference),
            endpoint("10.110.2.2", hostname="db-1"),
            endpoint("10.110.2.9", hostname="db-2", ready=False),
        ]),
        imported("db", "east", 6, [
            endpoint("fd00:110:2::1", hostname="db-0"),
            endpoint("fd00:110:2::"),
        ], family="IPv6"),
        imported("db", "west", 4, [
            endpoint("10.110.3.1", hostname="db-0"),
            endpoint("10.110.2.2", targetRef=reference),
            endpoint("10.110.3.3", ready=None),
        ]),
        imported("db", "North-1", 4, [endpoint("10.110.4.1", hostname="east"), endpoint("10.110.4.2")]),
        # Ports by name and protocol, without a name, without a number, and none.
        service_import("ports", where=EDGE, ports=several),
        imported("ports", "east", 0, [endpoint("10.110.5.1")], ports=several),
        imported("ports", "east", 1, [endpoint("10.110.5.2")], ports=several[:1]),
        imported("ports", "west", 0, [endpoint("10.110.5.3")], ports=(("http", 8080, "TCP"), ("dns", 53, "TCP"))),
        imported("ports", "west", 1, [endpoint("10.110.5.4")], ports=((None, 7, "TCP"), ("all", None, "TCP"))),
        imported("ports", "west", 2, [endpoint("10.110.5.5")], ports=()),
        service_import("six", where=EDGE, ports=HTTP),
        imported("six", "west", 6, [endpoint("fd00:110:6::1")], family="IPv6"),
        service_import("bare", where=EDGE, ports=HTTP),
        service_import("not-ready", where=EDGE, ports=HTTP),
        imported("not-ready", "east", 0, [endpoint("10.110.7.1", ready=False)]),
        # The name of a Service that has other endpoints; no ServiceImport; a namespace that is not always served.
        service_import("web", where=EDGE, ports=HTTP),
        imported("web", "east", 0, [endpoint("10.110.8.1", hostname="web-0")]),
        imported("gone", "east", 0, [endpoint("10.110.9.1", hostname="gone-0")]),
        service_import("far", where=SHOP, ports=HTTP),
        imported_slice("far", "east", [endpoint("10.110.10.1")], where=SHOP, ports=HTTP),
    ]  # fmt: skip


TERMINATING = "pods-1"  # a pod of the corner cases that is deleted with a long grace period and never ends


def fill(api: Api) -> None:
    """Create everything, and wait until the real controllers have written the EndpointSlices."""
    items = [*corners(), *usual()]
    api.create(*[item for item in items if item["kind"] != "Pod"])
    api.create(*[item for item in items if item["kind"] == "Pod"])
    ending = next(item for item in items if item["kind"] == "Pod" and item["metadata"]["name"] == TERMINATING)
    api.request("DELETE", api.path_of(ending), {"gracePeriodSeconds": 3600})
    wanted = _wanted(items)
    until(lambda: _written(api, wanted) == wanted, "EndpointSlices for every pod", within=60)


def _wanted(items: Sequence[Item]) -> dict[tuple[str, str], set[tuple[str, bool]]]:
    """Return, for each Service with a selector, the addresses its slices must hold, and whether each is ready."""
    pods = [item for item in items if item["kind"] == "Pod" and item["status"]["phase"] not in ("Succeeded", "Failed")]
    wanted: dict[tuple[str, str], set[tuple[str, bool]]] = {}
    for item in items:
        if item["kind"] != "Service" or "selector" not in item["spec"]:
            continue
        where, name = item["metadata"]["namespace"], item["metadata"]["name"]
        always = item["spec"].get("publishNotReadyAddresses", False)
        wanted[where, name] = {
            (status["ip"], always or (one["status"]["conditions"][0]["status"] == "True" and not _ends(one)))
            for one in pods
            if one["metadata"]["namespace"] == where
            and one["metadata"]["labels"]["app"] == item["spec"]["selector"]["app"]
            for status in one["status"]["podIPs"]
            if ("IPv6" if ":" in status["ip"] else "IPv4") in item["spec"]["ipFamilies"]
        }
    return wanted


def _ends(item: Item) -> bool:
    return bool(item["metadata"]["name"] == TERMINATING)


def _written(api: Api, wanted: dict[tuple[str, str], Any]) -> dict[tuple[str, str], set[tuple[str, bool]]]:
    written: dict[tuple[str, str], set[tuple[str, bool]]] = {key: set() for key in wanted}
    for item in api.items("EndpointSlice"):
        key = item["metadata"]["namespace"], item["metadata"]["labels"].get(SERVICE_NAME)
        if key in written:
            written[key] |= {
                (address, row["conditions"]["ready"]) for row in item["endpoints"] or () for address in row["addresses"]
            }
    return written


def empty(api: Api) -> None:
    """Delete what ``fill`` created, as far as it would disturb other tests."""
    items = [*corners(), *usual()]
    api.delete(*[item for item in items if item["kind"] == "Pod"])
    api.delete(*[item for item in items if item["kind"] in ("Node", "Namespace")])
