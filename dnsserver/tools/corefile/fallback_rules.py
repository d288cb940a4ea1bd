# SPDX-License-Identifier: Apache-2.0

"""Checks the fallbacks of a ``forward`` to topodns: servers that answer while topodns does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from dnsserver.settings.values import ListenAddress
from dnsserver.tools.corefile.corefile_codes import CorefileCode
from dnsserver.tools.corefile.stub_blocks import FALLBACK_PORT, MAX_UPSTREAMS
from dnsserver.tools.corefile.stub_zones import ServerBlock, Stub, line_finding, upstreams_of, within, zone_text
from locator.model import Finding

_ANYWHERE = ("0.0.0.0", "::")  # words of bind that mean all addresses


def fallback_findings(stub: Stub, servers: Sequence[ServerBlock], to: Sequence[ListenAddress]) -> Iterator[Finding]:
    """Check the fallbacks of a stub: its upstreams that are not in *to*, or without *to* its loopback addresses."""
    server, forward, upstreams, fallbacks = stub.server, stub.forward, stub.upstreams, fallbacks_of(stub, to)
    if len(upstreams) == 1 and (failover := forward.lines("failover")):
        message = "failover has no server to go to: clients get errors while topodns does not answer"
        expected = "a fallback after topodns, as --fail-open prints it"
        yield line_finding(CorefileCode.FallbackMissing, failover[0].number, server, message, expected)
    if not fallbacks or len(fallbacks) == len(upstreams) or len(upstreams) > MAX_UPSTREAMS:
        return
    if not any(line.words[1:2] == ("sequential",) for line in forward.lines("policy")):
        message = f"CoreDNS asks {fallbacks[0]} even while topodns answers"
        yield line_finding(CorefileCode.FallbackNotSequential, forward.line, server, message, "'policy sequential'")
    elif upstreams.index(fallbacks[0]) < len(upstreams) - len(fallbacks):
        message = f"{fallbacks[0]} comes before topodns: CoreDNS asks topodns only when {fallbacks[0]} is down"
        yield line_finding(CorefileCode.FallbackFirst, forward.line, server, message, "topodns first")
    rcodes = {word.upper() for line in forward.lines("failover") for word in line.words[1:]}
    if missing := [rcode for rcode in ("SERVFAIL", "REFUSED") if rcode not in rcodes]:
        message = f"clients get {' and '.join(missing)} from topodns"
        yield line_finding(CorefileCode.FailoverMissing, forward.line, server, message, "'failover SERVFAIL REFUSED'")
    for fallback in fallbacks:
        if ip_address(fallback.address).is_loopback:
            yield from _fallback_blocks(stub, fallback, servers)


def fallbacks_of(stub: Stub, to: Sequence[ListenAddress]) -> list[ListenAddress]:
    """Return the upstreams of a stub that are not topodns: without *to*, its loopback addresses."""
    return [
        upstream
        for upstream in stub.upstreams
        if upstream and (upstream not in to if to else ip_address(upstream.address).is_loopback)
    ]


def unused_fallback_findings(servers: Sequence[ServerBlock]) -> Iterator[Finding]:
    """Find blocks that would answer while topodns does not, but to which no ``forward`` of the Corefile leads."""
    used = {upstream.port for server in servers for forward in server.directives("forward")
            for upstream in upstreams_of(forward) if upstream}  # fmt: skip
    for server in servers:
        if is_fallback(server) and used.isdisjoint(key.port for key in server.keys):
            message = f"nothing forwards to port {FALLBACK_PORT}: nobody answers while topodns does not"
            expected = "this address after topodns in the 'forward' of the stub zone, or no such block"
            yield line_finding(CorefileCode.FallbackUnused, server.block.line, server, message, expected)


def is_fallback(server: ServerBlock) -> bool:
    """Whether a block is meant to answer while topodns does not: from the API server, at the port of ours alone."""
    return {key.port for key in server.keys} == {FALLBACK_PORT} and bool(server.directives("kubernetes"))


def _fallback_blocks(stub: Stub, fallback: ListenAddress, servers: Sequence[ServerBlock]) -> Iterator[Finding]:
    """Check the block of this Corefile that answers for the stub zones at a loopback address.

    It is the block at that port with the longest zone that encloses the stub zone.
    """
    for zone in stub.zones:
        enclosing = [
            (len(key.zone), index)
            for index, server in enumerate(servers)
            for key in server.keys
            if key.port == fallback.port
            and within(zone, key.zone)
            and (not server.bound or any(is_local(word) or word in _ANYWHERE for word in server.bound))
        ]
        server = servers[max(enclosing)[1]] if enclosing else None
        if server == stub.server:
            message = f"{fallback} is this block: CoreDNS asks itself"
            yield line_finding(CorefileCode.FallbackAsksItself, stub.forward.line, stub.server, message, "another port")
        elif server is None or not _answers(server, zone):
            message = f"no block here answers for {zone_text(zone)} at {fallback}"
            expected = "the block that --fail-open prints"
            yield line_finding(CorefileCode.FallbackUnanswered, stub.forward.line, stub.server, message, expected)
        elif not (server.directives("forward") or (server.bound and all(map(is_local, server.bound)))):
            # A block that forwards also serves other clients, so it must stay reachable.
            message = f"queries to port {fallback.port} bypass topodns"
            yield line_finding(CorefileCode.FallbackOpenToAll, server.block.line, server, message, "'bind 127.0.0.1'")


def _answers(server: ServerBlock, zone: str) -> bool:
    """Whether a block may answer for *zone*. One without the plugin ``kubernetes`` may."""
    plugins = server.directives("kubernetes")
    return not plugins or any(within(zone, own) for plugin in plugins for own in server.zones_of(plugin))


def is_local(word: str) -> bool:
    """Whether a word of ``bind`` is a loopback address, or the interface that has these."""
    return word in ("lo", "::1") or word.startswith("127.")
