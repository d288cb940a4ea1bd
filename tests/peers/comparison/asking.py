# SPDX-License-Identifier: Apache-2.0

"""The questions about a cluster, over TCP, where nothing has to be left out; both servers get the same octets."""

from __future__ import annotations

import ipaddress
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype

from tests.kit.api_objects import IMPORTED_SERVICE_NAME, SERVICE_NAME, SOURCE_CLUSTER
from tests.kit.dns_queries import AD, CD, RD, framed, opt, query
from tests.kit.kube import Item
from tests.kit.waiting import PATIENCE
from tests.peers.comparison.cluster import EDGE, OUTSIDE, ZONES

DOMAIN, CLUSTERSET = "cluster.local", "clusterset.local"
DOMAINS = (DOMAIN, CLUSTERSET)
REVERSE = ("in-addr.arpa", "ip6.arpa")
NEVER = 65280  # a type for private use that no name has: its reply tells whether the name exists
TYPES = ("A", "TXT", "PTR", "SRV", f"TYPE{NEVER}")  # asked for every name
MORE = ("AAAA", "CNAME", "SOA", "ANY")  # also asked for names that should exist
OTHERS = ("NS", "MX", "HTTPS", "SVCB", "DS", "DNSKEY", "CAA", "HINFO", "NAPTR", "AXFR", "IXFR", "TYPE1234")
AT_ONCE = 32  # queries on a connection
MASKED_SERIAL = "0"


class Record(NamedTuple):
    """A record as it is compared; names are in lower case, because DNS compares them without case."""

    name: str
    type: str
    ttl: int
    data: str


class Reply(NamedTuple):
    """A reply as it is compared: ``flags`` are the names of the header's flags; records are sorted, SOA serials masked.

    ``edns`` is the flags of its OPT record, ``None`` without one.
    """

    rcode: str
    flags: str
    answer: tuple[Record, ...]
    authority: tuple[Record, ...]
    additional: tuple[Record, ...]
    edns: str | None

    def __str__(self) -> str:
        lines = [f"{self.rcode} [{self.flags}]" + ("" if self.edns is None else f" edns[{self.edns}]")]
        for title in ("answer", "authority", "additional"):
            lines += [f"    {title:10} {' '.join(map(str, record))}" for record in getattr(self, title)]
        return "\n".join(lines)


