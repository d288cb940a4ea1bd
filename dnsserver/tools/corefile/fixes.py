# SPDX-License-Identifier: Apache-2.0

"""The fixes of a Corefile: each changes the words at fault, and leaves all else as it is, octet by octet.

Pure. A fix returns edits, or None where nobody can be certain. What a line of a snippet does wrong is fixed in the
block that imports it, because other blocks may import it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from dnsserver.settings.values import DNS_PORT, ListenAddress
from dnsserver.tools.corefile.caddyfile import Directive, Import, Word, parse
from dnsserver.tools.corefile.stub_blocks import ECS_RULE, FAILING_OPEN, FALLBACK, fallback_block
from dnsserver.tools.corefile.stub_zones import (
    Corefile,
    ServerBlock,
    Stub,
    is_local,
    overlap,
    server_of,
    within,
    zones_named,
)
from locator.ip import address_text, is_address, parse_address

_INDENT = "    "
_LOOPBACK = ("127.", "[::1]", "::1")
# Plugins that change no answer for a zone which leaves their block, or that must not answer for it.
_LEFT_BEHIND = ("bind", "cache", "debug", "errors", "forward", "health", "kubernetes", "loadbalance", "log", "loop",
                "pprof", "prometheus", "ready", "reload", "rewrite", "trace")  # fmt: skip


class Edit(NamedTuple):
    """A part of the text, and what takes its place. It is in a snippet if *imported* says so."""

    start: int
    end: int
    new: str
    imported: Import | None = None


Edits = Sequence[Edit] | None


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with all *edits*; if one is in a snippet, the text with the snippet in place of its import."""
    edits = next((_unimported(edit.imported) for edit in edits if edit.imported is not None), edits)
    for start, end, new, _ in sorted(edits, key=lambda edit: edit.start)[::-1]:  # what comes before stays in its place
        text = text[:start] + new + text[end:]
    return text


# --- Edits ------------------------------------------------------------------------------------------------------------


def _put(words: Sequence[Word], new: str) -> Edit:
    return Edit(words[0].start, words[-1].end, new, words[0].imported)


def _put_after(word: Word, new: str) -> Edit:
    return Edit(word.end, word.end, new, word.imported)


def _unimported(imported: Import) -> Sequence[Edit]:
    while imported.outer is not None:
        imported = imported.outer
    return [Edit(imported.start, imported.end, imported.body)]


def _without(corefile: Corefile, line: Directive) -> Edit:
    return Edit(*_whole_lines(corefile.text, line), "", line.words[0].imported)


def _with_options(corefile: Corefile, directive: Directive, *options: str) -> Edit:
    """Put options into the braces of a directive, before those that are there."""
    braces, first, newline = directive.braces, directive.words[0], corefile.newline
    if braces is not None and braces.first is not braces.closing:
        return _before(corefile, braces.first, *options)
    indent = _indent(corefile.text, first)
    unit = "\t" if indent.startswith("\t") else _INDENT
    lines = "".join(f"{newline}{indent}{unit}{option}" for option in options) + f"{newline}{indent}"
    if braces is None:
        return _put_after(directive.words[-1], f" {{{lines}}}")
    return Edit(braces.opening.end, braces.closing.start, lines, first.imported)


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _indent(text: str, word: Word) -> str:
    """Return the white space before a word that begins its line, else that of most Corefiles."""
    before = text[_line_start(text, word.start) : word.start]
    return before if before and before.isspace() else _INDENT


def _whole_lines(text: str, line: Directive) -> tuple[int, int]:
    """Return where the lines of a directive are, if nothing but a comment is beside it there; else the directive."""
    first, last = line.words[0].start, line.end
    start, end = _line_start(text, first), text.find("\n", last) + 1 or len(text)
    alone = not text[start:first].strip() and re.match(r"\s*(#|$)", text[last:end])
    return (start, end) if alone else (first, last)


def _before(corefile: Corefile, word: Word, *lines: str) -> Edit:
    """Put lines before a word, indented like it."""
    text, newline = corefile.text, corefile.newline
    start, indent = _line_start(text, word.start), _indent(text, word)
    if not text[start : word.start].strip():
        return Edit(start, start, "".join(f"{indent}{line}{newline}" for line in lines), word.imported)
    ends = start + len(text[start : word.start].rstrip())
    return Edit(ends, word.start, "".join(f"{newline}{indent}{line}" for line in (*lines, "")), word.imported)


def _added(corefile: Corefile, block: str) -> Edit:
    """Put a block at the end."""
    text, newline = corefile.text, corefile.newline
    between = "" if not text or text.endswith("\n") else newline
    return Edit(len(text), len(text), between + block.replace("\n", newline))


def _on_top(corefile: Corefile, server: ServerBlock, line: str) -> Edit:
    first = server.block.first
    return _added(corefile, f"{line}\n") if first is None else _before(corefile, first, line)


