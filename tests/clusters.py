"""Clusters as kubectl prints them, made from a seed, and queries as octets."""

from __future__ import annotations

import copy
import ipaddress
import json
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from dnsserver.message.proxy_protocol import read_header_untrusted
from dnsserver.message.wire import Unreadable
from dnsserver.responder.responder import Responder
from locator.ip import parse_address

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
RACK = "example.com/rack"
OLD = {ZONE: "failure-domain.beta.kubernetes.io/zone", REGION: "failure-domain.beta.kubernetes.io/region"}
KEYS = (HOSTNAME, RACK, ZONE, REGION)
TOPOLOGY_KEYS = "topodns.io/topology-keys"
MIN_ENDPOINTS = "topodns.io/min-endpoints"
SERVICE_NAME = "kubernetes.io/service-name"

STRANGER = "203.0.113.9"
FORWARDER = "10.244.0.53"
OUTSIDE = "198.51.100.7"  # in the block that ``SUBNETS`` places
SUBNETS = {"198.51.100.0/24": {ZONE: "a"}, "198.51.0.0/16": {ZONE: "b", REGION: "r1"}}

Item = dict[str, Any]


# Objects of Kubernetes


def listed(items: Iterable[Item]) -> str:
    """Return objects as ``kubectl get ... -o json`` prints them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})


def namespace(name: str) -> Item:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def node(
    name: str, labels: Mapping[str, str], *, cidrs: Sequence[str] = (), addresses: Sequence[str] = (), **more: Any
) -> Item:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels), **more},
        "spec": {"podCIDRs": list(cidrs)} if cidrs else {},
        "status": {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]},
    }


def pod(name: str, addresses: Sequence[str], node: str | None, **more: Any) -> Item:
    """Return a running pod in ``shop``; *more* may say ``phase``, ``host_network`` and ``created``."""
    spec: Item = {"nodeName": node} if node else {}
    if more.get("host_network"):
        spec["hostNetwork"] = True
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "creationTimestamp": more.get("created", "2024-01-01T00:00:00Z"),
        },
        "spec": spec,
        "status": {"phase": more.get("phase", "Running"), "podIPs": [{"ip": address} for address in addresses]},
    }


def service(
    name: str,
    *,
    keys: str | None = None,
    field: Sequence[str] | None = None,
    least: str | None = None,
    cluster_ips: Sequence[str] = ("None",),
    ports: Sequence[tuple[str, int, str]] = (("main", 80, "TCP"),),
    where: str = "shop",
) -> Item:
    """Return a Service, headless unless it has addresses; *keys* is its annotation, *field* spec.topologyKeys."""
    annotations = {TOPOLOGY_KEYS: keys, MIN_ENDPOINTS: least}
    spec: Item = {
        "clusterIP": cluster_ips[0],
        "clusterIPs": list(cluster_ips),
        "ports": [{"name": name, "port": port, "protocol": protocol} for name, port, protocol in ports],
    }
    if field is not None:
        spec["topologyKeys"] = list(field)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": where,
            "annotations": {key: text for key, text in annotations.items() if text is not None},
        },
        "spec": spec,
    }


def endpoint(*addresses: str, **more: Any) -> Item:
    """Return an endpoint; *more* are fields of the API, and ``ready``."""
    ready = more.pop("ready", True)
    return {"addresses": list(addresses), "conditions": {"ready": ready} if ready is not None else {}, **more}


def endpoint_slice(
    owner: str,
    number: int,
    endpoints: Sequence[Item],
    *,
    family: str = "IPv4",
    ports: Sequence[tuple[str, int, str]] = (("main", 80, "TCP"),),
    version: str = "v1",
    where: str = "shop",
) -> Item:
    return {
        "apiVersion": f"discovery.k8s.io/{version}",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{owner}-{number}", "namespace": where, "labels": {SERVICE_NAME: owner}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": name, "port": port, "protocol": protocol} for name, port, protocol in ports],
    }


def large(name: str, count: int, *, keys: str | None = None, net: str = "10.250") -> list[Item]:
    """Return a headless Service with *count* endpoints at ``10.250.x.y``, in slices of a hundred."""
    rows = [endpoint(f"{net}.{number // 250}.{number % 250 + 1}") for number in range(count)]
    slices = [endpoint_slice(name, start, rows[start : start + 100]) for start in range(0, count, 100)]
    return [service(name, keys=keys), *slices]


# Clusters from a seed


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


def world(seed: int, *, truthful: bool = False) -> World:
    """Return a small cluster in which much overlaps: reused addresses, old labels, unready endpoints, both families.

    A *truthful* one has pod CIDRs that hold exactly their node's pods, all of which are running.
    """
    return _Builder(random.Random(seed), truthful=truthful).world()


class _Builder:
    def __init__(self, rng: random.Random, *, truthful: bool) -> None:
        self.rng, self.truthful = rng, truthful
        self.count = rng.randint(2, 6)
        self.hosts = [0] * (self.count + 2)
        self.born = 0
        self.items: list[Item] = []
        self.addresses = [STRANGER, OUTSIDE, "198.51.7.7", FORWARDER, "2001:db8::9"]
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
        for number in range(self.rng.randint(0, 4)):
            self.alias(f"alias-{number}")
        for number in range(self.rng.randint(0, 6)):
            self.pod(f"client-{number}", *self.addresses_on(self.rng.randrange(self.count)))
        if not self.truthful:
            self.items.append(pod("host", ["192.168.0.1"], "node-0", host_network=True, created=self.moment()))
            self.items.append(pod("stray", ["192.168.9.9"], "node-1", host_network=True, created=self.moment()))
            self.addresses += ["192.168.9.9", "10.244.1.250", "10.244.200.1", "fd00:244:a1::fafa"]
        self.other_names()
        self.rng.shuffle(self.items)
        return World(self.items, self.names, list(dict.fromkeys(self.addresses)))

    def alias(self, name: str) -> None:
        """Add an ExternalName Service: to a Service, to another alias, in a circle, to nothing, to an address, away."""
        targets = [f"{each}.shop.svc.cluster.local" for each in ("s0", "S1", "s1", "none", "alias-0", "alias-1")]
        targets += ["www.example.org", "192.0.2.7", "a.pin._zone.s0.shop.svc.cluster.local", "1.0.244.10.in-addr.arpa"]
        own = service(name, ports=())
        own["spec"] = {"type": "ExternalName", "externalName": self.rng.choice(targets)}
        self.items.append(own)
        self.names += [f"{name}.shop.svc.cluster.local"] * 2 + [f"x.{name}.shop.svc.cluster.local"]

    def other_names(self) -> None:
        """Add the names of addresses, of pods and of zones, and those between."""
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
            (HOSTNAME, (f"node-{number}",), 80),
            (ZONE, "abc", 85),
            (REGION, ("r1", "r2"), 70),
        ):
            if self.chance(percent):
                labels[OLD.get(key, key) if self.chance(30) else key] = self.rng.choice(values)
        if ZONE in labels and self.chance(20):
            labels[OLD[ZONE]] = "old"  # the newer wins
        if self.chance(50):
            labels[RACK] = self.rng.choice(("1", "2"))
        cidrs = [f"10.244.{number}.0/24", f"fd00:244:a{number:x}::/64"]
        if not self.truthful and self.chance(20):
            cidrs = self.rng.choice(([], [f"10.244.{(number + 1) % self.count}.0/24"], [f"10.244.{number}.0/25"]))
        addresses = [f"192.168.0.{number + 1}", f"fd00:1::{number + 1:x}"]
        return node(f"node-{number}", labels, cidrs=cidrs, addresses=addresses)

    def addresses_on(self, number: int) -> tuple[tuple[str, str], int]:
        """Return a fresh address of each family in a node's blocks, and the node that is meant."""
        self.hosts[number] += 1
        host = self.hosts[number] + (60 if number == 0 else 0)  # the forwarder lives on node 0, too
        return (f"10.244.{number}.{host % 250 + 1}", f"fd00:244:a{number:x}::{host:x}"), number

    def pod(self, name: str, addresses: Sequence[str], number: int) -> None:
        self.addresses += addresses
        phase = "Running"
        if not self.truthful and self.chance(20):
            phase = self.rng.choice(("Succeeded", "Failed", "Pending"))
        if not self.truthful and self.chance(15):
            number = self.rng.randrange(self.count + 1)  # one of them is not known
        self.items.append(pod(name, addresses, f"node-{number}", phase=phase, created=self.moment()))
        if not self.truthful and self.chance(15):  # its address, reused later
            other = self.rng.randrange(self.count)
            self.items.append(pod(f"{name}-again", addresses[:1], f"node-{other}", created=self.moment()))

    def keys(self) -> list[str]:
        keys = self.rng.sample(KEYS, self.rng.choice((0, 1, 2, 2, 3)))
        keys = [OLD[key] if key in OLD and self.chance(20) else key for key in keys]
        return keys + ["*"] * (not keys or self.chance(40))

    def service(self, name: str) -> None:
        rng = self.rng
        ports = [("main", 80, "TCP"), ("metrics", 9090, "TCP"), ("main-udp", 80, "UDP"), ("", 7, "TCP")]
        ports = rng.sample(ports[:3], rng.randint(1, 2)) if self.chance(85) else ports[3:]
        spoken: dict[str, Any] = {}
        if self.chance(60):
            spoken["keys"] = ",".join(self.keys())
        elif self.chance(60):
            spoken["field"] = self.keys()
        if self.chance(8):
            spoken["keys"] = rng.choice(("*,a", f"{ZONE},{ZONE}", "-bad-", ","))
        if self.chance(40):
            spoken["least"] = rng.choice(("2", "2", "3", "0", "x"))
        headless = self.chance(85)
        addresses = (
            ("None",) if headless else (f"10.96.0.{20 + len(self.items) % 200}", f"fd00:96::{len(self.items):x}")
        )
        own = service(name, cluster_ips=addresses, ports=ports, **spoken)
        if self.chance(5):
            own["spec"]["externalTrafficPolicy"] = "Local"
        self.items.append(own)
        base = f"{name}.shop.svc.cluster.local"
        self.names += [base, base, f"_main._tcp.{base}", f"_tcp.{base}", f"_nope._tcp.{base}", f"nope.{base}"]
        count = rng.choice((0, 1, 1, 2, 2, 3, 5, 8, 120)) if headless else 2
        dual, named = self.chance(50), self.chance(50)
        rows: dict[str, list[Item]] = {"IPv4": [], "IPv6": []}
        for number in range(count):
            self.endpoint(f"{name}-{number}", rows, dual=dual, hostname=f"{name}-{number}" if named else None)
        for family, row in rows.items():
            size = rng.choice((1, 3, 100)) if len(row) < 10 else 100
            for start in range(0, len(row), size):
                self.items.append(
                    endpoint_slice(name, start + 1000 * (family == "IPv6"), row[start : start + size],
                                   family=family, ports=ports, version=rng.choice(("v1", "v1beta1")))
                )  # fmt: skip
        if rows["IPv4"]:
            dashed = rows["IPv4"][0]["addresses"][0].replace(".", "-")
            self.names.append(f"{name}-0.{base}" if named else f"{dashed}.{base}")

    def endpoint(self, name: str, rows: dict[str, list[Item]], *, dual: bool, hostname: str | None) -> None:
        number = self.rng.randrange(self.count)
        addresses, _ = self.addresses_on(number)
        on, more = number, {}
        if not self.truthful and self.chance(6):
            on = self.rng.randrange(self.count + 1)  # the block lies, or the node is not known
        more["nodeName"] = f"node-{on}"
        if self.chance(30):
            more["zone"] = self.rng.choice("abc")
        if not self.truthful and self.chance(8):
            del more["nodeName"]
            more["deprecatedTopology"] = {RACK: "1", OLD[ZONE]: self.rng.choice("abc")}
        if hostname is not None:
            more["hostname"] = hostname
        more["targetRef"] = {"kind": "Pod", "name": name}
        ready = self.rng.choice((True, True, True, None, False))
        rows["IPv4"].append(endpoint(addresses[0], ready=ready, **more))
        if dual and self.chance(90):
            rows["IPv6"].append(endpoint(addresses[1], ready=ready, **more))
        if self.truthful or self.chance(60):
            self.pod(name, addresses, on if on < self.count else number)
        else:
            self.addresses.append(addresses[0])


