"""What would go wrong with a Corefile that sends names to topodns.

Each rule here was tried with CoreDNS 1.14.7. Nothing is said of what a Corefile is for besides.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from dnsserver.caddyfile import IMPORT, Block, lines_named, parse
from dnsserver.clientrules import client_findings
from dnsserver.corefile import COREDNS, NODELOCAL, NODELOCAL_TTL, is_loopback
from dnsserver.settings import ListenAddress
from dnsserver.stubzones import (
    Found,
    Key,
    Server,
    Stub,
    cut,
    error,
    overlap,
    server_of,
    stubs_of,
    warning,
    within,
    zone_text,
    zones_named,
)
from locator.model import Finding

CHECKED = (COREDNS, NODELOCAL)


def check(
    text: str, *, forwarder: str, file: str = "", to: Sequence[ListenAddress] = (), zones: Sequence[str] = ()
) -> list[Finding]:
    """Return what would go wrong with a Corefile, by line. Raises ``caddyfile.Unparsable``, and nothing else.

    *forwarder* is one of ``CHECKED``. A stub zone is one that is forwarded to one of *to*, or without them
    one within *zones*; without these, too, one within the cluster's own domain, as far as the Corefile tells it.
    """
    blocks = parse(text)
    servers = [server_of(block) for block in blocks if block.keys]
    stubs = list(stubs_of(servers, to=to, zones=zones))
    rules = _NODELOCAL if forwarder == NODELOCAL else _COREDNS
    found = chain(
        _imports(blocks),
        _twins(servers),
        _none(stubs, to, zones),
        (each for stub in stubs for rule in rules for each in rule(stub)),
        (each for stub in stubs for each in _fail_open(stub, servers, to)),
        _astray(servers, stubs),
        _foreign(servers) if forwarder == NODELOCAL else _completed(servers, stubs),
    )
    unique = dict.fromkeys(found)  # two forwards of one block share what stands beside them
    return [
        Finding(each.severity, "line", "", str(each.line), each.where, each.message, each.expected, file)
        for each in sorted(unique, key=lambda each: each.line)
    ]


# --- The Corefile as a whole ------------------------------------------------------------------------------------------


def _imports(blocks: Iterable[Block]) -> Iterator[Found]:
    for each in (each for block in blocks for each in block.directives if each.name == IMPORT):
        what = cut(" ".join(each.arguments))
        yield warning(each.line, None, f"import {what}: this file is not looked into", "all in one")
    for block in blocks:
        if not block.keys and any(each.name != IMPORT for each in block.directives):
            yield warning(block.line, None, "a block without a zone serves nobody", "a zone in front of '{'")


def _twins(servers: Iterable[Server]) -> Iterator[Found]:
    """Two blocks of one zone and port are one too many, unless both are bound, and to other addresses."""
    seen: dict[tuple[Key, str], int] = {}
    bound: dict[Key, int] = {}
    for server in servers:
        if server.directives("view"):
            continue  # it tells by more than the zone who is meant
        for key in server.keys:
            addresses = server.bound or ("",)
            first = next((seen[key, each] for each in (*addresses, "") if (key, each) in seen), None)
            if first is None and not server.bound:
                first = bound.get(key)
            if first is None:
                bound.setdefault(key, server.block.line)
                seen.update({(key, each): server.block.line for each in addresses})
                continue
            message = f"{zone_text(key.zone)}:{key.port} is served at line {first}, too: CoreDNS does not start"
            yield error(server.block.line, server, message, "one block for it")


def _none(stubs: Sequence[Stub], to: Sequence[ListenAddress], zones: Sequence[str]) -> Iterator[Found]:
    where = f" to {' or '.join(map(str, to))}" if to else ""
    named = [zone for stub in stubs for zone in stub.zones]
    lost = [zone for zone in zones if overlap(named, zones_named(zone)) is None]
    for zone in lost if stubs or lost else ["a zone of the cluster"]:
        yield warning(1, None, f"nothing forwards {zone}{where}: topodns is not asked", "a block as --for prints it")


def _astray(servers: Iterable[Server], stubs: Iterable[Stub]) -> Iterator[Found]:
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
                yield warning(server.block.line, server, message, expected)


def _above(zone: str) -> Iterator[str]:
    while zone:
        zone = zone.partition(".")[2]
        yield zone


def _meet(server: Server, other: Server) -> bool:
    return not (server.bound and other.bound and set(server.bound).isdisjoint(other.bound))


def _completed(servers: Iterable[Server], stubs: Sequence[Stub]) -> Iterator[Found]:
    """Whoever follows the search path for a client looks in his own block alone."""
    for server in servers:
        plain = [zone for each in server.directives("kubernetes") for zone in server.zones_of(each)]
        for each in server.directives("autopath"):
            zone = next((zone for stub in stubs if (zone := overlap(stub.zones, plain)) is not None), None)
            if zone is not None:
                message = f"autopath answers short names under {zone_text(zone)} from this block: topodns is not asked"
                yield warning(each.line, server, message, "no autopath beside a stub zone")


def _foreign(servers: Iterable[Server]) -> Iterator[Found]:
    for server in servers:
        for each in server.directives("kubernetes"):
            yield error(each.line, server, "NodeLocal DNSCache has no plugin kubernetes and does not start", "none")


# --- A block that forwards to topodns ---------------------------------------------------------------------------------


def _client_named(stub: Stub) -> Iterator[Found]:
    return client_findings(stub.server)


def _not_cached(stub: Stub) -> Iterator[Found]:
    for each in stub.server.directives("cache"):
        numbered = each.arguments[:1] and each.arguments[0].isdigit()
        named = [zone for word in each.arguments[bool(numbered) :] for zone in zones_named(word)]
        off = {
            line.words[1]
            for line in lines_named(each, "disable")
            if len(line.words) > 1
            and all(any(within(zone, zones_named(word)[0]) for word in line.words[2:] or ("",)) for zone in stub.zones)
        }
        if off >= {"success", "denial"} or (named and not overlap(stub.zones, named)):
            continue
        yield error(each.line, stub.server, "cache: what one client is answered everybody is", "no cache here")


def _not_answered_before(stub: Stub) -> Iterator[Found]:
    for each in stub.server.directives("kubernetes"):
        zone = overlap(stub.zones, stub.server.zones_of(each))
        if zone is not None:
            message = f"kubernetes answers for {zone_text(zone)} before forward: topodns is not asked"
            yield error(each.line, stub.server, message, "kubernetes in a block of its own, or none")


def _not_excepted(stub: Stub) -> Iterator[Found]:
    if len(stub.server.directives("forward")) > 1:
        return  # what one of them does not take another one may
    for line in lines_named(stub.forward, "except"):
        zone = overlap(stub.zones, [zone for word in line.words[1:] for zone in zones_named(word)])
        if zone is not None:
            message = f"names under {zone_text(zone)} are not forwarded and get SERVFAIL"
            yield error(line.number, stub.server, message, "nothing of the stub zone")


def _by_any_protocol(stub: Stub) -> Iterator[Found]:
    if not lines_named(stub.forward, "force_tcp"):
        for line in lines_named(stub.forward, "prefer_udp"):
            message = "prefer_udp: a client that asks by TCP for a long answer is asked for by UDP first"
            yield warning(line.number, stub.server, message, "none")


def _by_tcp(stub: Stub) -> Iterator[Found]:
    if not lines_named(stub.forward, "force_tcp"):
        message = "forward by UDP: an entry in connection tracking for each query, and some get lost"
        yield warning(stub.forward.line, stub.server, message, "force_tcp")


def _not_kept(stub: Stub) -> Iterator[Found]:
    for line in (line for each in stub.server.directives("cache") for line in each.body):
        least = line.words[3] if len(line.words) > 3 and line.words[0] in ("success", "denial") else ""
        if least.isascii() and least.isdigit() and len(least) < 10 and int(least) > NODELOCAL_TTL:
            message = f"answers are kept {int(least)} s whatever their TTL"
            yield warning(line.number, stub.server, message, f"at most {NODELOCAL_TTL}")


_COREDNS = (_client_named, _not_cached, _not_answered_before, _not_excepted, _by_any_protocol)
_NODELOCAL = (_not_kept, _not_excepted, _by_tcp)


# --- Who answers in place of topodns ----------------------------------------------------------------------------------


def _fail_open(stub: Stub, servers: Sequence[Server], to: Sequence[ListenAddress]) -> Iterator[Found]:
    """Judge a stub that has somebody else to ask: one not among *to*, or without them one of this machine."""
    server, forward = stub.server, stub.forward
    here = {key.port for each in servers for key in each.keys}
    local = [each is not None and is_loopback(each.address) for each in stub.upstreams]
    plain = [
        at
        for at, each in enumerate(stub.upstreams)
        if each is not None and (each not in to if to else local[at] and (each.port in here or not all(local)))
    ]
    if not plain or len(plain) == len(stub.upstreams):
        return
    sequential = any(line.words[1:2] == ("sequential",) for line in lines_named(forward, "policy"))
    if not sequential:
        message = f"{stub.upstreams[plain[0]]} answers in place of topodns although topodns is there"
        yield warning(forward.line, server, message, "'policy sequential'")
    elif plain[0] < len(stub.upstreams) - len(plain):
        message = f"{stub.upstreams[plain[0]]} stands before topodns: that one is asked only when it is dead"
        yield error(forward.line, server, message, "topodns first")
    rcodes = {word.upper() for line in lines_named(forward, "failover") for word in line.words[1:]}
    if missing := [rcode for rcode in ("SERVFAIL", "REFUSED") if rcode not in rcodes]:
        message = f"topodns's {' and '.join(missing)} reach clients"
        yield warning(forward.line, server, message, "'failover SERVFAIL REFUSED'")
    for each in (stub.upstreams[at] for at in plain):
        if each is not None and is_loopback(each.address):
            yield from _plain_answers(stub, each, servers)


def _plain_answers(stub: Stub, each: ListenAddress, servers: Iterable[Server]) -> Iterator[Found]:
    """Judge the blocks that a loopback address and its port belong to."""
    serving = [
        (server, key.zone)
        for server in servers
        for key in server.keys
        if key.port == each.port and overlap(stub.zones, [key.zone]) is not None
    ]
    for zone in stub.zones:
        if not any(within(zone, around) and _answers(server, zone) for server, around in serving):
            message = f"no block here answers for {zone_text(zone)} at {each}"
            yield warning(stub.forward.line, stub.server, message, "one as --fail-open prints it")
    for server, _ in serving:
        if not server.bound or not all(map(_is_local, server.bound)):
            message = f"whoever asks port {each.port} goes past topodns"
            yield warning(server.block.line, server, message, "'bind 127.0.0.1'")


def _answers(server: Server, zone: str) -> bool:
    plain = server.directives("kubernetes")
    return not plain or any(within(zone, own) for each in plain for own in server.zones_of(each))


def _is_local(word: str) -> bool:
    try:
        return word == "lo" or ipaddress.ip_address(word).is_loopback
    except ValueError:
        return False
