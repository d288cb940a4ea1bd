"""What would go wrong with a Corefile that sends names to topodns.

Each rule here was tried with CoreDNS 1.14.7. Nothing is said of what a Corefile is for besides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from itertools import chain

import msgspec

from dnsserver.forwarders.caddyfile import IMPORT, Block, Directive, Unparsable, cut, parse
from dnsserver.forwarders.client_rules import client_findings
from dnsserver.forwarders.corefile_codes import CorefileCode
from dnsserver.forwarders.stub_blocks import COREDNS, MAX_UPSTREAMS, NODELOCAL, NODELOCAL_TTL
from dnsserver.forwarders.stub_zones import (
    Key,
    Server,
    Stub,
    line_finding,
    overlap,
    server_of,
    stubs_of,
    within,
    zone_text,
    zones_named,
)
from dnsserver.settings.values import ListenAddress
from locator.model import Finding

_CONFIGMAPS = {COREDNS: "coredns", NODELOCAL: "node-local-dns"}
# What YAML and JSON begin with, and no Corefile: a key, a list, a document.
_DATA = re.compile(r'(?:\s|#[^\n]*\n)*(?:---|%YAML|- |\[\s*[{"]|\{\s*"|"?[\w.-]+"?[ \t]*:(?:\s|"))')
# Plugins that come before ``forward`` and may answer, with how many words stand before the zones that they name.
_ANSWERING = {
    **{"acl": 0, "auto": 0, "etcd": 0, "k8s_external": 0, "kubernetes": 0, "secondary": 0},
    **{"file": 1, "hosts": 1, "template": 2},
}


def check(
    text: str, *, forwarder: str, file: str = "", to: Sequence[ListenAddress] = (), zones: Sequence[str] = ()
) -> list[Finding]:
    """Return what would go wrong with a Corefile, by line. Raises ``caddyfile.Unparsable``, and nothing else.

    *forwarder* is one of ``corefile.CHECKED``. A stub zone is one that is forwarded to one of *to*, or without them
    one that is a part of *zones* or the other way round; without these, too, one within the cluster's own domain, as
    far as the Corefile tells it.
    """
    if (data := _DATA.match(text.removeprefix("\ufeff"))) is not None:
        alone = f"kubectl -n kube-system get configmap {_CONFIGMAPS[forwarder]} -o jsonpath='{{.data.Corefile}}'"
        raise Unparsable(data[0].rstrip().count("\n") + 1, f"YAML or JSON found, expected the Corefile alone: {alone}")
    blocks = parse(text)
    servers = [server_of(block) for block in blocks if block.keys]
    zones = [zones_named(zone)[0] for zone in zones]
    stubs = list(stubs_of(servers, to=to, zones=zones))
    rules = _NODELOCAL if forwarder == NODELOCAL else _COREDNS
    found = chain(
        _imports(blocks),
        _twins(servers),
        _upstreams(servers),
        _not_asked(stubs, forwarder, to, zones),
        (each for stub in stubs for rule in rules for each in rule(stub)),
        (each for stub in stubs for each in _fail_open(stub, servers, to)),
        _astray(servers, stubs),
    )
    unique = dict.fromkeys(found)  # two forwards of one block share what stands beside them
    by_line = sorted(unique, key=lambda finding: finding.line or 0)
    return [msgspec.structs.replace(finding, file=file) for finding in by_line]


# --- The Corefile as a whole ------------------------------------------------------------------------------------------


def _imports(blocks: Iterable[Block]) -> Iterator[Finding]:
    for each in (each for block in blocks for each in block.directives if each.name == IMPORT):
        what = cut(" ".join(each.arguments))
        message = f"import {what}: this file is not looked into"
        yield line_finding(CorefileCode.ImportNotRead, each.line, None, message, "all in one")
    for block in blocks:
        if not block.keys and any(each.name != IMPORT for each in block.directives):
            message = "a block without a zone serves nobody"
            yield line_finding(CorefileCode.BlockWithoutZone, block.line, None, message, "a zone in front of '{'")


def _twins(servers: Iterable[Server]) -> Iterator[Finding]:
    """Two blocks of one zone and port are one too many, unless both are bound, and to other addresses."""
    taken: dict[Key, list[Server]] = {}
    for server in servers:
        for key in server.keys if not server.directives("view") else ():  # which tells by more than the zone
            others = taken.setdefault(key, [])
            first = next((each.block.line for each in others if _meet(server, each)), None)
            others.append(server)
            if first is not None:
                message = f"{zone_text(key.zone)}:{key.port} is served at line {first}, too: CoreDNS does not start"
                yield line_finding(CorefileCode.ZoneServedTwice, server.block.line, server, message, "one block for it")


def _upstreams(servers: Iterable[Server]) -> Iterator[Finding]:
    for server in servers:
        for each in server.directives("forward"):
            if not 0 < (count := len(each.arguments) - 1) <= MAX_UPSTREAMS:
                message = f"forward to {max(count, 0)} addresses: CoreDNS does not start"
                yield line_finding(CorefileCode.UpstreamCount, each.line, server, message, f"1 to {MAX_UPSTREAMS}")


def _not_asked(
    stubs: Sequence[Stub], forwarder: str, to: Sequence[ListenAddress], zones: Sequence[str]
) -> Iterator[Finding]:
    """It is an error where somebody said what is to be forwarded, or where to."""
    code = CorefileCode.ZoneNotForwarded if to or zones else CorefileCode.NoStubZone
    where = f" to {' or '.join(map(str, to))}" if to else ""
    expected = f"the block that 'topodns corefile --for {forwarder}' prints"
    named = [zone for stub in stubs for zone in stub.zones]
    if not (stubs or zones):
        what = "" if to else " a zone of the cluster"
        yield line_finding(code, 1, None, f"nothing forwards{what}{where}: topodns is not asked", expected)
    for zone in zones:
        if any(within(zone, each) for each in named):
            continue
        if parts := list(dict.fromkeys(each for each in named if within(each, zone))):
            message = f"of {zone} only {cut(' '.join(parts))} is forwarded{where}: topodns is not asked for the rest"
        else:
            message = f"nothing forwards {zone}{where}: topodns is not asked"
        yield line_finding(code, 1, None, message, expected)


def _astray(servers: Iterable[Server], stubs: Iterable[Stub]) -> Iterator[Finding]:
    """Of all the blocks at a port the one with the longest zone around a name has it, wherever it stands."""
    own = {(key.port, key.zone): stub for stub in stubs for key in stub.server.keys if key.zone in stub.zones}
    asking = {stub.server.block for stub in stubs}
    for server in servers:
        for key in server.keys if server.block not in asking else ():
            around = (own.get((key.port, zone)) for zone in _above(key.zone))
            stub = next((each for each in around if each is not None), None)
            if stub is not None and _meet(server, stub.server):
                message = f"names under {zone_text(key.zone)} are answered here: topodns is not asked"
                expected = f"no zone beneath the one that is forwarded at line {stub.server.block.line}"
                yield line_finding(CorefileCode.SubzoneNotForwarded, server.block.line, server, message, expected)


def _above(zone: str) -> Iterator[str]:
    while zone:
        zone = zone.partition(".")[2]
        yield zone


def _meet(server: Server, other: Server) -> bool:
    return not (server.bound and other.bound and set(server.bound).isdisjoint(other.bound))


# --- A block that forwards to topodns ---------------------------------------------------------------------------------


def _not_cached(stub: Stub) -> Iterator[Finding]:
    for each in stub.server.directives("cache"):
        numbered = each.arguments[:1] and each.arguments[0].isdigit()
        named = [zone for word in each.arguments[bool(numbered) :] for zone in zones_named(word)]
        off = {
            line.words[1]
            for line in each.lines("disable")
            if len(line.words) > 1
            and all(any(within(zone, zones_named(word)[0]) for word in line.words[2:] or ("",)) for zone in stub.zones)
        }
        if off >= {"success", "denial"} or (named and not overlap(stub.zones, named)):
            continue
        message = "cache: everybody gets what the first client got"
        yield line_finding(CorefileCode.CacheMixesClients, each.line, stub.server, message, "no cache here")


def _not_answered_before(stub: Stub) -> Iterator[Finding]:
    """What hands on (``fallthrough``) what it does not know is passed over, but for ``kubernetes``: that knows all."""
    for each in (each for each in stub.server.block.directives if each.name in _ANSWERING):
        zone = overlap(stub.zones, stub.server.zones_of(each, past=_ANSWERING[each.name]))
        certain = each.name == "kubernetes"
        if zone is not None and (certain or not each.lines("fallthrough")):
            message = f"{each.name} answers for {zone_text(zone)} before forward: topodns is not asked"
            code = CorefileCode.KubernetesAnswersFirst if certain else CorefileCode.PluginAnswersFirst
            yield line_finding(code, each.line, stub.server, message, f"{each.name} in a block of its own, or none")


def _not_forwarded_before(stub: Stub) -> Iterator[Finding]:
    """Of several forwards of a block the first one that takes a name has it."""
    forwards = stub.server.directives("forward")
    for each in forwards[: forwards.index(stub.forward)]:
        left = _excepted(each)
        taken = stub.server.forwarded(each) if each.arguments else []
        for zone in stub.zones:
            if any(within(zone, other) for other in taken) and not any(within(zone, other) for other in left):
                message = f"{zone_text(zone)} is forwarded at line {each.line} already: topodns is not asked"
                expected = "this line before that one"
                yield line_finding(CorefileCode.EarlierForwardWins, stub.forward.line, stub.server, message, expected)


def _not_excepted(stub: Stub) -> Iterator[Finding]:
    if len(stub.server.directives("forward")) > 1:
        return  # what one of them does not take another one may
    zone = overlap(stub.zones, _excepted(stub.forward))
    if zone is not None:
        message = f"names under {zone_text(zone)} are not forwarded and get SERVFAIL"
        line = stub.forward.lines("except")[0].number
        yield line_finding(CorefileCode.StubZoneExcepted, line, stub.server, message, "nothing of the stub zone")


def _excepted(forward: Directive) -> list[str]:
    return [zone for line in forward.lines("except") for word in line.words[1:] for zone in zones_named(word)]


def _by_any_protocol(stub: Stub) -> Iterator[Finding]:
    if not stub.forward.lines("force_tcp"):
        for line in stub.forward.lines("prefer_udp"):
            message = "prefer_udp: a client that asks by TCP for a long answer is asked for by UDP first"
            yield line_finding(CorefileCode.UdpPreferred, line.number, stub.server, message, "no such line")


def _by_tcp(stub: Stub) -> Iterator[Finding]:
    if not stub.forward.lines("force_tcp"):
        message = "forward by UDP: an entry in connection tracking for each query, and some get lost"
        yield line_finding(CorefileCode.ForwardByUdp, stub.forward.line, stub.server, message, "force_tcp")


def _not_kept(stub: Stub) -> Iterator[Finding]:
    for line in (line for each in stub.server.directives("cache") for line in each.body):
        least = line.words[3] if len(line.words) > 3 and line.words[0] in ("success", "denial") else ""
        if least.isascii() and least.isdigit() and len(least) < 10 and int(least) > NODELOCAL_TTL:
            message = f"answers are kept {int(least)} s whatever their TTL"
            expected = f"at most {NODELOCAL_TTL}"
            yield line_finding(CorefileCode.AnswersKeptTooLong, line.number, stub.server, message, expected)
        elif line.words[0] == "serve_stale":
            message = "serve_stale: answers are given after their TTL"
            yield line_finding(CorefileCode.StaleAnswersServed, line.number, stub.server, message, "no such line")


_BOTH = (_not_answered_before, _not_forwarded_before, _not_excepted)
_COREDNS = (client_findings, _not_cached, *_BOTH, _by_any_protocol)
_NODELOCAL = (_not_kept, *_BOTH, _by_tcp)


# --- Who answers in place of topodns ----------------------------------------------------------------------------------


def _fail_open(stub: Stub, servers: Sequence[Server], to: Sequence[ListenAddress]) -> Iterator[Finding]:
    """Judge a stub that has somebody else to ask: one not among *to*, or without them one of this machine."""
    server, forward, all_of_them = stub.server, stub.forward, stub.upstreams
    plain = [each for each in all_of_them if each and (each not in to if to else ip_address(each.address).is_loopback)]
    if not plain or len(plain) == len(all_of_them) or len(all_of_them) > MAX_UPSTREAMS:
        return
    if not any(line.words[1:2] == ("sequential",) for line in forward.lines("policy")):
        message = f"{plain[0]} answers in place of topodns although topodns is there"
        yield line_finding(CorefileCode.FallbackNotSequential, forward.line, server, message, "'policy sequential'")
    elif all_of_them.index(plain[0]) < len(all_of_them) - len(plain):
        message = f"{plain[0]} stands before topodns: that one is asked only when it is dead"
        yield line_finding(CorefileCode.FallbackFirst, forward.line, server, message, "topodns first")
    rcodes = {word.upper() for line in forward.lines("failover") for word in line.words[1:]}
    if missing := [rcode for rcode in ("SERVFAIL", "REFUSED") if rcode not in rcodes]:
        message = f"topodns's {' and '.join(missing)} reach clients"
        yield line_finding(CorefileCode.FailoverMissing, forward.line, server, message, "'failover SERVFAIL REFUSED'")
    for each in plain:
        if ip_address(each.address).is_loopback:
            yield from _plain_answers(stub, each, servers)


def _plain_answers(stub: Stub, each: ListenAddress, servers: Sequence[Server]) -> Iterator[Finding]:
    """Judge who answers for the stub zones at a loopback address: the block with the longest zone around them."""
    for zone in stub.zones:
        around = [
            (len(key.zone), at)
            for at, server in enumerate(servers)
            for key in server.keys
            if key.port == each.port
            and within(zone, key.zone)
            and (not server.bound or any(map(_is_local, server.bound)))
        ]
        server = servers[max(around)[1]] if around else None
        if server == stub.server:
            message = f"{each} is this very block: it asks itself"
            yield line_finding(CorefileCode.FallbackAsksItself, stub.forward.line, stub.server, message, "another port")
        elif server is None or not _answers(server, zone):
            message = f"no block here answers for {zone_text(zone)} at {each}"
            expected = "one as --fail-open prints it"
            yield line_finding(CorefileCode.FallbackUnanswered, stub.forward.line, stub.server, message, expected)
        elif not (server.directives("forward") or (server.bound and all(map(_is_local, server.bound)))):
            # One that forwards is there for others, too, who are not to lose it.
            message = f"whoever asks port {each.port} goes past topodns"
            yield line_finding(CorefileCode.FallbackOpenToAll, server.block.line, server, message, "'bind 127.0.0.1'")


def _answers(server: Server, zone: str) -> bool:
    plain = server.directives("kubernetes")
    return not plain or any(within(zone, own) for each in plain for own in server.zones_of(each))


def _is_local(word: str) -> bool:
    return word in ("lo", "::1") or word.startswith("127.")