# --- How clients are named, and names that do not reach topodns -------------------------------------------------------


def forwarding(corefile: Corefile, stub: str) -> Edits:
    """Let the blocks for the zones of *stub* that name clients forward to topodns, or add *stub*, a block that does."""
    blocks = [server_of(block) for block in parse(stub)]
    zones = [key.zone for server in blocks for key in server.keys]
    to = [word for server in blocks for forward in server.directives("forward") for word in forward.arguments[1:]]
    edits = []
    for server in corefile.servers:
        forwards = server.directives("forward")
        inside = all(any(within(key.zone, zone) for zone in zones) for key in server.keys)
        if inside and len(forwards) == 1 and any(rule.action for rule in server.rules):
            others = list(takewhile(lambda word: not word.text.startswith(_LOOPBACK), forwards[0].words[2:]))
            if others and others[0].imported is None:
                edits.append(_put(others, " ".join(dict.fromkeys(to))))
    return edits or [_added(corefile, stub)]


def name_client(corefile: Corefile, server: ServerBlock) -> Edits:
    """Insert the rule, which lets other rules of the block go on.

    In a block that is for other names, too, it would name clients to their servers: there the ``forward`` gets a block
    of its own.
    """
    stubs = [stub for stub in corefile.stubs if stub.server is server]
    shared = next((stub for stub in stubs if not stub.is_dedicated), None)
    if shared is not None and (len(stubs) < len(server.directives("forward")) or server.directives("kubernetes")):
        return _with_own_block(corefile, shared)
    rule = ECS_RULE.replace("rewrite", "rewrite continue") if server.rules else ECS_RULE
    return [_on_top(corefile, server, rule)]


def correct_rule(rewrite: Directive) -> Edits:
    """Change the words of the rule that are wrong."""
    words = [*rewrite.words[1:], *(word for line in rewrite.body for word in line.words)]
    rule = words[words[0].text.lower() in ("continue", "stop") :]
    if rule[1].text.lower() != "subnet":
        return [_put(rule[2:3], "set")]
    expected = zip(rule[2:5], ("set", "32", "128"), strict=False)
    return [_put([word], text) for word, text in expected if word.text != text] or [_put_after(rule[-1], " revert")]


def let_rule_go_on(rewrite: Directive) -> Edits:
    """Write ``continue`` in the rule."""
    if [word.lower() for word in rewrite.arguments[:1]] == ["stop"]:
        return [_put(rewrite.words[1:2], "continue")]
    return [_put_after(rewrite.words[0], " continue")]


def remove_kubernetes(corefile: Corefile, stub: Stub, plugin: Directive) -> Edits:
    """Remove the plugin from a block of the stub zones alone; otherwise give the ``forward`` a block of its own."""
    if stub.is_dedicated or plugin.words[0].imported is not None:
        return [_without(corefile, plugin)]
    return _with_own_block(corefile, stub)


def _with_own_block(corefile: Corefile, stub: Stub) -> Edits:
    """Move the ``forward`` of a stub into a block of its own, which names the client.

    None where its names would lose more than that: what another plugin does with them, or encryption.
    """
    server, forward, text = stub.server, stub.forward, corefile.text
    listeners = {(key.transport, key.port) for key in server.keys}
    others = {directive.name for directive in server.block.directives}.difference(_LEFT_BEHIND)
    if "" in stub.zones or len(listeners) != 1 or others or not all(rule.action for rule in server.rules):
        return None
    ((transport, port),) = listeners
    if transport != "dns":
        return None
    first = forward.words[0]
    keys, bind = " ".join(f"{zone}:{port}" for zone in stub.zones), f"bind {' '.join(server.bound)}"
    lines = (*([bind] if server.bound else []), ECS_RULE, text[first.start : forward.end])
    body = "".join(f"{_indent(text, first)}{line}\n" for line in lines).replace("\r\n", "\n")
    return [_without(corefile, forward), _added(corefile, f"{keys} {{\n{body}}}\n")]


def move_before(corefile: Corefile, forward: Directive, earlier: Directive) -> Edits:
    """Move the ``forward`` to topodns before the one that takes its names."""
    if imported := forward.words[0].imported or earlier.words[0].imported:
        return _unimported(imported)
    text = corefile.text
    (start, end), (before, _) = _whole_lines(text, forward), _whole_lines(text, earlier)
    if text[end - 1] != "\n" or before >= start or text[before - 1] != "\n":
        return None
    return [Edit(before, before, text[start:end]), Edit(start, end, "")]


def except_nothing(corefile: Corefile, stub: Stub, excepted: Directive) -> Edits:
    """Leave the stub zones out of the exceptions."""
    kept = [word.text for word in excepted.words[1:] if not overlap(stub.zones, zones_named(word.text))]
    return [_put(excepted.words[1:], " ".join(kept)) if kept else _without(corefile, excepted)]


# --- Any line ---------------------------------------------------------------------------------------------------------


