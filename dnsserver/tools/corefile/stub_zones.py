# SPDX-License-Identifier: Apache-2.0

"""Interprets a Corefile: which zones its blocks serve, and which blocks forward names to topodns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from dnsserver.names import NETWORK, reverse_zone_names
from dnsserver.settings.values import DNS_PORT, ListenAddress, parse_upstream
from dnsserver.tools.corefile.caddyfile import Block, Directive
from dnsserver.tools.corefile.corefile_codes import CorefileCode
from dnsserver.tools.corefile.stub_blocks import ARPA, CLUSTER_DOMAIN
from locator.ip import parse_network
from locator.model import Finding
from locator.printable import cut

_PORTS = {"dns": DNS_PORT, "tls": 853, "quic": 853, "grpc": 443, "https": 443, "https3": 443}  # CoreDNS's own defaults
_PILLAR_DOMAIN = "__pillar__dns__domain__"  # placeholder for the domain in NodeLocal DNSCache's manifest


class Key(NamedTuple):
    """One key of a server block. The zone has no final dot; the root zone is empty."""

    transport: str
    zone: str
    port: int


class ServerBlock(NamedTuple):
    """A server block with its parsed keys, and the addresses that it listens on; empty means all addresses."""

    block: Block
    keys: tuple[Key, ...]
    bound: tuple[str, ...]

    def directives(self, name: str) -> list[Directive]:
        """Return the directives of that name, in order."""
        return [directive for directive in self.block.directives if directive.name == name]

    def zones_of(self, directive: Directive, *, skip: int = 0) -> list[str]:
        """Return the zones that a directive names after *skip* other arguments, else the zones of the block."""
        named = [zone for word in directive.arguments[skip:] for zone in zones_named(word)]
        return named or [key.zone for key in self.keys]

    def forwarded(self, forward: Directive) -> list[str]:
        """Return the zones that a ``forward`` takes, within the zones of the block."""
        taken = zones_named(forward.arguments[0])[0]
        return [zone for key in self.keys if (zone := _common(taken, key.zone)) is not None]

    def would_forward(self, forward: Directive, zone: str) -> bool:
        """Whether a ``forward`` takes the names of *zone*, if they come to this block by a plugin before it."""
        return bool(forward.arguments) and any(within(zone, taken) for taken in zones_named(forward.arguments[0]))


class Stub(NamedTuple):
    """A ``forward`` to topodns: its zones, and its upstreams in order; None stands for one that is not an address."""

    server: ServerBlock
    forward: Directive
    zones: tuple[str, ...]
    upstreams: tuple[ListenAddress | None, ...]


def server_of(block: Block) -> ServerBlock:
    """Parse the keys and the listen addresses of a block."""
    bound = [word for directive in block.directives if directive.name == "bind" for word in directive.arguments]
    return ServerBlock(block, tuple(chain.from_iterable(map(_keys, block.keys))), tuple(bound))


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
    """Return the zones that a name stands for in CoreDNS: itself, or for an address block all its reverse zones."""
    name = text.rstrip(".").lower()
    if name == _PILLAR_DOMAIN:
        return [CLUSTER_DOMAIN]
    if not NETWORK.fullmatch(name):
        return [name]
    try:
        return list(reverse_zone_names(parse_network(name, strict=False)))
    except ValueError:
        return [name]


def stubs_of(servers: Sequence[ServerBlock], *, to: Sequence[ListenAddress], zones: Sequence[str]) -> Iterator[Stub]:
    """Yield the forwards to topodns.

    With *to*, these are the forwards to one of its addresses. Else with *zones*, the forwards of a zone that is within
    one of *zones* or encloses one. Else the forwards of a zone within the domain of the plugin ``kubernetes``. Without
    *to*, a ``forward .`` that takes the rest behind one that names the zone is none.
    """
    wanted = zones or _cluster_zones(servers)
    for server in servers:
        for forward in server.directives("forward"):
            if not forward.arguments:
                continue
            stub = server.forwarded(forward)
            upstreams = upstreams_of(forward)
            if not to:
                enclosing = [zone for zone in stub if zone and any(within(part, zone) for part in zones)]
                stub = [zone for zone in stub if zone in enclosing or any(within(zone, parent) for parent in wanted)]
                stub = [zone for zone in stub if not _is_named_before(server, forward, zone)]
            if stub and (not to or set(to) & set(upstreams)):
                yield Stub(server, forward, tuple(stub), upstreams)


def _is_named_before(server: ServerBlock, forward: Directive, zone: str) -> bool:
    """Whether an earlier ``forward`` of the block takes *zone*, and names a smaller zone than this one."""
    own, forwards = zones_named(forward.arguments[0])[0], server.directives("forward")
    earlier = (zones_named(one.arguments[0])[0] for one in forwards[: forwards.index(forward)] if one.arguments)
    return any(within(zone, named) and within(named, own) and named != own for named in earlier)


def _cluster_zones(servers: Iterable[ServerBlock]) -> list[str]:
    """Return the zones of the plugin ``kubernetes``, or the default domain if there are none.

    Reverse zones are left out: they may be forwarded for other reasons.
    """
    plugins = ((server, plugin) for server in servers for plugin in server.directives("kubernetes"))
    named = (zone for server, plugin in plugins for zone in server.zones_of(plugin))
    return [zone for zone in named if zone and not any(within(zone, arpa) for arpa in ARPA)] or [CLUSTER_DOMAIN]


def upstreams_of(forward: Directive) -> tuple[ListenAddress | None, ...]:
    """Return the servers that a ``forward`` names, in order; None stands for one that is not an address."""
    return tuple(map(_upstream, forward.arguments[1:]))


def share_address(server: ServerBlock, other: ServerBlock) -> bool:
    """Whether two blocks listen on a common address."""
    return not (server.bound and other.bound and set(server.bound).isdisjoint(other.bound))


def _upstream(text: str) -> ListenAddress | None:
    try:
        return parse_upstream(text.removeprefix("dns://"))
    except ValueError:
        return None


def within(zone: str, parent: str) -> bool:
    """Whether *zone* is *parent* or a zone below it."""
    return not parent or zone == parent or zone.endswith(f".{parent}")


def _common(zone: str, other: str) -> str | None:
    """Return the one of two zones that is within the other, or None."""
    if within(zone, other):
        return zone
    return other if within(other, zone) else None


def overlap(zones: Iterable[str], others: Sequence[str]) -> str | None:
    """Return a zone within one of *zones* and one of *others*, or None."""
    return next((common for zone in zones for other in others if (common := _common(zone, other)) is not None), None)


def zone_text(zone: str) -> str:
    """Return a zone as text for a message."""
    return cut(zone) or "."


def line_finding(code: CorefileCode, line: int, server: ServerBlock | None, message: str, expected: str) -> Finding:
    """Return a finding about a line of a Corefile. *server* is the block around the line, or None."""
    keys = cut(" ".join(server.block.keys)) if server is not None else ""
    return code.finding(field=keys, message=message, expected=expected, line=line)
