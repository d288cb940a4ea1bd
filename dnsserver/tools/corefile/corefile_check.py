# SPDX-License-Identifier: Apache-2.0

"""Finds problems in a Corefile that forwards names to topodns.

Each rule was tried with CoreDNS 1.14.7. Other purposes of a Corefile are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from types import MappingProxyType

import msgspec

from dnsserver.settings.values import ListenAddress
from dnsserver.tools.corefile.bypasses import bypass_findings
from dnsserver.tools.corefile.caddyfile import IMPORT, Block, Directive, Unparsable, parse
from dnsserver.tools.corefile.client_rules import client_findings
from dnsserver.tools.corefile.corefile_codes import CorefileCode
from dnsserver.tools.corefile.fallback_rules import fallback_findings, unused_fallback_findings
from dnsserver.tools.corefile.stub_blocks import ARPA, COREDNS, MAX_UPSTREAMS, NETWORKS, NODELOCAL, NODELOCAL_TTL
from dnsserver.tools.corefile.stub_zones import (
    Key,
    ServerBlock,
    Stub,
    line_finding,
    overlap,
    server_of,
    share_address,
    stubs_of,
    upstreams_of,
    within,
    zone_text,
    zones_named,
)
from locator.model import Finding
from locator.printable import cut

_CONFIGMAPS = {COREDNS: "coredns", NODELOCAL: "node-local-dns"}
# How YAML and JSON begin, but no Corefile: with a key, a list or a document marker.
_DATA = re.compile(r'(?:\s|#[^\n]*\n)*(?:---|%YAML|- |\[\s*[{"]|\{\s*"|"?[\w.-]+"?[ \t]*:(?:\s|"))')
# Plugins that may answer and that CoreDNS runs before ``forward`` -> number of arguments before their zones.
_ANSWERING = {
    **{"acl": 0, "auto": 0, "etcd": 0, "k8s_external": 0, "kubernetes": 0, "secondary": 0},
    **{"file": 1, "hosts": 1, "template": 2},
}


def check(
    text: str,
    *,
    forwarder: str,
    file: str = "",
    to: Sequence[ListenAddress] = (),
    zones: Sequence[str] = (),
    external_names: Mapping[str, str] = MappingProxyType({}),
) -> list[Finding]:
    """Return the findings of a Corefile in the order of its lines. Raises ``caddyfile.Unparsable`` only.

    *forwarder* is one of ``stub_blocks.CHECKED``. *to* and *zones* say which blocks are meant to ask topodns; see
    ``stubs_of``. *external_names* are the cluster's ExternalName Services, as far as they are known: their namespace
    and name, and their targets.
    """
    if (data := _DATA.match(text.removeprefix("\ufeff"))) is not None:
        command = f"kubectl -n kube-system get configmap {_CONFIGMAPS[forwarder]} -o jsonpath='{{.data.Corefile}}'"
        raise Unparsable(
            data[0].rstrip().count("\n") + 1, f"YAML or JSON found, expected the Corefile alone: {command}"
        )
    blocks = parse(text)
    servers = [server_of(block) for block in blocks if block.keys]
    zones = [zones_named(zone)[0] for zone in zones]
    stubs = list(stubs_of(servers, to=to, zones=zones))
    rules = _NODELOCAL if forwarder == NODELOCAL else _COREDNS
    # NodeLocal DNSCache comes with blocks for all zones, which forward to the cluster's DNS. They may be meant or not.
    knows_topodns = forwarder == COREDNS or any(zone in ARPA for zone in zones)
    upstreams = {upstream for stub in stubs for upstream in stub.upstreams if upstream}
    topodns_addresses = set(to) or (upstreams if knows_topodns else set())
    findings = chain(
        _imports(blocks),
        _zones_served_twice(servers),
        _upstream_counts(servers),
        _zones_not_forwarded(stubs, forwarder, to, zones),
        (finding for stub in stubs for rule in rules for finding in rule(stub)),
        (finding for stub in stubs for finding in fallback_findings(stub, servers, to)),
        unused_fallback_findings(servers),
        _subzones_served_elsewhere(servers, stubs),
        (finding for stub in stubs for finding in bypass_findings(stub, servers, external_names)),
        _reverse_zones_forwarded_whole(servers, topodns_addresses),
    )
    unique = dict.fromkeys(findings)  # two forwards in one block find the same problems in their block
    by_line = sorted(unique, key=lambda finding: finding.line or 0)
    return [msgspec.structs.replace(finding, file=file) for finding in by_line]


# --- The Corefile as a whole ------------------------------------------------------------------------------------------


def _imports(blocks: Iterable[Block]) -> Iterator[Finding]:
    for directive in (directive for block in blocks for directive in block.directives if directive.name == IMPORT):
        file = cut(" ".join(directive.arguments))
        message = f"import {file}: topodns does not read this file"
        yield line_finding(CorefileCode.ImportNotRead, directive.line, None, message, "everything in one file")
    for block in blocks:
        if not block.keys and any(directive.name != IMPORT for directive in block.directives):
            message = "a block without a zone has no effect"
            yield line_finding(CorefileCode.BlockWithoutZone, block.line, None, message, "a zone in front of '{'")


def _zones_served_twice(servers: Iterable[ServerBlock]) -> Iterator[Finding]:
    """Find pairs of blocks with the same zone and port that are not bound to different addresses."""
    by_key: dict[Key, list[ServerBlock]] = {}
    for server in servers:
        for key in server.keys if not server.directives("view") else ():  # a view selects by more than the zone
            others = by_key.setdefault(key, [])
            first = next((other.block.line for other in others if share_address(server, other)), None)
            others.append(server)
            if first is not None:
                message = f"{zone_text(key.zone)}:{key.port} is served at line {first}, too: CoreDNS does not start"
                yield line_finding(CorefileCode.ZoneServedTwice, server.block.line, server, message, "one block for it")


def _upstream_counts(servers: Iterable[ServerBlock]) -> Iterator[Finding]:
    for server in servers:
        for forward in server.directives("forward"):
            if not 0 < (count := len(forward.arguments) - 1) <= MAX_UPSTREAMS:
                message = f"forward to {max(count, 0)} addresses: CoreDNS does not start"
                yield line_finding(CorefileCode.UpstreamCount, forward.line, server, message, f"1 to {MAX_UPSTREAMS}")


def _zones_not_forwarded(
    stubs: Sequence[Stub], forwarder: str, to: Sequence[ListenAddress], zones: Sequence[str]
) -> Iterator[Finding]:
    """Find zones that no block forwards to topodns: an error if *to* or *zones* are given, else a warning."""
    code = CorefileCode.ZoneNotForwarded if to or zones else CorefileCode.NoStubZone
    where = f" to {' or '.join(map(str, to))}" if to else ""
    expected = f"the block that 'topodns corefile --for {forwarder}' prints"
    forwarded = [zone for stub in stubs for zone in stub.zones]
    if not (stubs or zones):
        what = "" if to else " a zone of the cluster"
        yield line_finding(code, 1, None, f"nothing forwards{what}{where}: topodns is not asked", expected)
    for zone in zones:
        if any(within(zone, parent) for parent in forwarded):
            continue
        if parts := list(dict.fromkeys(part for part in forwarded if within(part, zone))):
            message = f"only {cut(' '.join(parts))} of {zone} is forwarded{where}: topodns is not asked for the rest"
        else:
            message = f"nothing forwards {zone}{where}: topodns is not asked"
        yield line_finding(code, 1, None, message, expected)


def _subzones_served_elsewhere(servers: Iterable[ServerBlock], stubs: Iterable[Stub]) -> Iterator[Finding]:
    """Find blocks that take names from a stub zone: CoreDNS picks the block with the longest zone, in any order."""
    stub_of = {(key.port, key.zone): stub for stub in stubs for key in stub.server.keys if key.zone in stub.zones}
    forwarding = {stub.server.block for stub in stubs}
    for server in servers:
        for key in server.keys if server.block not in forwarding else ():
            enclosing = (stub_of.get((key.port, zone)) for zone in _parents(key.zone))
            stub = next((stub for stub in enclosing if stub is not None), None)
            if stub is not None and share_address(server, stub.server):
                message = f"names under {zone_text(key.zone)} are answered here: topodns is not asked"
                expected = f"no zone below the one forwarded at line {stub.server.block.line}"
                yield line_finding(CorefileCode.SubzoneNotForwarded, server.block.line, server, message, expected)


def _reverse_zones_forwarded_whole(
    servers: Iterable[ServerBlock], topodns_addresses: Set[ListenAddress]
) -> Iterator[Finding]:
    """Find blocks that forward the reverse zones of the whole Internet to topodns."""
    for server in servers:
        for forward in server.directives("forward"):
            to_topodns = not topodns_addresses.isdisjoint(upstreams_of(forward))
            for zone in server.forwarded(forward) if to_topodns else ():
                if zone in ARPA:
                    message = f"{zone} is forwarded whole: topodns has no names for addresses outside the cluster"
                    expected = f"the cluster's own networks, such as {NETWORKS[zone]}"
                    code = CorefileCode.ReverseZoneForwardedWhole
                    yield line_finding(code, forward.line, server, message, expected)


def _parents(zone: str) -> Iterator[str]:
    """Yield the zones above *zone*, the nearest first, the root last."""
    while zone:
        zone = zone.partition(".")[2]
        yield zone


# --- A block that forwards to topodns ---------------------------------------------------------------------------------


def _cache(stub: Stub) -> Iterator[Finding]:
    for cache in stub.server.directives("cache"):
        has_ttl = cache.arguments[:1] and cache.arguments[0].isdigit()
        named = [zone for word in cache.arguments[bool(has_ttl) :] for zone in zones_named(word)]
        disabled = {
            line.words[1]
            for line in cache.lines("disable")
            if len(line.words) > 1
            and all(any(within(zone, zones_named(word)[0]) for word in line.words[2:] or ("",)) for zone in stub.zones)
        }
        if disabled >= {"success", "denial"} or (named and not overlap(stub.zones, named)):
            continue
        message = "cache: all clients get the first one's answer"
        yield line_finding(CorefileCode.CacheMixesClients, cache.line, stub.server, message, "no cache here")


def _plugins_that_answer_first(stub: Stub) -> Iterator[Finding]:
    """Find plugins that answer before ``forward``. One with ``fallthrough`` is fine, except ``kubernetes``.

    The plugin ``kubernetes`` knows all names of the zone, so it passes none of them on.
    """
    for plugin in (directive for directive in stub.server.block.directives if directive.name in _ANSWERING):
        zone = overlap(stub.zones, stub.server.zones_of(plugin, skip=_ANSWERING[plugin.name]))
        certain = plugin.name == "kubernetes"
        if zone is not None and (certain or not plugin.lines("fallthrough")):
            message = f"{plugin.name} answers for {zone_text(zone)} before forward: topodns is not asked"
            code = CorefileCode.KubernetesAnswersFirst if certain else CorefileCode.PluginAnswersFirst
            yield line_finding(code, plugin.line, stub.server, message, f"{plugin.name} in another block, or none")


def _forwards_that_take_first(stub: Stub) -> Iterator[Finding]:
    """Find earlier forwards of the block that take the names: CoreDNS uses the first ``forward`` that matches."""
    forwards = stub.server.directives("forward")
    for earlier in forwards[: forwards.index(stub.forward)]:
        excepted = _excepted(earlier)
        taken = stub.server.forwarded(earlier) if earlier.arguments else []
        for zone in stub.zones:
            if any(within(zone, other) for other in taken) and not any(within(zone, other) for other in excepted):
                message = f"{zone_text(zone)} is forwarded at line {earlier.line} already: topodns is not asked"
                expected = "this line before that one"
                yield line_finding(CorefileCode.EarlierForwardWins, stub.forward.line, stub.server, message, expected)


def _exceptions(stub: Stub) -> Iterator[Finding]:
    if len(stub.server.directives("forward")) > 1:
        return  # another forward may take the excepted names
    zone = overlap(stub.zones, _excepted(stub.forward))
    if zone is not None:
        message = f"names under {zone_text(zone)} are not forwarded and get SERVFAIL"
        line = stub.forward.lines("except")[0].number
        yield line_finding(CorefileCode.StubZoneExcepted, line, stub.server, message, "no part of the stub zone")


def _excepted(forward: Directive) -> list[str]:
    return [zone for line in forward.lines("except") for word in line.words[1:] for zone in zones_named(word)]


def _preferred_udp(stub: Stub) -> Iterator[Finding]:
    if not stub.forward.lines("force_tcp"):
        for line in stub.forward.lines("prefer_udp"):
            message = "prefer_udp: CoreDNS asks over UDP first, even for a client that asks over TCP"
            yield line_finding(CorefileCode.UdpPreferred, line.number, stub.server, message, "no such line")


def _forward_by_udp(stub: Stub) -> Iterator[Finding]:
    if not stub.forward.lines("force_tcp"):
        message = "forward over UDP: each query takes a connection tracking entry, and some queries get lost"
        yield line_finding(CorefileCode.ForwardByUdp, stub.forward.line, stub.server, message, "force_tcp")


def _long_cached(stub: Stub) -> Iterator[Finding]:
    for line in (line for cache in stub.server.directives("cache") for line in cache.body):
        min_ttl = line.words[3] if len(line.words) > 3 and line.words[0] in ("success", "denial") else ""
        if min_ttl.isascii() and min_ttl.isdigit() and len(min_ttl) < 10 and int(min_ttl) > NODELOCAL_TTL:
            message = f"answers are cached for at least {int(min_ttl)} s, even if their TTL is shorter"
            expected = f"at most {NODELOCAL_TTL}"
            yield line_finding(CorefileCode.AnswersKeptTooLong, line.number, stub.server, message, expected)
        elif line.words[0] == "serve_stale":
            message = "serve_stale: clients get answers after their TTL"
            yield line_finding(CorefileCode.StaleAnswersServed, line.number, stub.server, message, "no such line")


_BOTH = (_plugins_that_answer_first, _forwards_that_take_first, _exceptions)
_COREDNS = (client_findings, _cache, *_BOTH, _preferred_udp)
_NODELOCAL = (_long_cached, *_BOTH, _forward_by_udp)
