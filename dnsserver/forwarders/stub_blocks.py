"""What goes into a forwarder's configuration, so that topodns is asked and knows who asks.

Whatever a program has of its own for this, each block names the client by its whole address, takes no client's
own word for it where the program can help that, and gives no client what another one was answered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import product

from dnsserver.names import parse_zone
from dnsserver.settings.values import DNS_PORT, ListenAddress, parse_upstream
from locator.ip import address_text

COREDNS, NODELOCAL, DNSMASQ, UNBOUND, DNSDIST = FORWARDERS = ("coredns", "nodelocal", "dnsmasq", "unbound", "dnsdist")
CHECKED = (COREDNS, NODELOCAL)  # whose configuration is a Corefile

ECS_RULE = "rewrite edns0 subnet set 32 128 revert"
FALLBACK_PORT = 5301  # of CoreDNS's own plain answers; nothing that is registered or usual in clusters
_FALLBACK = ListenAddress(b"\x7f\0\0\1", FALLBACK_PORT)
CLUSTER_DOMAIN = "cluster.local"
ARPA = ("in-addr.arpa", "ip6.arpa")
NODELOCAL_TTL = 5  # seconds: as old as an answer of topodns may become anyway
NODELOCAL_BIND = ("169.254.20.10", "10.96.0.10")  # its usual address, and that of kube-dns
MAX_UPSTREAMS = 15  # of CoreDNS's forward
_PLAIN_LABEL = re.compile(r"[a-z0-9_-]+")  # what every program's configuration takes as it is
# Names that unbound answers by itself otherwise (RFC 6761, RFC 8375).
_SPECIAL = (".test", ".invalid", ".onion", ".localhost", ".home.arpa")


def printed(forwarder: str, to: Sequence[ListenAddress], zones: Sequence[str], *, fail_open: bool = False) -> str:
    """Return what goes into the configuration of one of ``FORWARDERS``, whole lines.

    It makes the program ask topodns at *to*, at most ``MAX_UPSTREAMS`` with its own, for the names in *zones*. With
    *fail_open*, which CoreDNS alone can, it answers by itself while topodns does not. Raises ValueError where it
    cannot, with what was expected, and for what ``stub_zone`` does not take.
    """
    if fail_open and forwarder != COREDNS:
        raise ValueError(
            f"{forwarder} cannot answer for Services by itself, expected {COREDNS}, which it may forward to"
        )
    if fail_open and _FALLBACK in to:
        raise ValueError(f"{_FALLBACK} is where {COREDNS} answers by itself, expected topodns elsewhere")
    names, to = list(dict.fromkeys(map(stub_zone, zones))), list(dict.fromkeys(to))
    lines = _coredns(to, names, fail_open=fail_open) if forwarder == COREDNS else _WRITERS[forwarder](to, names)
    return "".join(f"{line}\n" for line in lines)


def stub_address(text: str) -> ListenAddress:
    """Return where a forwarder can ask topodns: an address with a port or without. Raises ValueError."""
    text = text.strip()
    try:
        where = parse_upstream(text)
    except ValueError as error:
        port = text.rpartition(":")[2]
        raise ValueError(f"{port!r} is no port from 1 to 65535" if str(error) == repr(port) else str(error)) from None
    address = ip_address(where.address)
    if address.is_unspecified or address.is_multicast or where.address == bytes([255] * 4):
        raise ValueError(f"{text!r} is no address of one machine")
    return where


def stub_zone(text: str) -> str:
    """Return the name of a zone that can stand in a configuration, in lower case. Raises ValueError."""
    if not text.strip("."):
        raise ValueError(f"{text!r} names no zone")
    name = parse_zone(text).name
    if not all(map(_PLAIN_LABEL.fullmatch, name.split("."))):
        raise ValueError(f"{text!r} is no name of hosts")
    return name


def cluster_domain(zone: str) -> str:
    """Return the zone that a cluster's own DNS serves, in which a zone lies: what follows ``svc`` or ``pod``."""
    labels = zone.split(".")
    cuts = [at for at, label in enumerate(labels[:-1]) if label in ("svc", "pod")]
    return ".".join(labels[cuts[-1] + 1 :]) if cuts else zone


