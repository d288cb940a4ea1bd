# SPDX-License-Identifier: Apache-2.0

"""Checks of a block that forwards names to topodns: how it names clients, what keeps names back, and its fallbacks."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from dnsserver.settings.values import ListenAddress
from dnsserver.tools.corefile import fixes
from dnsserver.tools.corefile.caddyfile import Directive
from dnsserver.tools.corefile.codes import CorefileCode, CorefileProblem
from dnsserver.tools.corefile.stub_blocks import FAILING_OPEN, MAX_UPSTREAMS, NODELOCAL_TTL
from dnsserver.tools.corefile.stub_zones import (
    Corefile,
    ServerBlock,
    Stub,
    is_local,
    overlap,
    within,
    zone_text,
    zones_named,
)
from locator.printable import cut

_ANYWHERE = ("0.0.0.0", "::")  # words of bind that mean all addresses
_WHOLE = ("32", "128")  # the prefix lengths of one address
# Plugins that may answer and that CoreDNS runs before ``forward`` -> number of arguments before their zones.
_ANSWERING = {
    **{"acl": 0, "auto": 0, "etcd": 0, "k8s_external": 0, "kubernetes": 0, "secondary": 0},
    **{"file": 1, "hosts": 1, "template": 2},
}


def client(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Check how a block names clients: by the best of several rules, not by their combined effect."""
    server, rules = stub.server, stub.server.rules
    naming = sorted((rule for rule in rules if rule.action), key=lambda rule: (rule.action != "set", rule.code != ""))
    if not naming:
        yield CorefileCode.ClientNotNamed.at(server.block.line, server).fixed_by(fixes.name_client, corefile, server)
        return
    rule = naming[0]
    rewrite, shown = rule.rewrite, cut(" ".join(rule.words))
    if rule.action != "set":
        problem = CorefileCode.ClientNamesItself.at(rewrite.line, server, action=rule.action)
        yield problem.fixed_by(fixes.correct_rule, rewrite)
    elif rule.code:
        yield CorefileCode.ClientSubnetTrusted.at(rewrite.line, server, code=rule.code)
    elif rule.words[3:5] != _WHOLE:
        problem = CorefileCode.ClientNamedInPart.at(rewrite.line, server, rule=shown)
        yield problem.fixed_by(fixes.correct_rule, rewrite)
    if not rule.code and rule.words[-1] != "revert":
        yield CorefileCode.SubnetNotReverted.at(rewrite.line, server).fixed_by(fixes.correct_rule, rewrite)
    for earlier in rules[: rules.index(rule)]:
        if not earlier.continues:
            line, shown = earlier.rewrite.line, cut(" ".join(earlier.words))
            problem = CorefileCode.RewriteStopsEarlier.at(line, server, rule=shown)
            yield problem.fixed_by(fixes.let_rule_go_on, earlier.rewrite)


# --- What keeps names back --------------------------------------------------------------------------------------------