def remove(corefile: Corefile, line: Directive) -> Edits:
    """Remove a directive, or an option of one, and its lines if nothing else is there."""
    return [_without(corefile, line)]


def set_option(corefile: Corefile, directive: Directive, option: str) -> Edits:
    """Put an option into the braces of a directive, in place of one of its name."""
    present = directive.lines(option.split()[0])
    return [_put(present[0].words, option) if present else _with_options(corefile, directive, option)]


def set_word(word: Word, new: str) -> Edits:
    """Put another word in place of one."""
    return [_put([word], new)]


# --- Caches and fallbacks ---------------------------------------------------------------------------------------------


def stop_caching(corefile: Corefile, stub: Stub, cache: Directive) -> Edits:
    """Remove the cache of the stub zones; where it serves others, too, leave these out."""
    if stub.is_dedicated:
        return [_without(corefile, cache)]
    excepted = {line.arguments[0] for line in cache.lines("disable") if line.arguments}
    options = [f"disable {kind} {' '.join(stub.zones)}" for kind in ("success", "denial") if kind not in excepted]
    return [_with_options(corefile, cache, *options)] if options else None  # one that names other zones is left


def fail_over(corefile: Corefile, forward: Directive, missing: Sequence[str]) -> Edits:
    """Write ``failover`` with all rcodes, or those that it lacks."""
    if failover := forward.lines("failover"):
        has = {word.upper() for word in failover[0].arguments}
        return [_put_after(failover[0].words[-1], "".join(f" {rcode}" for rcode in missing if rcode not in has))]
    return [_with_options(corefile, forward, FAILING_OPEN[1])]


def ask_topodns_first(corefile: Corefile, stub: Stub, fallbacks: Sequence[ListenAddress]) -> Edits:
    """Name topodns before its fallbacks; what is between the addresses stays."""
    words, text = stub.forward.words[2:], corefile.text
    order = sorted(zip(words, stub.upstreams, strict=True), key=lambda pair: pair[1] in fallbacks)
    spaces = [text[one.end : two.start] for one, two in pairwise(words)]
    line = (text[word.start : word.end] + space for (word, _), space in zip(order, (*spaces, ""), strict=True))
    return [_put(words, "".join(line))]


def ask_another_port(stub: Stub, fallback: ListenAddress) -> Edits:
    """Name our fallback in place of the block itself."""
    at = stub.upstreams.index(fallback) + 2
    return None if FALLBACK in stub.upstreams else [_put(stub.forward.words[at : at + 1], str(FALLBACK))]


def add_fallback(corefile: Corefile, stub: Stub, fallback: ListenAddress) -> Edits:
    """Add the block that answers at the fallback's address, or bind the one of that port there."""
    server = {key.port: server for server in corefile.servers for key in server.keys}.get(fallback.port)
    if server is not None:
        return bind(corefile, server, fallback) if server.bound and not any(map(is_local, server.bound)) else None
    try:
        return [_added(corefile, fallback_block(stub.zones, fallback))]
    except ValueError:  # a zone that is no domain name, such as a variable
        return None


def bind(corefile: Corefile, server: ServerBlock, fallback: ListenAddress) -> Edits:
    """Bind the fallback's block to the address that the ``forward`` names."""
    if {key.port for key in server.keys} != {fallback.port} or fallback.port == DNS_PORT:  # the block of all clients
        return None
    address = address_text(fallback.address)
    if not (binds := server.directives("bind")):
        return [_on_top(corefile, server, f"bind {address}")]
    return [_put(binds[0].words[1:], address)] if binds[0].arguments else None


def name_fallback(corefile: Corefile, server: ServerBlock) -> Edits:
    """Name the address of a fallback block after topodns, in the first ``forward`` of its zones that names no other."""
    local = [word for word in server.bound if is_local(word) and is_address(word)]
    fallback = ListenAddress(parse_address(local[0]) if local else FALLBACK.address, server.keys[0].port)
    return _with_fallback(corefile, fallback, [stub for stub in corefile.stubs if server.encloses(stub.zones)])


def name_any_fallback(corefile: Corefile, stub: Stub) -> Edits:
    """Name a fallback after topodns, where ``failover`` is there already. Its block is another fix."""
    unused = next((server for server in corefile.servers if server.is_fallback), None)
    return name_fallback(corefile, unused) if unused else _with_fallback(corefile, FALLBACK, [stub])


def _with_fallback(corefile: Corefile, fallback: ListenAddress, stubs: Iterable[Stub]) -> Edits:
    """Name a fallback, with the options that it needs, in the first stub that has none."""
    for stub in stubs:
        if not stub.fallbacks(corefile.to) and "" not in stub.zones:
            lacking = [option for option in FAILING_OPEN if not stub.forward.lines(option.split()[0])]
            named = _put_after(stub.forward.words[-1], f" {fallback}")
            return [named, *([_with_options(corefile, stub.forward, *lacking)] if lacking else [])]
    return None
