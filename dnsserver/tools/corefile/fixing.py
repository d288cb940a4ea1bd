# SPDX-License-Identifier: Apache-2.0

"""Fixes a Corefile: changes the lines at fault, and leaves all else as it is, byte for byte.

Pure. ``corefile_check`` finds what is wrong; each fix here makes one of its findings go. What a line of a snippet does
wrong is fixed in the block that imports it, because other blocks may import it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from types import MappingProxyType

from dnsserver.settings.values import DNS_PORT, ListenAddress
from dnsserver.tools.corefile import corefile_check
from dnsserver.tools.corefile.caddyfile import Directive, Unparsable, Word, parse
from dnsserver.tools.corefile.client_rules import rules_of
from dnsserver.tools.corefile.corefile_codes import CorefileCode
from dnsserver.tools.corefile.corefile_text import CorefileText, Span
from dnsserver.tools.corefile.fallback_rules import fallbacks_of, is_fallback, is_local
from dnsserver.tools.corefile.stub_blocks import ECS_RULE, FAILING_OPEN, FALLBACK, NODELOCAL_TTL, fallback_block
from dnsserver.tools.corefile.stub_zones import ServerBlock, Stub, overlap, server_of, within, zones_named
from locator.ip import address_text, is_address, parse_address
from locator.model import ERROR, Finding

_LOOPBACK = ("127.", "[::1]", "::1")
_NOT_FORWARDED = {CorefileCode.NoStubZone.name, CorefileCode.ZoneNotForwarded.name}
Fix = Callable[[CorefileText, int], str | None]  # of what is at a line; None where it is not certain
# Plugins that change no answer for a zone which leaves their block, or that must not answer for it.
_LEFT_BEHIND = ("bind", "cache", "debug", "errors", "forward", "health", "kubernetes", "loadbalance", "log", "loop",
                "pprof", "prometheus", "ready", "reload", "trace")  # fmt: skip
MAX_FIXES = 100  # far more than the faults of any Corefile; each takes a check
_SEQUENTIAL, _FAILOVER, *_ = FAILING_OPEN


def fixed(
    text: str,
    *,
    forwarder: str,
    to: Sequence[ListenAddress] = (),
    zones: Sequence[str] = (),
    stub: str = "",
    external_names: Mapping[str, str] = MappingProxyType({}),
    wanted: Callable[[Finding], bool] = lambda _: True,
) -> str:
    """Return a Corefile without those of its *wanted* findings whose fix is certain. Raises ``caddyfile.Unparsable``.

    The arguments are those of ``corefile_check.check``. *stub* is the block to add if nothing forwards to topodns.
    """

    def check(text: str) -> list[Finding]:
        return corefile_check.check(text, forwarder=forwarder, to=to, zones=zones, external_names=external_names)

    found = check(text)
    for _ in range(MAX_FIXES):
        corefile = CorefileText(text, to, zones)
        for finding in filter(wanted, found):
            after = _fixed(corefile, finding, stub)
            left = None if after is None or not _is_corefile(after) else check(after)
            if after is not None and left is not None and _is_better(found, left, finding.code, (text, after)):
                text, found = after, left
                break
        else:
            break
    return text


def _is_better(found: Sequence[Finding], left: Sequence[Finding], code: str, texts: tuple[str, str]) -> bool:
    """Whether a fix did what it should: one finding with its code less, or a snippet in place of an import."""
    errors_found, errors_left = ([finding.code for finding in findings if finding.severity == ERROR]
                                 for findings in (found, left))  # fmt: skip
    if len(errors_left) > len(errors_found) or not {*errors_left} <= {*errors_found}:
        return False
    before, now = (sum(finding.code == code for finding in findings) for findings in (found, left))
    return now < before or _meaning(texts[0]) == _meaning(texts[1])


def _meaning(text: str) -> list[object]:
    """Return what a Corefile says, without the numbers of its lines."""
    return [
        (block.keys, [(line.name, line.arguments, [row.words for row in line.body]) for line in block.directives])
        for block in parse(text)
    ]


def _is_corefile(text: str) -> bool:
    try:
        return bool(parse(text))
    except Unparsable:
        return False


def _fixed(corefile: CorefileText, finding: Finding, stub: str) -> str | None:
    if finding.code in _NOT_FORWARDED:
        return _forward(corefile, stub) if stub and not corefile.stubs else None
    fix = _FIXES.get(finding.code)
    return None if fix is None else fix(corefile, finding.line or 1)


def _forward(corefile: CorefileText, stub: str) -> str:
    """Let the blocks for its zones that name clients forward to topodns, or add a block that does."""
    blocks = [server_of(block) for block in parse(stub)]
    zones = [key.zone for server in blocks for key in server.keys]
    to = [word for server in blocks for forward in server.directives("forward") for word in forward.arguments[1:]]
    old = list[Span]()
    for server in corefile.servers:
        forwards = server.directives("forward")
        inside = all(any(within(key.zone, zone) for zone in zones) for key in server.keys)
        named = any(rule.action for rule in rules_of(server))
        at = corefile.place(server.block, forwards[0]) if inside and named and len(forwards) == 1 else None
        words = [] if at is None else corefile.argument_words(at)[2:]
        if others := list(takewhile(lambda word: not word.text.startswith(_LOOPBACK), words)):
            old.append(Span(others[0].start, others[-1].end))
    text = corefile.text
    for span in sorted(old, reverse=True):  # the positions of what comes before stay right
        text = text[: span.start] + " ".join(dict.fromkeys(to)) + text[span.end :]
    return text if old else corefile.added(stub)


# --- One fix for each finding ----------------------------------------------------------------------------------------


def _server_at(corefile: CorefileText, line: int) -> ServerBlock | None:
    return next((server for server in corefile.servers if server.block.line == line), None)


def _stub_with(corefile: CorefileText, line: int) -> Iterator[tuple[Stub, Directive]]:
    """Yield the stubs of which a directive, or a line in its braces, is at *line*: of the block, or the ``forward``."""
    for stub in corefile.stubs:
        for directive in stub.server.block.directives:
            own = directive is stub.forward or directive.name != "forward"
            if own and line in (directive.line, *(row.number for row in directive.body)):
                yield stub, directive


def _by_stub(
    fix: Callable[[CorefileText, Stub, Directive, int], str | None],
) -> Callable[[CorefileText, int], str | None]:
    """Return a fix of a directive in a block that forwards to topodns; *fix* gets the number of its first word.

    It does nothing where the block forwards all names to topodns: nobody knows what else it is for.
    """

    def found(corefile: CorefileText, line: int) -> str | None:
        for stub, directive in _stub_with(corefile, line):
            block = stub.server.block
            at = corefile.place(block, directive)
            after = corefile.imported(block, directive.line) if at is None else fix(corefile, stub, directive, at)
            if after is not None and "" not in stub.zones:
                return after
        return None

    return found


def _is_dedicated(stub: Stub) -> bool:
    """Whether the block of a stub serves nothing but the stub's zones."""
    return all(any(within(key.zone, zone) for zone in stub.zones) for key in stub.server.keys)