class Question(NamedTuple):
    """A name in lower case, without the final dot, and a type."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{self.name}. {self.type}"


class Asked(NamedTuple):
    """A question and its octets."""

    question: Question
    wire: bytes


# Names


def names(items: Sequence[Item], rng: random.Random, *, domain: str = DOMAIN) -> dict[str, bool]:
    """Return the names worth asking for in *domain* and the reverse zones, each with whether it should exist.

    They are all names that should exist, the names above them up to the zones, and for each a related name and a
    misspelling that *rng* picks.
    """
    existing = list(dict.fromkeys((_existing if domain == DOMAIN else _imported)(items, rng)))
    above = [ancestor for name in existing for ancestor in _ancestors(name)]
    related = [rng.choice(list(_relatives(name))) for name in existing]
    wrong = [rng.choice(spelt) for name in existing if (spelt := list(_misspelt(name)))]
    exists: dict[str, bool] = {}
    for name in (*existing, *above, *strange(domain)):
        exists[name.lower()] = True
    for name in (*related, *wrong):
        exists.setdefault(name.lower(), False)
    return {name: expected for name, expected in exists.items() if _askable(name)}


def _existing(items: Sequence[Item], rng: random.Random) -> Iterator[str]:
    for zone in (DOMAIN, *REVERSE):
        yield from (zone, f"svc.{zone}", f"pod.{zone}", f"ns.dns.{zone}", f"dns-version.{zone}", f"apex.dns.{zone}")
    services = {}
    for item in items:
        where, name = item["metadata"].get("namespace"), item["metadata"]["name"]
        match item["kind"]:
            case "Namespace":
                yield from (f"{name}.svc.{DOMAIN}", f"{name}.pod.{DOMAIN}")
            case "Node":
                yield from (reverse(address["address"]) for address in item["status"].get("addresses", ()))
            case "Pod":
                for pod_ip in item["status"].get("podIPs", ()):
                    yield from (f"{dashed(pod_ip['ip'])}.{where}.pod.{DOMAIN}", reverse(pod_ip["ip"]))
            case "Service":
                services[where, name] = base = f"{name}.{where}.svc.{DOMAIN}"
                yield base
                yield from (f"{value}.{rng.choice(('pin', 'prefer'))}._zone.{base}" for value in rng.sample(_VALUES, 3))
                yield from (reverse(ip) for ip in item["spec"].get("clusterIPs", ()) if ip != "None")
                yield from _ports(item["spec"].get("ports"), base)
            case "EndpointSlice" if SERVICE_NAME in item["metadata"]["labels"]:
                base = f"{item['metadata']['labels'][SERVICE_NAME]}.{where}.svc.{DOMAIN}"
                yield base
                yield from _ports(item["ports"], base)
                yield from _of_endpoints(item, base)


def _imported(items: Sequence[Item], rng: random.Random) -> Iterator[str]:
    """Yield the names of multi-cluster Services, and those of an ordinary Service, which the zone does not have."""
    zone = CLUSTERSET
    yield from (zone, f"svc.{zone}", f"pod.{zone}", f"ns.dns.{zone}", f"dns-version.{zone}", f"apex.dns.{zone}")
    for item in items:
        where, name = item["metadata"].get("namespace"), item["metadata"]["name"]
        labels = item["metadata"].get("labels", {})
        match item["kind"]:
            case "Namespace":
                yield from (f"{name}.svc.{zone}", f"{name}.pod.{zone}")
            case "Pod" if rng.randrange(4) == 0:
                yield from (f"{dashed(row['ip'])}.{where}.pod.{zone}" for row in item["status"].get("podIPs", ()))
            case "Service" if rng.randrange(4) == 0:
                yield f"{name}.{where}.svc.{zone}"
            case "ServiceImport":
                base = f"{name}.{where}.svc.{zone}"
                yield from (base, f"b.pin._zone.{base}", f"pin._zone.{base}", f"_zone.{base}")
                yield from _ports(item["spec"]["ports"], base)
            case "EndpointSlice" if IMPORTED_SERVICE_NAME in labels:
                base, cluster = f"{labels[IMPORTED_SERVICE_NAME]}.{where}.svc.{zone}", labels[SOURCE_CLUSTER]
                yield from _ports(item["ports"], base)
                for beneath in (f"{cluster}.{base}", base):  # an endpoint's name has its cluster
                    # CoreDNS ends a connection on which the reverse name of such an endpoint is asked.
                    yield from (found for found in _of_endpoints(item, beneath) if found.endswith(zone))


def _of_endpoints(item: Item, base: str) -> Iterator[str]:
    for endpoint in item["endpoints"] or ():
        for address in endpoint["addresses"]:
            yield f"{dashed(address)}.{base}"
            if address.startswith("::"):
                yield f"0{dashed(address)}.{base}"  # as topodns names it
            if item["addressType"] != "FQDN":
                yield reverse(address)
        if host := endpoint.get("hostname"):
            yield f"{host}.{base}"
        if target := endpoint.get("targetRef"):
            yield f"{target['name']}.{base}"


_VALUES = (*ZONES, "nowhere")


def _ports(ports: Sequence[Item] | None, base: str) -> Iterator[str]:
    for port in ports or ():
        yield f"_{port.get('name') or 'unnamed'}._{port.get('protocol', 'TCP').lower()}.{base}"


def _ancestors(name: str) -> Iterator[str]:
    parent = name.partition(".")[2]
    while parent.endswith((*DOMAINS, *REVERSE)):
        yield parent
        parent = parent.partition(".")[2]


def _relatives(name: str) -> Iterator[str]:
    _first, _, parent = name.partition(".")
    yield f"x.{name}"
    yield f"x.y.{name}"
    yield f"_x._tcp.{name}"
    yield f"zz.{parent}"


def _misspelt(name: str) -> Iterator[str]:
    labels, zone = name.split("."), zone_of(name)
    if labels[0].startswith("_"):
        yield ".".join((labels[0][1:], *labels[1:]))
        yield ".".join((labels[0], labels[1].lstrip("_"), *labels[2:]))
        yield ".".join((labels[0][1:], labels[1].lstrip("_"), *labels[2:]))
        yield ".".join(("_", *labels[1:]))
        yield ".".join(("_" + labels[0], *labels[1:]))
        for proto in ("_tcp", "_udp", "_sctp", "_"):
            yield ".".join((labels[0], proto, *labels[2:]))
    if "_zone" in labels:
        yield name.replace(".pin.", ".near.")
        yield name.replace("._zone.", ".zone.")
    if name.endswith(f".pod.{zone}"):
        yield name.replace("-", "--", 1)
        yield f"0{name}"
        yield name.replace(".pod.", ".svc.")
    if name.endswith(f".svc.{zone}"):
        yield f"{name.removesuffix(f'.svc.{zone}')}.{zone}"
        yield name.replace(".svc.", ".pod.")
        if len(labels) > 4:
            where = len(labels) - 4
            yield ".".join((*labels[:where], "empty", *labels[where + 1 :]))
            yield ".".join((*labels[:where], "nowhere", *labels[where + 1 :]))
    if name.endswith(".arpa"):
        yield f"0{name}"
        yield ".".join((*labels[:-2], "in-addr" if "ip6" in labels else "ip6", "arpa"))
        yield name.removesuffix(".arpa") + f".{DOMAIN}"


# Names that no cluster has, and names whose spelling alone decides whether they exist.
STRANGE = (
    "*.svc.cluster.local",
    "*.edge.svc.cluster.local",
    "any.edge.svc.cluster.local",
    "1-2-3-4.edge.pod.cluster.local",
    "1-2-3-256.edge.pod.cluster.local",
    "1-2-3.edge.pod.cluster.local",
    "01-2-3-4.edge.pod.cluster.local",
    "1-2-3-4.empty.pod.cluster.local",
    "1-2-3-4.nowhere.pod.cluster.local",
    "fd00--1.edge.pod.cluster.local",
    "--1.edge.pod.cluster.local",
    "--.edge.pod.cluster.local",
    "fd00-0-0-0-0-0-0-1.edge.pod.cluster.local",
    "fd00-0-0-0-0-0-0-0-1.edge.pod.cluster.local",
    "fd00--1--2.edge.pod.cluster.local",
    "--ffff-1-2.edge.pod.cluster.local",
    "--ffff-10-101-0-1.edge.pod.cluster.local",
    "fd00-101-0-0-0-0-0-1.edge.pod.cluster.local",
    "10-101-0-1.shop-1.pod.cluster.local",
    "01.0.100.10.in-addr.arpa",
    "256.0.100.10.in-addr.arpa",
    "x.0.100.10.in-addr.arpa",
    "1.0.0.100.10.in-addr.arpa",
    "b.ip6.arpa",
    "cluster.local.cluster.local",
    "web.edge.cluster.local",
    "svc.svc.cluster.local",
    "pod.svc.cluster.local",
)


def strange(domain: str) -> list[str]:
    """Return ``STRANGE`` in *domain*, and a name that has to be computed."""
    mapped = f"{int(ipaddress.ip_address('::ffff:10.100.0.1')):032x}"
    return [*(name.replace(DOMAIN, domain) for name in STRANGE), ".".join(reversed(mapped)) + ".ip6.arpa"]


def reverse(address: str) -> str:
    """Return the reverse name of an address."""
    return ipaddress.ip_address(address).reverse_pointer


def dashed(address: str) -> str:
    """Return an address as a label, with dashes."""
    text = address.replace(".", "-").replace(":", "-")
    return text + "0" if text.endswith("-") else text


def _askable(name: str) -> bool:
    fits = len(name) < 250 and all(0 < len(label) < 64 for label in name.split("."))
    return fits and zone_of(name) != ""


def zone_of(name: str) -> str:
    """Return the zone of a name; empty if it is in none."""
    return next((zone for zone in (*DOMAINS, *REVERSE) if name == zone or name.endswith(f".{zone}")), "")


# Questions


def questions(names: Mapping[str, bool], rng: random.Random) -> list[Asked]:
    """Return the questions for *names*: the types above, and a few that *rng* picks for each name."""
    return [
        asked(Question(name, qtype), rng)
        for name, exists in names.items()
        for qtype in (*TYPES, *((*MORE, *rng.sample(OTHERS, 2)) if exists else rng.sample((*MORE, *OTHERS), 1)))
    ]


def asked(question: Question, rng: random.Random) -> Asked:
    """Return a question as octets: with or without EDNS, with any flags, in any case."""
    letters = rng.randrange(4) == 0
    name = [
        (label.swapcase() if letters and rng.randrange(2) else label).encode() for label in question.name.split(".")
    ]
    wire = query(
        name,
        dns.rdatatype.from_text(question.type),
        flags=rng.choice((RD, RD, RD, 0, RD | CD, RD | AD, AD | CD)),
        edns=rng.choice((b"", b"", opt(), opt(flags=0x8000))),
    )
    return Asked(question, wire)


def in_small_letters(question: Question) -> Asked:
    """Return a question in lower case, without EDNS."""
    return Asked(question, query(question.name, dns.rdatatype.from_text(question.type)))


def replies(host: str, port: int, all_asked: Sequence[Asked]) -> list[bytes]:
    """Return the replies of one server, in the order of the questions. Each has its query's ID and question."""
    found: dict[int, bytes] = {}
    with socket.create_connection((host, port), timeout=PATIENCE) as stream, stream.makefile("rb") as received:
        for start in range(0, len(all_asked), AT_ONCE):
            batch = all_asked[start : start + AT_ONCE]
            stream.sendall(b"".join(framed(_numbered(asked.wire, n)) for n, asked in enumerate(batch)))
            for _ in batch:
                reply = received.read(int.from_bytes(received.read(2)))
                number = int.from_bytes(reply[:2])
                wire, end = batch[number].wire, reply.index(0, 12) + 5
                assert reply[12:end] == wire[12:end], "the question is echoed, in its case"
                assert found.setdefault(start + number, reply) is reply, "a second reply"
    return [found[number] for number in range(len(all_asked))]


