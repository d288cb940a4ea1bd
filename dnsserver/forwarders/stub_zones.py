"""What a Corefile means: the zones that its blocks serve, and which of them send names to topodns."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from dnsserver.forwarders.caddyfile import Block, Directive, cut
from dnsserver.forwarders.corefile_codes import CorefileCode
from dnsserver.forwarders.stub_blocks import ARPA, CLUSTER_DOMAIN
from dnsserver.settings.values import DNS_PORT, ListenAddress, parse_upstream
from locator.model import Finding

_PORTS = {"dns": DNS_PORT, "tls": 853, "quic": 853, "grpc": 443, "https": 443, "https3": 443}  # CoreDNS's own defaults
_PILLAR_DOMAIN = "__pillar__dns__domain__"  # what the manifest of NodeLocal DNSCache has in place of the domain


class Key(NamedTuple):
    """One of a block's keys: a zone without its final dot, the root's name being empty."""

    transport: str
    zone: str
    port: int


class Server(NamedTuple):
    """A block with its keys as CoreDNS reads them, and the addresses that it listens on, none for all."""

    block: Block
    keys: tuple[Key, ...]
    bound: tuple[str, ...]

    def directives(self, name: str) -> list[Directive]:
        """Return the directives of a name, in order."""
        return [each for each in self.block.directives if each.name == name]

    def zones_of(self, directive: Directive, *, past: int = 0) -> list[str]:
        """Return the zones that a directive names *past* some other words, or else those of the block."""
        named = [zone for word in directive.arguments[past:] for zone in zones_named(word)]
        return named or [key.zone for key in self.keys]

    def forwarded(self, forward: Directive) -> list[str]:
        """Return the zones that a ``forward`` is for, of those that the block serves."""
        whole = zones_named(forward.arguments[0])[0]
        return [zone for key in self.keys if (zone := _common(whole, key.zone)) is not None]


class Stub(NamedTuple):
    """A ``forward`` to topodns: the zones that it is for, and whom it asks in order, None where that is a name."""

    server: Server
    forward: Directive
    zones: tuple[str, ...]
    upstreams: tuple[ListenAddress | None, ...]


def server_of(block: Block) -> Server:
    """Return what a block serves."""
    bound = [word for each in block.directives if each.name == "bind" for word in each.arguments]
    return Server(block, tuple(chain.from_iterable(map(_keys, block.keys))), tuple(bound))


def _keys(text: str) -> Iterator[Key]:
    transport, slashes, rest = text.partition("://")
    if not slashes or transport not in _PORTS:
        transport, rest = "dns", text
    name, colon, number = rest.rpartition(":")
    if colon and number.isascii() and number.isdigit() and len(number) < 6:
        port = int(number)
    else:
        name, port = rest, _PORTS[transport]
    for zone in zones_named(name):
        yield Key(transport, zone, port)


def zones_named(text: str) -> list[str]:
    """Return the zones of a name as CoreDNS reads it; a block of addresses stands for the reverse zones in it."""
    name = text.rstrip(".").lower()
    if name == _PILLAR_DOMAIN:
        return [CLUSTER_DOMAIN]
    if "/" not in name:
        return [name]
    try:
        network = ipaddress.ip_network(name, strict=False)
    except ValueError:
        return [name]
    bits = 8 if network.version == 4 else 4  # of a label
    known = -(-network.prefixlen // bits)  # labels that the block fills, its last one in part
    unknown = network.max_prefixlen // bits - known
    return [
        each.network_address.reverse_pointer.split(".", unknown)[unknown]
        for each in network.subnets(new_prefix=known * bits)
    ]


def stubs_of(servers: Sequence[Server], *, to: Sequence[ListenAddress], zones: Sequence[str]) -> Iterator[Stub]:
    """Yield what forwards to topodns: to one of *to*, or without them a part of *zones* or what they are a part of.

    Without these, too, zones within the cluster's own domain, as far as the Corefile tells it.
    """
    wanted = zones or _cluster_zones(servers)
    for server in servers:
        for forward in server.directives("forward"):
            if not forward.arguments:
                continue
            stub = server.forwarded(forward)
            upstreams = tuple(map(_upstream, forward.arguments[1:]))
            if not to:
                asked = [zone for zone in stub if zone and any(within(each, zone) for each in zones)]
                stub = [zone for zone in stub if zone in asked or any(within(zone, each) for each in wanted)]
            if stub and (not to or set(to) & set(upstreams)):
                yield Stub(server, forward, tuple(stub), upstreams)


def _cluster_zones(servers: Iterable[Server]) -> list[str]:
    """Return the zones of the plugins ``kubernetes``; who forwards a reverse zone may have reasons of his own."""
    named = (zone for server in servers for each in server.directives("kubernetes") for zone in server.zones_of(each))
    return [zone for zone in named if zone and not any(within(zone, each) for each in ARPA)] or [CLUSTER_DOMAIN]


def _upstream(text: str) -> ListenAddress | None:
    try:
        return parse_upstream(text.removeprefix("dns://"))
    except ValueError:
        return None


def within(zone: str, parent: str) -> bool:
    """Whether a zone is another one or lies in it."""
    return not parent or zone == parent or zone.endswith(f".{parent}")


def _common(zone: str, other: str) -> str | None:
    """Return the one of two zones that lies in the other, None if neither does."""
    if within(zone, other):
        return zone
    return other if within(other, zone) else None


def overlap(zones: Iterable[str], others: Sequence[str]) -> str | None:
    """Return a zone that lies in one of *zones* and in one of *others*, None if there is none."""
    return next((both for zone in zones for each in others if (both := _common(zone, each)) is not None), None)


def zone_text(zone: str) -> str:
    """Return a zone as it is shown."""
    return cut(zone) or "."


def line_finding(code: CorefileCode, line: int, server: Server | None, message: str, expected: str) -> Finding:
    """Return a finding about a line of a Corefile, in the block of *server* or outside any."""
    keys = cut(" ".join(server.block.keys)) if server is not None else ""
    return code.finding("", "", "", field=keys, message=message, expected=expected, line=line)