def _coredns(to: Sequence[ListenAddress], zones: Sequence[str], *, fail_open: bool) -> list[str]:
    block = [f"{_keys(zones, DNS_PORT)} {{", "    errors", f"    {ECS_RULE}"]
    if not fail_open:
        return ["# CoreDNS 1.11.4 or later", *block, f"    forward . {_upstreams(to)}", "}"]
    plain = _plain_zones(zones)
    return [
        "# CoreDNS 1.13 or later",
        *block,
        f"    forward . {_upstreams(to)} {_FALLBACK} {{",
        "        policy sequential",
        "        failover SERVFAIL REFUSED",
        "    }",
        "}",
        f"{_keys(plain, FALLBACK_PORT)} {{",
        "    bind 127.0.0.1",
        "    errors",
        f"    kubernetes {' '.join(plain)}",
        "}",
    ]


def _plain_zones(zones: Sequence[str]) -> list[str]:
    """Return the zones of a plugin ``kubernetes`` that answers for all of *zones*: it needs one that is not reverse."""
    plain = []
    for zone in zones:
        plain.append(".".join(zone.split(".")[-2:]) if parse_zone(zone).reverse else cluster_domain(zone))
    if all(parse_zone(zone).reverse for zone in plain):
        plain.insert(0, CLUSTER_DOMAIN)
    return list(dict.fromkeys(plain))


def _nodelocal(to: Sequence[ListenAddress], zones: Sequence[str]) -> list[str]:
    there = [zone for zone in zones if cluster_domain(zone) == zone and (zone in ARPA or not parse_zone(zone).reverse)]
    return [
        *(f"# Of a block for {zone}:{DNS_PORT} that is there change only the forward." for zone in there),
        f"{_keys(zones, DNS_PORT)} {{",
        "    errors",
        f"    cache {NODELOCAL_TTL}",
        "    reload",
        f"    bind {' '.join(NODELOCAL_BIND)}  # as the other blocks",
        f"    forward . {_upstreams(to)} {{",
        "        force_tcp",
        "    }",
        "}",
    ]


def _dnsmasq(to: Sequence[ListenAddress], zones: Sequence[str]) -> list[str]:
    return [
        *(f"server=/{zone}/{address_text(each.address)}#{each.port}" for zone, each in product(zones, to)),
        *(f"rebind-domain-ok=/{zone}/" for zone in zones),
        "# Names clients to every server, and nothing is cached any more.",
        "add-subnet=32,128",
        "strip-subnet",
    ]


def _unbound(to: Sequence[ListenAddress], zones: Sequence[str]) -> list[str]:
    lines = [
        "server:",
        '    module-config: "subnetcache validator iterator"',
        *(f"    send-client-subnet: {address}" for address in dict.fromkeys(address_text(each.address) for each in to)),
        "    max-client-subnet-ipv4: 32",
        "    max-client-subnet-ipv6: 128",
    ]
    if any(ip_address(each.address).is_loopback for each in to):
        lines.append("    do-not-query-localhost: no")
    if any(parse_zone(zone).reverse for zone in zones):
        lines.append("    unblock-lan-zones: yes")
    for zone in zones:
        lines += [f'    domain-insecure: "{zone}"', f'    private-domain: "{zone}"']
        if f".{zone}".endswith(_SPECIAL):
            lines.append(f'    local-zone: "{zone}" transparent')
    for zone in zones:
        lines += [
            "stub-zone:",
            f'    name: "{zone}"',
            *(f"    stub-addr: {address_text(each.address)}@{each.port}" for each in to),
        ]
    return lines


def _dnsdist(to: Sequence[ListenAddress], zones: Sequence[str]) -> list[str]:
    servers = [
        f'newServer({{address="{each}", pool="topodns", useClientSubnet=true, disableZeroScope=true, '
        f'checkName="{zones[0]}.", checkType="SOA"}})'
        for each in to
    ]
    suffixes = ", ".join(f'"{zone}."' for zone in zones)
    return [
        *servers,
        "setECSOverride(true)",
        "setECSSourcePrefixV4(32)",
        "setECSSourcePrefixV6(128)",
        'getPool("topodns"):setCache(newPacketCache(10000, {parseECS=true, temporaryFailureTTL=0}))',
        f'addAction({{{suffixes}}}, PoolAction("topodns"))',
    ]


_WRITERS = {NODELOCAL: _nodelocal, DNSMASQ: _dnsmasq, UNBOUND: _unbound, DNSDIST: _dnsdist}


def _keys(zones: Sequence[str], port: int) -> str:
    return " ".join(f"{zone}:{port}" for zone in zones)


def _upstreams(to: Sequence[ListenAddress]) -> str:
    """Return addresses as ``forward`` has them: without the usual port."""
    return " ".join(address_text(each.address) if each.port == DNS_PORT else str(each) for each in to)
