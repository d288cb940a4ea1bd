# SPDX-License-Identifier: Apache-2.0

"""Reads a Corefile: which zones its blocks serve, which blocks forward names to topodns, and how they name clients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from dnsserver.names import NETWORK, reverse_zone_names
from dnsserver.settings.values import DNS_PORT, ListenAddress, parse_upstream
from dnsserver.tools.corefile.caddyfile import Block, Directive, Unparsable, parse
from dnsserver.tools.corefile.stub_blocks import ARPA, CLUSTER_DOMAIN, COREDNS, FALLBACK_PORT, NODELOCAL
from locator.ip import parse_network
from locator.printable import cut

_PORTS = {"dns": DNS_PORT, "tls": 853, "quic": 853, "grpc": 443, "https": 443, "https3": 443}  # CoreDNS's own defaults
_CONFIGMAPS = {COREDNS: "coredns", NODELOCAL: "node-local-dns"}
# How YAML and JSON begin, but no Corefile: with a key, a list or a document marker.
_DATA = re.compile(r'(?:\s|#[^\n]*\n)*(?:---|%YAML|- |\[\s*[{"]|\{\s*"|"?[\w.-]+"?[ \t]*:(?:\s|"))')
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

    def encloses(self, zones: Iterable[str]) -> bool:
        """Whether all of *zones* are within those of the block."""
        return all(any(within(zone, key.zone) for key in self.keys) for zone in zones)

    def knows(self, zone: str) -> bool:
        """Whether the plugin ``kubernetes`` of the block answers for *zone*, before any ``forward``."""
        return any(within(zone, known) for plugin in self.directives("kubernetes") for known in self.zones_of(plugin))

    @property
    def is_fallback(self) -> bool:
        """Whether it is meant to answer while topodns does not: from the API server, at the port of ours alone."""
        return {key.port for key in self.keys} == {FALLBACK_PORT} and bool(self.directives("kubernetes"))

    @property
    def rules(self) -> list[Rule]:
        """The ``rewrite`` rules, in order."""
        return list(map(_rule, self.directives("rewrite")))


class Rule(NamedTuple):
    """A ``rewrite`` rule: whether CoreDNS continues with the next rule, and its words from its type on."""

    rewrite: Directive
    continues: bool
    words: tuple[str, ...]

    @property
    def action(self) -> str:
        """The action by which the rule names a client: set, append or replace. Empty if it names none."""
        field, option, action = (*(word.lower() for word in self.words[:3]), "", "", "")[:3]
        names_client = option == "subnet" or (option == "local" and self.words[4:5] == ("{client_ip}",))
        return action if field == "edns0" and names_client and action in ("set", "append", "replace") else ""

    @property
    def code(self) -> str:
        """The code of the local option that names the client, empty if the client subnet names it."""
        return cut(self.words[3]) if self.words[1].lower() == "local" else ""


def _rule(rewrite: Directive) -> Rule:
    words = list(rewrite.arguments)
    if len(words) < 2:
        words += [word.text for line in rewrite.body for word in line.words]
    mode = words[0].lower() if words else ""
    return Rule(rewrite, mode == "continue", tuple(words[mode in ("stop", "continue") :]))


class Stub(NamedTuple):
    """A ``forward`` to topodns: its zones, and its upstreams in order; None stands for one that is not an address."""

    server: ServerBlock
    forward: Directive
    zones: tuple[str, ...]
    upstreams: tuple[ListenAddress | None, ...]

    @property
    def is_dedicated(self) -> bool:
        """Whether the block serves nothing but the stub's zones."""
        return all(any(within(key.zone, zone) for zone in self.zones) for key in self.server.keys)

    def fallbacks(self, to: Sequence[ListenAddress]) -> list[ListenAddress]:
        """Return the upstreams that are not topodns: those that are not in *to*, or without *to* the loopback ones."""
        return [
            upstream
            for upstream in self.upstreams
            if upstream and (upstream not in to if to else ip_address(upstream.address).is_loopback)
        ]


class Corefile(NamedTuple):
    """A Corefile that is checked, and what is known around it."""

    text: str
    forwarder: str
    to: Sequence[ListenAddress]
    zones: Sequence[str]
    external_names: Mapping[str, str]
    blocks: Sequence[Block]
    servers: Sequence[ServerBlock]
    stubs: Sequence[Stub]

    def with_text(self, text: str) -> Corefile:
        """Return another text, read in the same way. Raises ``caddyfile.Unparsable``."""
        return read(text, forwarder=self.forwarder, to=self.to, zones=self.zones, external_names=self.external_names)

    @property
    def newline(self) -> str:
        """What ends its lines."""
        return "\r\n" if "\r\n" in self.text else "\n"

    @property
    def forwarded(self) -> list[str]:
        """The zones that it forwards to topodns."""
        return list(dict.fromkeys(zone for stub in self.stubs for zone in stub.zones))


def read(
    text: str,
    *,
    forwarder: str,
    to: Sequence[ListenAddress] = (),
    zones: Sequence[str] = (),
    external_names: Mapping[str, str] = MappingProxyType({}),
) -> Corefile:
    """Read the Corefile of *forwarder*, one of ``stub_blocks.CHECKED``. Raises ``caddyfile.Unparsable`` only.

    *to* and *zones* say which forwards are those to topodns. With *to*, these are the forwards to one of its addresses.
    Else with *zones*, the forwards of a zone that is within one of *zones* or encloses one. Else the forwards of a zone
    within the domain of the plugin ``kubernetes``. Without *to*, a ``forward .`` that takes the rest behind one that
    names the zone is none. *external_names* are the cluster's ExternalName Services, as far as they are known: their
    ``NAMESPACE/NAME`` and their targets.
    """
    if (data := _DATA.match(text.removeprefix("\ufeff"))) is not None:
        command = f"kubectl -n kube-system get configmap {_CONFIGMAPS[forwarder]} -o jsonpath='{{.data.Corefile}}'"
        message = f"YAML or JSON found, expected the Corefile alone: {command}"
        raise Unparsable(data[0].rstrip().count("\n") + 1, message)
    blocks = parse(text)
    servers = [server_of(block) for block in blocks if block.keys]
    zones = [zones_named(zone)[0] for zone in zones]
    stubs = list(_stubs_of(servers, to, zones))
    return Corefile(text, forwarder, to, zones, external_names, blocks, servers, stubs)


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


def _stubs_of(servers: Sequence[ServerBlock], to: Sequence[ListenAddress], zones: Sequence[str]) -> Iterator[Stub]:
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


def is_local(word: str) -> bool:
    """Whether a word of ``bind`` is a loopback address, or the interface that has these."""
    return word in ("lo", "::1") or word.startswith("127.")
