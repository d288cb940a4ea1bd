# SPDX-License-Identifier: Apache-2.0

"""Prints the configuration that makes a forwarder ask topodns and name the client.

Every configuration sends the client's whole address, replaces a subnet that the client itself sends (where the program
can), and does not answer one client from a cache entry of another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import product

from dnsserver.names import parse_zone
from dnsserver.settings.values import DNS_PORT, ListenAddress, parse_upstream
from locator.ip import address_text

COREDNS, NODELOCAL, DNSMASQ, UNBOUND, DNSDIST, POWERDNS = FORWARDERS = (
    "coredns", "nodelocal", "dnsmasq", "unbound", "dnsdist", "powerdns",
)  # fmt: skip
CHECKED = (COREDNS, NODELOCAL)  # forwarders that are configured by a Corefile

ECS_RULE = "rewrite edns0 subnet set 32 128 revert"
FALLBACK_PORT = 5301  # where CoreDNS answers without topodns; neither registered nor usual in clusters
FALLBACK = ListenAddress(b"\x7f\0\0\1", FALLBACK_PORT)
# The versions of CoreDNS that first know what a block has: 'revert', 'failover', 'read_timeout'.
REVERTING, FAILING_OVER, TIMING_READS = (1, 11, 4), (1, 13), (1, 14, 5)
# By default CoreDNS waits 2 s for a reply, also of a pod that is gone. Most look-ups at --upstream take less than this.
READ_TIMEOUT = "read_timeout 400ms"
# How soon CoreDNS goes on to the fallback, and back: two failed checks, one of them after 100 ms in place of 500.
FAILING_OPEN = ("policy sequential", "failover SERVFAIL REFUSED", "max_fails 1", "health_check 100ms")
CLUSTER_DOMAIN = "cluster.local"
NETWORKS = {"in-addr.arpa": "10.96.0.0/12", "ip6.arpa": "fd00:10:96::/112"}  # of Services, say, in each reverse zone
ARPA = (*NETWORKS,)
NODELOCAL_TTL = 5  # seconds: topodns's default TTL
NODELOCAL_BIND = ("169.254.20.10", "10.96.0.10")  # NodeLocal DNSCache's usual address, and that of kube-dns
MAX_UPSTREAMS = 15  # limit of CoreDNS's forward
# Names that unbound would answer itself (RFC 6761, RFC 8375).
_SPECIAL_SUFFIXES = (".test", ".invalid", ".onion", ".localhost", ".home.arpa")


def stub_block(
    forwarder: str,
    to: Sequence[ListenAddress],
    zones: Sequence[str],
    *,
    federation: Sequence[str] = (),
    multicluster: Sequence[str] = (),
    fail_open: bool = False,
    version: CoreDNSVersion | None = None,
) -> str:
    """Return the lines to add to the configuration of one of ``FORWARDERS``.

    They make the program ask topodns at *to* for the names in *zones*, and in those of federated and multi-cluster
    names. With *fail_open*, which needs CoreDNS, the program answers by itself while topodns does not, except for
    federated names; its own address then counts towards ``MAX_UPSTREAMS``, which the caller checks. *version* is
    that of CoreDNS, None for any from ``oldest_version`` on. Raises ValueError if *fail_open* is impossible, or for a
    zone that ``parse_zone`` rejects.
    """
    if fail_open and forwarder != COREDNS:
        raise ValueError(f"{forwarder} cannot answer for Services by itself, expected {COREDNS}")
    if fail_open and FALLBACK in to:
        raise ValueError(f"{FALLBACK} is where {COREDNS} answers by itself, expected another address for topodns")
    plain, federated, imported = (
        [zone.name for zone in dict.fromkeys(map(parse_zone, names))] for names in (zones, federation, multicluster)
    )
    to, names = list(dict.fromkeys(to)), list(dict.fromkeys((*plain, *imported, *federated)))
    if forwarder == UNBOUND:
        lines = _unbound(to, names, keep_order=bool(federated))
    elif forwarder != COREDNS:
        lines = _WRITERS[forwarder](to, names)
    elif not fail_open:
        lines = [_needs(oldest_version(fail_open=False), version), *_coredns(to, names, version)]
    elif not plain and not imported:
        raise ValueError(f"{COREDNS} cannot answer for federated names by itself, expected another zone, too")
    else:
        lines = [_needs(oldest_version(fail_open=True), version), *_coredns_failing_open(to, plain, imported, version)]
        lines += _coredns(to, federated, version) if federated else []
    comment = "--" if forwarder == DNSDIST else "#"
    remarks = [
        f"{comment} {zone}: addresses outside the cluster lose their names. Better name its networks: --zone {network}"
        for zone, network in NETWORKS.items()
        if zone in plain
    ]
    return "".join(f"{line}\n" for line in (*remarks, *lines))


CoreDNSVersion = tuple[int, ...]


def parse_version(text: str) -> CoreDNSVersion:
    """Parse the version of CoreDNS, such as ``1.14.7`` or ``v1.13``, as its images are called. Raises ValueError."""
    match = re.fullmatch(r"v?([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?(?:[-+].*)?", text.strip())
    if match is None:
        raise ValueError(repr(text))
    return tuple(int(number or 0) for number in match.groups())


def oldest_version(*, fail_open: bool) -> CoreDNSVersion:
    """Return the oldest version of CoreDNS that knows what the block needs."""
    return FAILING_OVER if fail_open else REVERTING


def version_text(version: CoreDNSVersion) -> str:
    """Return a version as it is written."""
    return ".".join(map(str, version))


def stub_address(text: str) -> ListenAddress:
    """Parse the address of topodns, with or without a port. Raises ValueError."""
    text = text.strip()
    upstream = parse_upstream(text)
    address = ip_address(upstream.address)
    if address.is_unspecified or address.is_multicast or upstream.address == bytes([255] * 4):
        raise ValueError(f"{text!r} is not a unicast address")
    return upstream


def cluster_domain(zone: str) -> str:
    """Return the cluster domain that a zone belongs to: what follows ``svc`` or ``pod``, else the zone itself."""
    labels = zone.split(".")
    marks = [index for index, label in enumerate(labels[:-1]) if label in ("svc", "pod")]
    return ".".join(labels[marks[-1] + 1 :]) if marks else zone


def _needs(needed: CoreDNSVersion, version: CoreDNSVersion | None) -> str:
    """Return the comment above a block for CoreDNS of *version*, which needs at least another one."""
    return f"# CoreDNS {version_text(TIMING_READS if reads_are_timed(version) else needed)} or later"


def reads_are_timed(version: CoreDNSVersion | None) -> bool:
    """Whether the block tells CoreDNS of *version* how long to wait for topodns."""
    return version is not None and version >= TIMING_READS


def _forward(to: str, options: Sequence[str], version: CoreDNSVersion | None) -> list[str]:
    """Return ``forward`` with its options, and with those that only some versions know."""
    if reads_are_timed(version):
        options = (*options, READ_TIMEOUT)
    if not options:
        return [f"    forward . {to}"]
    return [f"    forward . {to} {{", *(f"        {option}" for option in options), "    }"]


def _coredns(to: Sequence[ListenAddress], zones: Sequence[str], version: CoreDNSVersion | None) -> list[str]:
    block = [f"{_keys(zones, DNS_PORT)} {{", "    errors", f"    {ECS_RULE}"]
    return [*block, *_forward(_upstreams(to), (), version), "}"]


def _coredns_failing_open(
    to: Sequence[ListenAddress], zones: Sequence[str], multicluster: Sequence[str], version: CoreDNSVersion | None
) -> list[str]:
    own_zones = _kubernetes_zones(zones) if zones else []
    own_zones += [zone for zone in multicluster if zone not in own_zones]
    return [
        f"{_keys([*zones, *multicluster], DNS_PORT)} {{",
        "    errors",
        f"    {ECS_RULE}",
        *_forward(f"{_upstreams(to)} {FALLBACK}", FAILING_OPEN, version),
        "}",
        *_fallback_block(own_zones, multicluster, FALLBACK),
    ]


def fallback_block(zones: Sequence[str], fallback: ListenAddress) -> str:
    """Return the block with which CoreDNS answers for *zones* at a loopback address while topodns does not."""
    return "".join(f"{line}\n" for line in _fallback_block(_kubernetes_zones(zones), (), fallback))


def _fallback_block(own_zones: Sequence[str], multicluster: Sequence[str], fallback: ListenAddress) -> list[str]:
    plugin = f"    kubernetes {' '.join(own_zones)}"
    return [
        f"{_keys(own_zones, fallback.port)} {{",
        f"    bind {address_text(fallback.address)}",
        "    errors",
        *([f"{plugin} {{", f"        multicluster {' '.join(multicluster)}", "    }"] if multicluster else [plugin]),
        "}",
    ]


def _kubernetes_zones(zones: Sequence[str]) -> list[str]:
    """Return the zones of a plugin ``kubernetes`` that answers for *zones*; at least one must not be reverse."""
    own_zones = []
    for zone in zones:
        own_zones.append(".".join(zone.split(".")[-2:]) if parse_zone(zone).reverse else cluster_domain(zone))
    if all(parse_zone(zone).reverse for zone in own_zones):
        own_zones.insert(0, CLUSTER_DOMAIN)
    return list(dict.fromkeys(own_zones))


def _nodelocal(to: Sequence[ListenAddress], zones: Sequence[str]) -> list[str]:
    default_zones = [
        zone for zone in zones if cluster_domain(zone) == zone and (zone in ARPA or not parse_zone(zone).reverse)
    ]
    return [
        *(f"# If there is a block for {zone}:{DNS_PORT}, change only its forward." for zone in default_zones),
        f"{_keys(zones, DNS_PORT)} {{",
        "    errors",
        f"    cache {NODELOCAL_TTL}",
        "    reload",
        f"    bind {' '.join(NODELOCAL_BIND)}  # like the other blocks",
        f"    forward . {_upstreams(to)} {{",
        "        force_tcp",
        "    }",
        "}",
    ]


def _dnsmasq(to: Sequence[ListenAddress], zones: Sequence[str]) -> list[str]:
    return [
        *(f"server=/{zone}/{address_text(topodns.address)}#{topodns.port}" for zone, topodns in product(zones, to)),
        *(f"rebind-domain-ok=/{zone}/" for zone in zones),
        "# These two name the client to every server, and turn caching off.",
        "add-subnet=32,128",
        "strip-subnet",
    ]


def _unbound(to: Sequence[ListenAddress], zones: Sequence[str], *, keep_order: bool) -> list[str]:
    addresses = list(dict.fromkeys(address_text(topodns.address) for topodns in to))
    lines = [
        "server:",
        '    module-config: "subnetcache validator iterator"',
        *(f"    send-client-subnet: {address}" for address in addresses),
        "    max-client-subnet-ipv4: 32",
        "    max-client-subnet-ipv6: 128",
    ]
    if keep_order:
        lines.append("    rrset-roundrobin: no")  # for all its zones; otherwise spares would come first
    if any(ip_address(topodns.address).is_loopback for topodns in to):
        lines.append("    do-not-query-localhost: no")
    if any(parse_zone(zone).reverse for zone in zones):
        lines.append("    unblock-lan-zones: yes")
    for zone in zones:
        lines += [f'    domain-insecure: "{zone}"', f'    private-domain: "{zone}"']
        if f".{zone}".endswith(_SPECIAL_SUFFIXES):
            lines.append(f'    local-zone: "{zone}" transparent')
    for zone in zones:
        lines += [
            "stub-zone:",
            f'    name: "{zone}"',
            *(f"    stub-addr: {address_text(topodns.address)}@{topodns.port}" for topodns in to),
        ]
    return lines


def _dnsdist(to: Sequence[ListenAddress], zones: Sequence[str]) -> list[str]:
    servers = [
        f'newServer({{address="{topodns}", pool="topodns", useClientSubnet=true, disableZeroScope=true, '
        f'checkName="{zones[0]}.", checkType="SOA"}})'
        for topodns in to
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


def _powerdns(to: Sequence[ListenAddress], zones: Sequence[str]) -> list[str]:
    addresses = ";".join(map(str, to))
    lines = [
        f"forward-zones={', '.join(f'{zone}={addresses}' for zone in zones)}",
        f"edns-subnet-allow-list={', '.join(zones)}",
        "ecs-add-for=0.0.0.0/0, ::/0",
        "ecs-ipv4-bits=32",
        "ecs-ipv6-bits=128",
        "ecs-ipv4-cache-bits=32",
        "ecs-ipv6-cache-bits=128",
        "# By default 1: an empty answer for one client would be every client's for a second.",
        "minimum-ttl-override=0",
    ]
    if any(parse_zone(zone).reverse for zone in zones):
        lines += ["# Otherwise it answers for private addresses by itself.", "serve-rfc1918=no"]
    return [
        *lines,
        "# The zones are not signed. Whoever asks for validation, as dig does, gets SERVFAIL without these",
        "# lines in the file of lua-config-file:",
        *(f'# addNTA("{zone}")' for zone in zones),
    ]


_WRITERS = {NODELOCAL: _nodelocal, DNSMASQ: _dnsmasq, DNSDIST: _dnsdist, POWERDNS: _powerdns}


def _keys(zones: Sequence[str], port: int) -> str:
    return " ".join(f"{zone}:{port}" for zone in zones)


def _upstreams(to: Sequence[ListenAddress]) -> str:
    """Return addresses as ``forward`` takes them, without the default port."""
    return " ".join(address_text(topodns.address) if topodns.port == DNS_PORT else str(topodns) for topodns in to)
