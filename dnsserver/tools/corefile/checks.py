# SPDX-License-Identifier: Apache-2.0

"""Finds what is wrong in a Corefile that forwards names to topodns, and fixes it where that is certain.

``CHECKS`` is the one table of what is looked for. Each check was tried with CoreDNS 1.14.7. Other purposes of a
Corefile are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from dnsserver.tools.corefile import fixes, stub_checks
from dnsserver.tools.corefile.bypasses import bypasses
from dnsserver.tools.corefile.caddyfile import IMPORT, Unparsable
from dnsserver.tools.corefile.codes import NOT_FORWARDED, CorefileCode, CorefileProblem
from dnsserver.tools.corefile.stub_blocks import (
    ARPA,
    CHECKED,
    COREDNS,
    MAX_UPSTREAMS,
    NETWORKS,
    NODELOCAL,
)
from dnsserver.tools.corefile.stub_zones import (
    Corefile,
    Key,
    ServerBlock,
    Stub,
    share_address,
    upstreams_of,
    within,
    zone_text,
)
from locator.model import ERROR, Finding
from locator.printable import cut

Problems = Iterator[CorefileProblem]
MAX_FIXES = 100  # far more than the faults of any Corefile; each takes a check


def check(corefile: Corefile, *, file: str = "") -> list[Finding]:
    """Return the findings of a Corefile in the order of its lines."""
    return [msgspec.structs.replace(problem.finding, file=file) for problem in _problems(corefile)]


def fixed(corefile: Corefile, *, stub: str = "", wanted: Callable[[Finding], bool] = lambda _: True) -> Corefile:
    """Return a Corefile without those of its *wanted* findings whose fix is certain.

    *stub* is the block to add if nothing forwards to topodns.
    """
    found = _problems(corefile)
    for _ in range(MAX_FIXES):
        for problem in (problem for problem in found if wanted(problem.finding)):
            after = _fixed(corefile, problem, stub)
            left = [] if after is None else _problems(after)
            if after is not None and _is_better(found, left, problem.finding.code, (corefile, after)):
                corefile, found = after, left
                break
        else:
            break
    return corefile


def _problems(corefile: Corefile) -> list[CorefileProblem]:
    """Return what is wrong in the order of lines; two forwards in one block find the same problems in their block."""
    found = dict[Finding, CorefileProblem]()
    for one in CHECKS:
        for problem in one.find(corefile) if corefile.forwarder in one.forwarders else ():
            found.setdefault(problem.finding, problem)
    return sorted(found.values(), key=lambda problem: problem.finding.line or 0)


def _fixed(corefile: Corefile, problem: CorefileProblem, stub: str) -> Corefile | None:
    if problem.finding.code in NOT_FORWARDED:
        edits = fixes.forwarding(corefile, stub) if stub and not corefile.stubs else None
    else:
        edits = problem.fix() if problem.fix else None
    try:
        after = None if edits is None else corefile.with_text(fixes.edited(corefile.text, edits))
    except Unparsable:
        return None
    return after if after is not None and after.blocks else None


def _is_better(
    found: Sequence[CorefileProblem], left: Sequence[CorefileProblem], code: str, texts: tuple[Corefile, Corefile]
) -> bool:
    """Whether a fix did what it should: one finding with its code less, or a snippet in place of an import."""
    codes_found, codes_left = ([problem.finding.code for problem in problems] for problems in (found, left))
    errors_found, errors_left = ([code for code in codes if CorefileCode[code].severity == ERROR]
                                 for codes in (codes_found, codes_left))  # fmt: skip
    if len(errors_left) > len(errors_found) or not {*errors_left} <= {*errors_found}:
        return False
    return codes_left.count(code) < codes_found.count(code) or _meaning(texts[0]) == _meaning(texts[1])


def _meaning(corefile: Corefile) -> list[object]:
    """Return what a Corefile says, without where it says it."""
    return [
        (block.keys, [[(line.name, line.arguments) for line in (directive, *directive.body)]
                      for directive in block.directives])
        for block in corefile.blocks
    ]  # fmt: skip


# --- The Corefile as a whole ------------------------------------------------------------------------------------------


def _imports(corefile: Corefile) -> Problems:
    for block in corefile.blocks:
        imports = [directive for directive in block.directives if directive.name == IMPORT]
        for directive in imports:
            yield CorefileCode.ImportNotRead.at(directive.line, file=cut(" ".join(directive.arguments)))
        if not block.keys and len(imports) < len(block.directives):
            yield CorefileCode.BlockWithoutZone.at(block.line)


def _zones_served_twice(corefile: Corefile) -> Problems:
    """Find pairs of blocks with the same zone and port that are not bound to different addresses."""
    by_key: dict[Key, list[ServerBlock]] = {}
    for server in corefile.servers:
        for key in server.keys if not server.directives("view") else ():  # a view selects by more than the zone
            others = by_key.setdefault(key, [])
            first = next((other.block.line for other in others if share_address(server, other)), None)
            others.append(server)
            if first is not None:
                zone = zone_text(key.zone)
                yield CorefileCode.ZoneServedTwice.at(server.block.line, server, zone=zone, port=key.port, first=first)


def _upstream_counts(corefile: Corefile) -> Problems:
    for server in corefile.servers:
        for forward in server.directives("forward"):
            if not 0 < (count := len(forward.arguments) - 1) <= MAX_UPSTREAMS:
                yield CorefileCode.UpstreamCount.at(forward.line, server, count=max(count, 0))


def _zones_not_forwarded(corefile: Corefile) -> Problems:
    """Find zones that no block forwards to topodns: an error if addresses or zones are given, else a warning."""
    forwarder, forwarded, to = corefile.forwarder, corefile.forwarded, corefile.to
    where = f" to {' or '.join(map(str, to))}" if to else ""
    if not (corefile.stubs or corefile.zones or to):
        yield CorefileCode.NoStubZone.at(1, forwarder=forwarder)
    elif not (corefile.stubs or corefile.zones):
        yield CorefileCode.ZoneNotForwarded.at(1, forwarder=forwarder, forwarded=f"nothing forwards{where}", rest="")
    for zone in corefile.zones:
        if not any(within(zone, parent) for parent in forwarded):
            parts = " ".join(part for part in forwarded if within(part, zone))
            message = f"only {cut(parts)} of {zone} is forwarded{where}" if parts else f"nothing forwards {zone}{where}"
            rest = " for the rest" if parts else ""
            yield CorefileCode.ZoneNotForwarded.at(1, forwarder=forwarder, forwarded=message, rest=rest)


def _subzones_served_elsewhere(corefile: Corefile) -> Problems:
    """Find blocks that take names from a stub zone: CoreDNS picks the block with the longest zone, in any order."""
    stub_of = {(key.port, key.zone): stub for stub in corefile.stubs
               for key in stub.server.keys if key.zone in stub.zones}  # fmt: skip
    forwarding = {stub.server.block.line for stub in corefile.stubs}
    for server in corefile.servers:
        for key in server.keys if server.block.line not in forwarding else ():
            enclosing = (stub_of.get((key.port, zone)) for zone in _parents(key.zone))
            stub = next((stub for stub in enclosing if stub is not None), None)
            if stub is not None and share_address(server, stub.server):
                line, zone = server.block.line, zone_text(key.zone)
                yield CorefileCode.SubzoneNotForwarded.at(line, server, zone=zone, stub=stub.server.block.line)


def _parents(zone: str) -> Iterator[str]:
    """Yield the zones above *zone*, the nearest first, the root last."""
    while zone:
        zone = zone.partition(".")[2]
        yield zone


def _reverse_zones_forwarded_whole(corefile: Corefile) -> Problems:
    """Find blocks that forward the reverse zones of the whole Internet to topodns."""
    # NodeLocal DNSCache comes with blocks for all zones, which forward to the cluster's DNS. They may be meant or not.
    known = corefile.forwarder == COREDNS or any(zone in ARPA for zone in corefile.zones)
    upstreams = {upstream for stub in corefile.stubs for upstream in stub.upstreams if upstream}
    topodns = set(corefile.to) or (upstreams if known else set())
    for server in corefile.servers:
        for forward in server.directives("forward"):
            for zone in () if topodns.isdisjoint(upstreams_of(forward)) else server.forwarded(forward):
                if zone in ARPA:
                    code = CorefileCode.ReverseZoneForwardedWhole
                    yield code.at(forward.line, server, zone=zone, network=NETWORKS[zone])


def _unused_fallbacks(corefile: Corefile) -> Problems:
    """Find blocks that would answer while topodns does not, but to which no ``forward`` of the Corefile leads."""
    used = {upstream.port for server in corefile.servers for forward in server.directives("forward")
            for upstream in upstreams_of(forward) if upstream}  # fmt: skip
    for server in corefile.servers:
        if server.is_fallback and used.isdisjoint(key.port for key in server.keys):
            problem = CorefileCode.FallbackUnused.at(server.block.line, server)
            yield problem.fixed_by(fixes.name_fallback, corefile, server)


# --- The table --------------------------------------------------------------------------------------------------------


class CorefileCheck(NamedTuple):
    """What is looked for, and in whose Corefiles."""

    find: Callable[[Corefile], Problems]
    forwarders: Sequence[str] = CHECKED


def _in_stubs(find: Callable[[Corefile, Stub], Problems]) -> Callable[[Corefile], Problems]:
    """Look at each ``forward`` to topodns. Where it takes all names, nobody knows what else its block is for."""

    def found(corefile: Corefile) -> Problems:
        for stub in corefile.stubs:
            for problem in find(corefile, stub):
                certain = "" not in stub.zones or problem.finding.code in _FIXED_ANYWHERE
                yield problem if certain else problem._replace(fix=None)

    return found


# What is fixed even in a block that forwards all names to topodns.
_FIXED_ANYWHERE = {
    CorefileCode.ClientNotNamed.name,
    CorefileCode.AnswersKeptTooLong.name,
    CorefileCode.FallbackOpenToAll.name,
}
CHECKS = (
    CorefileCheck(_imports),
    CorefileCheck(_zones_served_twice),
    CorefileCheck(_upstream_counts),
    CorefileCheck(_zones_not_forwarded),
    CorefileCheck(_in_stubs(stub_checks.client), [COREDNS]),
    CorefileCheck(_in_stubs(stub_checks.cache_of_all_clients), [COREDNS]),
    CorefileCheck(_in_stubs(stub_checks.cached_for_long), [NODELOCAL]),
    CorefileCheck(_in_stubs(stub_checks.plugins_that_answer_first)),
    CorefileCheck(_in_stubs(stub_checks.forwards_that_take_first)),
    CorefileCheck(_in_stubs(stub_checks.exceptions)),
    CorefileCheck(_in_stubs(stub_checks.udp_preferred), [COREDNS]),
    CorefileCheck(_in_stubs(stub_checks.forward_by_udp), [NODELOCAL]),
    CorefileCheck(_in_stubs(stub_checks.fallbacks)),
    CorefileCheck(_unused_fallbacks),
    CorefileCheck(_subzones_served_elsewhere),
    CorefileCheck(_in_stubs(bypasses)),
    CorefileCheck(_reverse_zones_forwarded_whole),
)