def _numbered(wire: bytes, number: int) -> bytes:
    """Return a message with an ID."""
    return number.to_bytes(2) + wire[2:]


def reply_of(wire: bytes) -> Reply:
    """Return a reply as it is compared."""
    return checked(wire)[0]


def checked(wire: bytes) -> tuple[Reply, str]:
    """Return a reply as it is compared, and what is wrong with it for any server; empty if nothing is.

    A CNAME comes before its target (RFC 1034, 3.6.2), and no record comes twice in a section (RFC 2181, 5).
    """
    flags = int.from_bytes(wire[2:4])
    assert not flags & 0x7800, "the opcode is not QUERY"
    # Many replies for a name differ in ID, flags and type alone, and parsing takes most of the test's time.
    end = wire.index(0, 12) + 1
    fault, ednsflags, *rest = _read_alike(b"\0\0\x80\0" + wire[4:end] + b"\0\1\0\1" + wire[end + 4 :])
    rcode = dns.rcode.to_text(dns.rcode.from_flags(flags, ednsflags))
    return Reply(rcode, dns.flags.to_text(dns.flags.Flag(flags & 0x87F0)), *rest), fault


@lru_cache(maxsize=1 << 12)
def _read_alike(wire: bytes) -> tuple[Any, ...]:
    """Return a message's fault and the flags of its OPT record, then its sections and these flags as in ``Reply``."""
    message = dns.message.from_wire(wire, one_rr_per_rrset=True)
    sections = [tuple(sorted(map(_record, section))) for section in message.sections[1:4]]
    edns = dns.flags.edns_to_text(message.ednsflags) if message.edns >= 0 else None
    return _fault(message), message.ednsflags, *sections, edns


