# SPDX-License-Identifier: Apache-2.0

"""Prints the configuration that makes a forwarder ask topodns and name the client.

Every configuration sends the client's whole address, replaces a subnet that the client itself sends (where the program
can), and does not answer one client from a cache entry of another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from ipaddress import ip_address
from typing import TYPE_CHECKING

from dnsserver.names import parse_zone
from dnsserver.settings.values import DNS_PORT, ListenAddress, parse_upstream
from locator.ip import address_text

if TYPE_CHECKING:
    from jinja2 import Template

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
    to = list(dict.fromkeys(to))
    names = list(dict.fromkeys((*plain, *imported, *federated)))
    if fail_open and not plain and not imported:
        raise ValueError(f"{COREDNS} cannot answer for federated names by itself, expected another zone, too")
    remarks = [
        f"{'--' if forwarder == DNSDIST else '#'} {zone}: addresses outside the cluster lose their names. "
        f"Better name its networks: --zone {network}\n"
        for zone, network in NETWORKS.items()
        if zone in plain
    ]
    if forwarder == COREDNS:
        return "".join((*remarks, _coredns(to, plain, imported, federated, fail_open=fail_open, version=version)))
    hosts = [address_text(topodns.address) for topodns in to]
    block = _written(
        forwarder,
        zones=names,
        to=list(zip(hosts, to, strict=True)),
        addresses=to,
        hosts=dict.fromkeys(hosts),
        upstreams=_upstreams(to),
        federated=federated,  # their order counts, for all names: otherwise spares would come first
        local=any(ip_address(topodns.address).is_loopback for topodns in to),
        reverse=any(map(_is_reverse, names)),
        special=[name for name in names if f".{name}".endswith(_SPECIAL_SUFFIXES)],
        whole_domains=[
            name for name in names if cluster_domain(name) == name and (name in ARPA or not _is_reverse(name))
        ],
        ttl=NODELOCAL_TTL,
        bind=NODELOCAL_BIND,
    )
    return "".join((*remarks, block))


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


def _coredns(
    to: Sequence[ListenAddress],
    zones: Sequence[str],
    multicluster: Sequence[str],
    federated: Sequence[str],
    *,
    fail_open: bool,
    version: CoreDNSVersion | None,
) -> str:
    needed = TIMING_READS if reads_are_timed(version) else oldest_version(fail_open=fail_open)
    timing = (READ_TIMEOUT,) if reads_are_timed(version) else ()
    head, upstreams = f"# CoreDNS {version_text(needed)} or later\n", _upstreams(to)
    if not fail_open:
        names = list(dict.fromkeys((*zones, *multicluster, *federated)))
        return head + _written(COREDNS, zones=names, upstreams=upstreams, options=timing)
    own_zones = list(dict.fromkeys((*(_kubernetes_zones(zones) if zones else ()), *multicluster)))
    return "".join((
        head,
        _written(COREDNS, zones=[*zones, *multicluster], upstreams=f"{upstreams} {FALLBACK}",
                 options=(*FAILING_OPEN, *timing)),
        _fallback_block(own_zones, multicluster, FALLBACK),
        _written(COREDNS, zones=federated, upstreams=upstreams, options=timing) if federated else "",
    ))  # fmt: skip


def reads_are_timed(version: CoreDNSVersion | None) -> bool:
    """Whether the block tells CoreDNS of *version* how long to wait for topodns."""
    return version is not None and version >= TIMING_READS


def fallback_block(zones: Sequence[str], fallback: ListenAddress) -> str:
    """Return the block with which CoreDNS answers for *zones* at a loopback address while topodns does not."""
    return _fallback_block(_kubernetes_zones(zones), (), fallback)


def _fallback_block(own_zones: Sequence[str], multicluster: Sequence[str], fallback: ListenAddress) -> str:
    bind, port = address_text(fallback.address), fallback.port
    return _written("fallback", zones=own_zones, multicluster=multicluster, bind=bind, port=port)


def _kubernetes_zones(zones: Sequence[str]) -> list[str]:
    """Return the zones of a plugin ``kubernetes`` that answers for *zones*; at least one must not be reverse."""
    own_zones = []
    for zone in zones:
        own_zones.append(".".join(zone.split(".")[-2:]) if _is_reverse(zone) else cluster_domain(zone))
    if all(map(_is_reverse, own_zones)):
        own_zones.insert(0, CLUSTER_DOMAIN)
    return list(dict.fromkeys(own_zones))


def _is_reverse(zone: str) -> bool:
    return parse_zone(zone).reverse


def _upstreams(to: Sequence[ListenAddress]) -> str:
    """Return addresses as ``forward`` takes them, without the default port."""
    return " ".join(address_text(topodns.address) if topodns.port == DNS_PORT else str(topodns) for topodns in to)


def _written(template: str, **values: object) -> str:
    """Return what a template in ``stub_blocks.toml`` makes of some values."""
    return _templates()[template].render(ecs_rule=ECS_RULE, **values)


@cache  # to import Jinja takes a while, which whoever prints no block need not pay
def _templates() -> Mapping[str, Template]:
    import pkgutil
    import tomllib

    from jinja2 import Environment, StrictUndefined

    texts = tomllib.loads((pkgutil.get_data(__package__, "stub_blocks.toml") or b"").decode())
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    return {name: environment.from_string(text) for name, text in texts.items()}