def changed(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the same cluster some time later: some Services, slices, nodes or pods changed, some not."""
    rng = random.Random(seed)
    later = copy.deepcopy(list(items))
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice(("Service", "EndpointSlice", "Node", "Node", "Pod"))
        of_kind = [item for item in later if item["kind"] == kind]
        if not of_kind:
            continue
        item = rng.choice(of_kind)
        if kind == "Service":
            if rng.randrange(3) == 0:
                later.remove(item)
            else:
                item["metadata"]["annotations"][TOPOLOGY_KEYS] = rng.choice((ZONE, "*", f"{RACK},*"))
        elif kind == "EndpointSlice" and item["endpoints"]:
            rng.choice((item["endpoints"].pop, item["endpoints"].reverse, item["ports"].clear))()
        elif kind == "Node":
            rng.choice(
                (item["metadata"]["labels"].clear, lambda item=item: item["metadata"]["labels"].update({ZONE: "c"}))
            )()
        elif kind == "Pod":
            later.remove(item)
    for item in later:  # what nobody can see
        item["metadata"]["resourceVersion"] = str(rng.randrange(10**6))
    return later


# Queries as octets

RD, CD, AD, QR, TC = 0x0100, 0x0010, 0x0020, 0x8000, 0x0200
TYPES = {
    "A": 1,
    "NS": 2,
    "CNAME": 5,
    "SOA": 6,
    "PTR": 12,
    "MX": 15,
    "TXT": 16,
    "AAAA": 28,
    "SRV": 33,
    "SPF": 99,
    "ANY": 255,
    "AXFR": 252,
}


def encoded(name: str | Sequence[bytes]) -> bytes:
    """Return a name as octets, from its text or its labels."""
    labels = [label.encode() for label in name.split(".") if label] if isinstance(name, str) else name
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def query(
    name: str | Sequence[bytes],
    qtype: str | int = "A",
    *,
    number: int = 0x1234,
    flags: int = RD,
    edns: bytes = b"",
    qclass: int = 1,
    counts: tuple[int, int, int, int] | None = None,
) -> bytes:
    """Return a query; *edns* is an OPT record, or whatever else is to stand behind the question."""
    rtype = TYPES[qtype] if isinstance(qtype, str) else qtype
    counts = counts or (1, 0, 0, 1 if edns else 0)
    return struct.pack("!6H", number, flags, *counts) + encoded(name) + struct.pack("!HH", rtype, qclass) + edns


def opt(
    *options: bytes, size: int = 1232, version: int = 0, flags: int = 0, rcode: int = 0, name: bytes = b"\0"
) -> bytes:
    """Return an OPT record."""
    data = b"".join(options)
    return name + struct.pack("!HHBBHH", 41, size, rcode, version, flags, len(data)) + data


def option(code: int, data: bytes = b"") -> bytes:
    return struct.pack("!HH", code, len(data)) + data


def ecs(text: str, *, scope: int = 0) -> bytes:
    """Return a client subnet option for an address or a prefix; ``0`` is family 0 with /0."""
    if text == "0":
        return option(8, bytes((0, 0, 0, scope)))
    network = ipaddress.ip_network(text, strict=False)
    address = network.network_address.packed[: (network.prefixlen + 7) // 8]
    return option(8, struct.pack("!HBB", 1 if network.version == 4 else 2, network.prefixlen, scope) + address)


# The PROXY protocol's header, version 2 (its specification, section 2.2).
PROXY_SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
LOCAL, PROXY = 0x20, 0x21
UNSPEC, TCP4, UDP4, TCP6, UDP6, UNIX_STREAM, UNIX_DGRAM = 0x00, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32


def proxy_header(content: bytes = b"", *, command: int = PROXY, family: int = UDP4, size: int | None = None) -> bytes:
    """Return a header with *content* behind its fixed part; *size* is what it says of that, where it is to lie."""
    size = len(content) if size is None else size
    return PROXY_SIGNATURE + bytes((command, family)) + size.to_bytes(2) + content


def both_ends(client: str) -> bytes:
    """Return what a header has of an address: the client's, ours, and both ports."""
    packed = ipaddress.ip_address(client).packed
    return packed + bytes(len(packed)) + struct.pack("!HH", 40000, 53)


def proxied(client: str, more: bytes = b"", *, stream: bool = False) -> bytes:
    """Return the header by which a forwarder says that *client* asks, with *more* behind its addresses."""
    families = (TCP6, UDP6) if ":" in client else (TCP4, UDP4)
    return proxy_header(both_ends(client) + more, family=families[not stream])


def tlv(kind: int, data: bytes = b"") -> bytes:
    return struct.pack("!BH", kind, len(data)) + data


CLIENT_OPTION = 65001


class Asked(NamedTuple):
    """A query, whence it came, and whether by UDP; *header* stands before it."""

    wire: bytes
    source: str
    proto: str
    header: bytes = b""


def judged(responder: Responder, each: Asked) -> tuple[bytes, bytes | None] | None:
    """Return what is judged as DNS, and whom a PROXY header before it names: b"" for nobody, None without a header.

    None where there is a header that cannot be read: then nothing is judged.
    """
    sent = each.header + each.wire
    if not sent.startswith(PROXY_SIGNATURE) or not responder.proxied(parse_address(each.source)):
        return sent, None
    try:
        header = read_header_untrusted(sent)
    except Unreadable:
        header = None
    return None if header is None else (sent[header.size :], header.client)


def replied(responder: Responder, each: Asked, *, compute: bool = False) -> Any:
    """Return what ``Responder.answer`` returns for a query, or ``compute``; by TCP its header is taken off before."""
    source = parse_address(each.source)
    channel = responder._counts.channels[each.proto, 1 if len(source) == 4 else 2]
    reply = responder.compute if compute else responder.answer
    if each.proto == "udp":
        return reply(each.header + each.wire, source, channel)
    left = judged(responder, each)
    return None if left is None else reply(left[0], source, channel, client=left[1])


ASKED_TYPES = ("A", "AAAA", "SRV", "PTR", "CNAME", "ANY", "TXT", "SPF", "NS", "SOA", 65, 97, "AXFR")


def asked(world: World, types: Sequence[str | int] = ASKED_TYPES) -> st.SearchStrategy[Asked]:
    """Return a strategy of queries about *world*: any name, type, form and client."""
    return st.builds(
        _asked,
        st.sampled_from(world.names),
        st.sampled_from(types),
        st.sampled_from(world.addresses),
        st.sampled_from(world.addresses),
        st.sampled_from(world.addresses),
        st.integers(0, len(_FORMS) - 1),
        st.integers(0, len(_HEADERS) - 1),
        st.sampled_from((RD, RD, RD, 0, RD | CD, RD | AD, CD, RD | 0x0040, TC)),
        st.integers(0, 7),
        st.sampled_from((0, 100, 512, 700, 1232, 4096)),
        st.sampled_from(("udp", "udp", "tcp")),
    )


# How a query says who asks: from the client's address to the options of its OPT record, None without one.
_FORMS = (
    lambda client: None,
    lambda client: None,
    lambda client: (),
    lambda client: (),
    *[lambda client: (ecs(client),)] * 5,
    *[lambda client, four=four, six=six: (ecs(f"{client}/{four if '.' in client else six}"),)
      for four, six in ((24, 64), (24, 56), (16, 48), (8, 32), (25, 66), (23, 63), (22, 8))],
    lambda client: (ecs(f"{client}/0"),),
    lambda client: (ecs("0"),),
    lambda client: (ecs(f"::ffff:{client}" if "." in client else client),),
    lambda client: (ecs(f"::ffff:{client}/120" if "." in client else f"{client}/120"),),
    lambda client: (option(10, b"12345678"), ecs(client)),
    lambda client: (ecs(client), option(3)),
    lambda client: (ecs(f"{client}/{24 if '.' in client else 56}"), option(3)),
    lambda client: (option(CLIENT_OPTION, ipaddress.ip_address(client).packed),),
    lambda client: (ecs(STRANGER), option(CLIENT_OPTION, ipaddress.ip_address(client).packed)),
    lambda client: (option(CLIENT_OPTION, b"12345"), ecs(client)),
    lambda client: (option(CLIENT_OPTION, b"1234"), ecs(client), option(CLIENT_OPTION, b"1234")),
    lambda client: (ecs(client), ecs(client)),
)  # fmt: skip
# What stands before a query, if anything: here it says that the client is at an address.
_HEADERS = (
    *[lambda client: b""] * 4,
    proxied,
    lambda client: proxied(client, tlv(4) + tlv(0xE0, b"x" * 20), stream=True),
    lambda client: proxied(f"::ffff:{client}" if "." in client else client),
    lambda client: proxy_header(command=LOCAL, family=UNSPEC),
    lambda client: proxy_header(family=UNSPEC),
)


def _asked(
    name: str,
    qtype: str | int,
    client: str,
    other: str,
    third: str,
    form: int,
    head: int,
    flags: int,
    case: int,
    size: int,
    proto: str,
) -> Asked:
    name = "".join(letter.upper() if case >> (position % 3) & 1 else letter for position, letter in enumerate(name))
    options, header = _FORMS[form](other), _HEADERS[head](third)
    source = FORWARDER if (options or header) and case & 1 else client
    edns = b"" if options is None else opt(*options, size=size, flags=0x8000 if case & 2 else 0)
    return Asked(query(name, qtype, number=size ^ 0x5A00 ^ case, flags=flags, edns=edns), source, proto, header)