def _record(rrset: Any) -> Record:
    (data,) = rrset
    name, text = str(rrset.name).lower().rstrip("."), data.to_text().lower().rstrip(".")
    if rrset.rdtype == dns.rdatatype.SOA:
        fields = text.split()
        text = " ".join((*fields[:2], MASKED_SERIAL, *fields[3:]))
    ttl = rrset.ttl
    if name.endswith(OUTSIDE) and UPSTREAM_TTL - PATIENCE * 10 < ttl < UPSTREAM_TTL:
        ttl = UPSTREAM_TTL  # a cached record has less
    if name == OUTSIDE and rrset.rdtype == dns.rdatatype.SOA and ttl < UPSTREAM_SOA_TTL:
        ttl = UPSTREAM_SOA_TTL
    return Record(name, dns.rdatatype.to_text(rrset.rdtype), ttl, text)


def _fault(message: dns.message.Message) -> str:
    reached = {message.question[0].name}
    for rrset in message.answer:
        if rrset.name not in reached:
            return f"{rrset.name} comes before the CNAME that leads to it"
        if rrset.rdtype == dns.rdatatype.CNAME:
            reached.add(rrset[0].target)
    for section in message.sections[1:4]:
        if len(section) > 1 and len({str(rrset) for rrset in section}) < len(section):
            return "a record comes twice in a section"
    return ""


# Names outside the zones, for which both servers ask an upstream: the zone of a CoreDNS, and what it does beside

UPSTREAM_TTL, UPSTREAM_SOA_TTL = 300, 60
UPSTREAM_ZONE = f"""\
$ORIGIN {OUTSIDE}.
@ {UPSTREAM_SOA_TTL} IN SOA ns hostmaster 1 7200 1800 86400 {UPSTREAM_SOA_TTL}
$TTL {UPSTREAM_TTL}
www A 192.0.2.80
www A 192.0.2.81
www AAAA 2001:db8::80
www TXT "of the web"
www MX 10 mail
alias CNAME www
four A 192.0.2.4
below.bare A 192.0.2.5
back CNAME web.{EDGE}.svc.{DOMAIN}.
"""
UPSTREAM_FAILS = f"""\
template ANY ANY refused.{OUTSIDE} {{
    rcode REFUSED
}}
template ANY ANY broken.{OUTSIDE} {{
    rcode SERVFAIL
}}
"""