def plugins_that_answer_first(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Find plugins that answer before ``forward``. One with ``fallthrough`` is fine, except ``kubernetes``.

    The plugin ``kubernetes`` knows all names of the zone, so it passes none of them on.
    """
    server = stub.server
    for plugin in (directive for directive in server.block.directives if directive.name in _ANSWERING):
        zone = overlap(stub.zones, server.zones_of(plugin, skip=_ANSWERING[plugin.name]))
        if zone is not None and plugin.name == "kubernetes":
            problem = CorefileCode.KubernetesAnswersFirst.at(plugin.line, server, zone=zone_text(zone))
            yield problem.fixed_by(fixes.remove_kubernetes, corefile, stub, plugin)
        elif zone is not None and not plugin.lines("fallthrough"):
            shown = zone_text(zone)
            yield CorefileCode.PluginAnswersFirst.at(plugin.line, server, plugin=plugin.name, zone=shown)


def forwards_that_take_first(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Find earlier forwards of the block that take the names: CoreDNS uses the first ``forward`` that matches."""
    server, forward = stub.server, stub.forward
    first, *_ = forwards = server.directives("forward")
    for earlier in forwards[: forwards.index(forward)]:
        excepted = _excepted(earlier)
        taken = server.forwarded(earlier) if earlier.arguments else []
        for zone in stub.zones:
            if any(within(zone, other) for other in taken) and not any(within(zone, other) for other in excepted):
                at = forward.line, server
                problem = CorefileCode.EarlierForwardWins.at(*at, zone=zone_text(zone), earlier=earlier.line)
                yield problem.fixed_by(fixes.move_before, corefile, forward, first)


def exceptions(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Find parts of the zone that ``except`` names; where another ``forward`` is, it may take them."""
    zone = overlap(stub.zones, _excepted(stub.forward))
    if zone is not None and len(stub.server.directives("forward")) == 1:
        excepted = stub.forward.lines("except")[0]
        problem = CorefileCode.StubZoneExcepted.at(excepted.line, stub.server, zone=zone_text(zone))
        yield problem.fixed_by(fixes.except_nothing, corefile, stub, excepted)


def _excepted(forward: Directive) -> list[str]:
    return [zone for line in forward.lines("except") for word in line.arguments for zone in zones_named(word)]


# --- Caches, and how topodns is asked ---------------------------------------------------------------------------------


def cache_of_all_clients(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Find caches, which do not distinguish clients, unless they are off for all the zones, or for others."""
    for cache in stub.server.directives("cache"):
        has_ttl = cache.arguments[:1] and cache.arguments[0].isdigit()
        named = [zone for word in cache.arguments[bool(has_ttl) :] for zone in zones_named(word)]
        disabled = set()
        for kind, *words in (line.arguments for line in cache.lines("disable") if line.arguments):
            off = [zones_named(word)[0] for word in words or ("",)]
            if all(any(within(zone, other) for other in off) for zone in stub.zones):
                disabled.add(kind)
        if not disabled >= {"success", "denial"} and (not named or overlap(stub.zones, named)):
            problem = CorefileCode.CacheMixesClients.at(cache.line, stub.server)
            yield problem.fixed_by(fixes.stop_caching, corefile, stub, cache)


def cached_for_long(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Find caches of NodeLocal DNSCache that keep answers for longer than topodns says."""
    for line in (line for cache in stub.server.directives("cache") for line in cache.body):
        min_ttl = "".join(line.arguments[2:3]) if line.name in ("success", "denial") else ""
        if min_ttl.isascii() and min_ttl.isdigit() and len(min_ttl) < 10 and int(min_ttl) > NODELOCAL_TTL:
            problem = CorefileCode.AnswersKeptTooLong.at(line.line, stub.server, ttl=int(min_ttl))
            yield problem.fixed_by(fixes.set_word, line.words[3], str(NODELOCAL_TTL))
        elif line.name == "serve_stale":
            yield CorefileCode.StaleAnswersServed.at(line.line, stub.server).fixed_by(fixes.remove, corefile, line)


def udp_preferred(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Find ``prefer_udp``, unless ``force_tcp`` overrides it."""
    for line in stub.forward.lines("prefer_udp") if not stub.forward.lines("force_tcp") else ():
        yield CorefileCode.UdpPreferred.at(line.line, stub.server).fixed_by(fixes.remove, corefile, line)


def forward_by_udp(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Find a ``forward`` of NodeLocal DNSCache over UDP."""
    if not stub.forward.lines("force_tcp"):
        problem = CorefileCode.ForwardByUdp.at(stub.forward.line, stub.server)
        yield problem.fixed_by(fixes.set_option, corefile, stub.forward, "force_tcp")


# --- Fallbacks: servers that answer while topodns does not ------------------------------------------------------------


def fallbacks(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Check the order of fallbacks, when CoreDNS goes on to them, and the blocks of this Corefile that they are."""
    forward, upstreams, others = stub.forward, stub.upstreams, stub.fallbacks(corefile.to)
    if len(upstreams) == 1 and (failover := forward.lines("failover")):
        problem = CorefileCode.FallbackMissing.at(failover[0].line, stub.server)
        yield problem.fixed_by(fixes.name_any_fallback, corefile, stub)
    if not others or len(others) == len(upstreams) or len(upstreams) > MAX_UPSTREAMS:
        return
    at = forward.line, stub.server
    if not any(line.arguments[:1] == ("sequential",) for line in forward.lines("policy")):
        problem = CorefileCode.FallbackNotSequential.at(*at, fallback=others[0])
        yield problem.fixed_by(fixes.set_option, corefile, forward, FAILING_OPEN[0])
    elif upstreams.index(others[0]) < len(upstreams) - len(others):
        problem = CorefileCode.FallbackFirst.at(*at, fallback=others[0])
        yield problem.fixed_by(fixes.ask_topodns_first, corefile, stub, others)
    rcodes = {word.upper() for line in forward.lines("failover") for word in line.arguments}
    if missing := [rcode for rcode in ("SERVFAIL", "REFUSED") if rcode not in rcodes]:
        problem = CorefileCode.FailoverMissing.at(*at, rcodes=" and ".join(missing))
        yield problem.fixed_by(fixes.fail_over, corefile, forward, missing)
    for fallback in others:
        for zone in stub.zones if ip_address(fallback.address).is_loopback else ():
            yield from _fallback_block(corefile, stub, fallback, zone)


def _fallback_block(corefile: Corefile, stub: Stub, fallback: ListenAddress, zone: str) -> Iterator[CorefileProblem]:
    """Check the block of this Corefile that answers for a stub zone at a loopback address.

    It is the block at that port with the longest zone that encloses the stub zone.
    """
    enclosing = [
        (len(key.zone), index)
        for index, server in enumerate(corefile.servers)
        for key in server.keys
        if key.port == fallback.port
        and within(zone, key.zone)
        and (not server.bound or any(is_local(word) or word in _ANYWHERE for word in server.bound))
    ]
    server = corefile.servers[max(enclosing)[1]] if enclosing else None
    at = stub.forward.line, stub.server
    if server is stub.server:
        problem = CorefileCode.FallbackAsksItself.at(*at, fallback=fallback)
        yield problem.fixed_by(fixes.ask_another_port, stub, fallback)
    elif server is None or not _may_answer(server, zone):
        problem = CorefileCode.FallbackUnanswered.at(*at, zone=zone_text(zone), fallback=fallback)
        yield problem.fixed_by(fixes.add_fallback, corefile, stub, fallback)
    elif not (server.directives("forward") or (server.bound and all(map(is_local, server.bound)))):
        # A block that forwards also serves other clients, so it must stay reachable.
        problem = CorefileCode.FallbackOpenToAll.at(server.block.line, server, port=fallback.port)
        yield problem.fixed_by(fixes.bind, corefile, server, fallback)


def _may_answer(server: ServerBlock, zone: str) -> bool:
    """Whether a block may answer for *zone*. One without the plugin ``kubernetes`` may."""
    return not server.directives("kubernetes") or server.knows(zone)