def _name_client(corefile: CorefileText, line: int) -> str | None:
    """Insert the rule, which lets other rules of the block go on.

    In a block that is for other names, too, it would name clients to their servers: there the ``forward`` gets a block
    of its own.
    """
    server = _server_at(corefile, line)
    if server is None:
        return None
    stubs = [stub for stub in corefile.stubs if stub.server is server]
    shared = next((stub for stub in stubs if not _is_dedicated(stub)), None)
    if shared is not None and (len(stubs) < len(server.directives("forward")) or server.directives("kubernetes")):
        return _with_own_block(corefile, shared)
    more = any(True for _ in rules_of(server))
    return corefile.on_top(server.block, ECS_RULE.replace("rewrite", "rewrite continue") if more else ECS_RULE)


def _correct_rule(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    """Change the words of the rule that are wrong."""
    span = corefile.span(directive, at)
    words = [word for word in corefile.words if span.start < word.start < span.end and word.text not in ("{", "}")]
    rule = words[words[0].text.lower() in ("continue", "stop") :]
    if rule[1].text.lower() != "subnet":
        return corefile.put_word(rule[2], "set")
    wrong = [(word, text) for word, text in zip(rule[2:5], ("set", "32", "128"), strict=False) if word.text != text]
    if wrong:
        return corefile.put_words(wrong)
    return corefile.put(Span(rule[-1].end, rule[-1].end), " revert")


def _let_rule_go_on(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    words = corefile.argument_words(at)
    if len(words) > 1 and words[1].text.lower() == "stop":
        return corefile.put_word(words[1], "continue")
    return corefile.put(Span(words[0].end, words[0].end), " continue")


def _remove_kubernetes(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    """Remove the plugin from a block of the stub zones alone; otherwise give the ``forward`` a block of its own."""
    return corefile.without(corefile.span(directive, at)) if _is_dedicated(stub) else _with_own_block(corefile, stub)


def _with_own_block(corefile: CorefileText, stub: Stub) -> str | None:
    """Move the ``forward`` of a stub into a block of its own, which names the client.

    None where its names would lose more than that: what another plugin does with them, or encryption.
    """
    server = stub.server
    listeners = {(key.transport, key.port) for key in server.keys}
    names_client = all(rule.action for rule in rules_of(server))
    others = {directive.name for directive in server.block.directives}.difference(_LEFT_BEHIND, ("rewrite",))
    if "" in stub.zones or len(listeners) != 1 or others or not names_client:
        return None
    ((transport, port),) = listeners
    if transport != "dns":
        return None
    forward = corefile.place(server.block, stub.forward)
    if forward is None:
        return corefile.imported(server.block, stub.forward.line)
    span = corefile.span(stub.forward, forward)
    indent = corefile.indent(corefile.words[forward])
    lines = [f"bind {' '.join(server.bound)}"] if server.bound else []
    keys = " ".join(f"{zone}:{port}" for zone in stub.zones)
    body = "".join(f"{indent}{line}\n" for line in (*lines, ECS_RULE, corefile.text[span.start : span.end]))
    moved = f"{keys} {{\n{body}}}\n".replace("\r\n", "\n").replace("\n", corefile.newline)
    rest = corefile.without(span)
    return f"{rest}{'' if rest.endswith(chr(10)) else corefile.newline}{moved}"


def _move_forward(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    """Move the ``forward`` to topodns before the one that takes its names."""
    earlier = stub.server.directives("forward")[0]
    before = corefile.place(stub.server.block, earlier)
    if before is None:
        return corefile.imported(stub.server.block, earlier.line)
    lines = corefile.lines_of(corefile.span(directive, at))
    moved, first = corefile.text[lines.start : lines.end], corefile.lines_of(corefile.span(earlier, before))
    if not moved.endswith("\n") or first.start >= lines.start or corefile.text[first.start - 1] != "\n":
        return None
    text = corefile.text
    return text[: first.start] + moved + text[first.start : lines.start] + text[lines.end :]


def _stop_excepting(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    line = directive.lines("except")[0]
    first = corefile.line_at(stub.server.block, line.number, "except")
    if first is None:
        return corefile.imported(stub.server.block, line.number)
    words = corefile.argument_words(first)
    kept = [word for word in words[1:] if not overlap(stub.zones, zones_named(word.text))]
    if not kept:
        return corefile.without(Span(words[0].start, words[-1].end))
    return corefile.put(Span(words[1].start, words[-1].end), " ".join(word.text for word in kept))


def _stop_caching(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    """Remove the cache of the stub zones; where it serves others, too, leave these out."""
    if _is_dedicated(stub):
        return corefile.without(corefile.span(directive, at))
    excepted = {line.words[1] for line in directive.lines("disable") if len(line.words) > 1}
    text = corefile.text
    for kind in ("denial", "success"):  # each is put before the other; one that names other zones is left
        if kind not in excepted:
            text = CorefileText(text, corefile.to, ()).with_option(at, f"disable {kind} {' '.join(stub.zones)}")
    return text


def _remove_line(name: str) -> Fix:
    """Return a fix that removes a line from the braces of a directive."""

    def remove(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
        row = directive.lines(name)[0]
        first = corefile.line_at(stub.server.block, row.number, name)
        if first is None:
            return corefile.imported(stub.server.block, row.number)
        words = corefile.argument_words(first)
        return corefile.without(Span(words[0].start, words[-1].end))

    return _by_stub(remove)


def _keep_shorter(corefile: CorefileText, line: int) -> str | None:
    for stub, directive in _stub_with(corefile, line):
        name = next(row.words[0] for row in directive.body if row.number == line)
        first = corefile.line_at(stub.server.block, line, name)
        if first is None:
            return corefile.imported(stub.server.block, line)
        return corefile.put_word(corefile.words[first + 3], str(NODELOCAL_TTL))
    return None


def _force_tcp(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    return corefile.with_option(at, "force_tcp")


# --- The fallback -----------------------------------------------------------------------------------------------------


def _option(
    corefile: CorefileText, stub: Stub, at: int, option: str, changed: Callable[[Sequence[Word]], str]
) -> str | None:
    """Insert an option into the braces of the ``forward``; if it has one of that name, return that one *changed*."""
    name = option.split()[0]
    lines = stub.forward.lines(name)
    if not lines:
        return corefile.with_option(at, option)
    first = corefile.line_at(stub.server.block, lines[0].number, name)
    if first is None:
        return corefile.imported(stub.server.block, lines[0].number)
    return changed(corefile.argument_words(first))


def _ask_in_order(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    def sequential(words: Sequence[Word]) -> str:
        return corefile.put(Span(words[0].start, words[-1].end), _SEQUENTIAL)

    return _option(corefile, stub, at, _SEQUENTIAL, sequential)


def _topodns_first(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    fallbacks, words = fallbacks_of(stub, corefile.to), corefile.argument_words(at)[2:]
    order = sorted(zip(words, stub.upstreams, strict=True), key=lambda pair: pair[1] in fallbacks)
    texts = [corefile.text[word.start : word.end] for word, _ in order]
    spaces = [corefile.text[one.end : two.start] for one, two in pairwise(words)]
    line = "".join(text + space for text, space in zip(texts, (*spaces, ""), strict=True))
    return corefile.put(Span(words[0].start, words[-1].end), line)


def _fail_over(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    def with_all(words: Sequence[Word]) -> str:
        has, end = {word.text.upper() for word in words}, words[-1].end
        missing = [rcode for rcode in _FAILOVER.split()[1:] if rcode not in has]
        return corefile.put(Span(end, end), "".join(f" {rcode}" for rcode in missing))

    return _option(corefile, stub, at, _FAILOVER, with_all)


def _ask_another_port(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    own = {key.port for key in stub.server.keys}
    words = corefile.argument_words(at)[2:]
    wrong = next(
        (word for word, upstream in zip(words, stub.upstreams, strict=True)
         if upstream in fallbacks_of(stub, corefile.to) and upstream and upstream.port in own), None,
    )  # fmt: skip
    return None if wrong is None or FALLBACK in stub.upstreams else corefile.put_word(wrong, str(FALLBACK))


def _add_fallback(corefile: CorefileText, stub: Stub, directive: Directive, at: int) -> str | None:
    """Add the block that answers at the fallback's address, or bind the one of that port there."""
    ports = {key.port: server for server in corefile.servers for key in server.keys}
    for fallback in fallbacks_of(stub, corefile.to):
        if (server := ports.get(fallback.port)) is None:
            try:
                return corefile.added(fallback_block(stub.zones, fallback))
            except ValueError:  # a zone that is no domain name, such as a variable
                return None
        if server.bound and not any(map(is_local, server.bound)):
            return _close_fallback(corefile, server.block.line)
    return None


def _close_fallback(corefile: CorefileText, line: int) -> str | None:
    server = _server_at(corefile, line)
    if server is None or len({key.port for key in server.keys}) != 1:
        return None
    port = server.keys[0].port
    if port == DNS_PORT:  # the block of all clients
        return None
    address = next(
        address_text(found.address) for stub in corefile.stubs
        for found in fallbacks_of(stub, corefile.to) if found.port == port
    )  # fmt: skip
    binds = server.directives("bind")
    if not binds:
        return corefile.on_top(server.block, f"bind {address}")
    if not binds[0].arguments:
        return None
    at = corefile.place(server.block, binds[0])
    if at is None:
        return corefile.imported(server.block, binds[0].line)
    words = corefile.argument_words(at)
    return corefile.put(Span(words[1].start, words[-1].end), address)


def _name_fallback(corefile: CorefileText, line: int) -> str | None:
    """Name the address of a fallback block after topodns, wherever no other is named."""
    server = _server_at(corefile, line)
    if server is None:
        return None
    local = [word for word in server.bound if is_local(word) and is_address(word)]
    address = parse_address(local[0]) if local else FALLBACK.address
    fallback = ListenAddress(address, server.keys[0].port)
    return _with_fallback(corefile, fallback, [key.zone for key in server.keys])


def _name_any_fallback(corefile: CorefileText, line: int) -> str | None:
    """Name a fallback after topodns, where ``failover`` is there already. The block is another fix."""
    unused = next((server for server in corefile.servers if is_fallback(server)), None)
    return _name_fallback(corefile, unused.block.line) if unused else _with_fallback(corefile, FALLBACK, ("",), line)


def _with_fallback(
    corefile: CorefileText, fallback: ListenAddress, zones: Iterable[str], line: int | None = None
) -> str | None:
    """Return the text with a fallback in the first stub below one of *zones* that has none, and that has a *line*.

    It gets the options of a fallback that it lacks, too.
    """
    zones = list(zones)
    for stub in corefile.stubs:
        own = line is None or any(row.number == line for row in stub.forward.body)
        served = all(any(within(zone, parent) for parent in zones) for zone in stub.zones)
        if own and served and not fallbacks_of(stub, corefile.to) and "" not in stub.zones:
            at = corefile.place(stub.server.block, stub.forward)
            if at is None:
                return corefile.imported(stub.server.block, stub.forward.line)
            end = corefile.argument_words(at)[-1].end
            text = corefile.put(Span(end, end), f" {fallback}")
            for option in reversed(FAILING_OPEN):  # each is put before those that are there
                if not stub.forward.lines(option.split()[0]):
                    text = CorefileText(text, corefile.to, ()).with_option(at, option)
            return text
    return None


_FIXES: Mapping[str, Fix] = {
    code.name: fix
    for code, fix in {
        CorefileCode.ClientNotNamed: _name_client,
        CorefileCode.ClientNamesItself: _by_stub(_correct_rule),
        CorefileCode.ClientNamedInPart: _by_stub(_correct_rule),
        CorefileCode.SubnetNotReverted: _by_stub(_correct_rule),
        CorefileCode.RewriteStopsEarlier: _by_stub(_let_rule_go_on),
        CorefileCode.KubernetesAnswersFirst: _by_stub(_remove_kubernetes),
        CorefileCode.EarlierForwardWins: _by_stub(_move_forward),
        CorefileCode.StubZoneExcepted: _by_stub(_stop_excepting),
        CorefileCode.CacheMixesClients: _by_stub(_stop_caching),
        CorefileCode.AnswersKeptTooLong: _keep_shorter,
        CorefileCode.StaleAnswersServed: _remove_line("serve_stale"),
        CorefileCode.UdpPreferred: _remove_line("prefer_udp"),
        CorefileCode.ForwardByUdp: _by_stub(_force_tcp),
        CorefileCode.FallbackNotSequential: _by_stub(_ask_in_order),
        CorefileCode.FallbackFirst: _by_stub(_topodns_first),
        CorefileCode.FailoverMissing: _by_stub(_fail_over),
        CorefileCode.FallbackAsksItself: _by_stub(_ask_another_port),
        CorefileCode.FallbackUnanswered: _by_stub(_add_fallback),
        CorefileCode.FallbackOpenToAll: _close_fallback,
        CorefileCode.FallbackUnused: _name_fallback,
        CorefileCode.FallbackMissing: _name_any_fallback,
    }.items()
}
