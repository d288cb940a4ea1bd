"""Which rule of CoreDNS's ``rewrite`` tells topodns who asks, and whether a client can tell it something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dnsserver.corefile import ECS_RULE
from dnsserver.stubzones import Found, Server, cut, error, warning

_EXPECTED = f"the line {ECS_RULE!r}"
_WHOLE = (32, 128)  # the prefix lengths of one address


class _Rule(NamedTuple):
    """A rule: whether others follow it, and its words from its type on."""

    line: int
    goes_on: bool
    words: tuple[str, ...]

    @property
    def kind(self) -> tuple[str, ...]:
        """What it is about, as far as it is about EDNS: its type, the option and what is done with that."""
        return tuple(word.lower() for word in self.words[:3])

    @property
    def certain(self) -> bool:
        """Whether it applies to every query, so that without ``continue`` it is the last."""
        return self.kind[:1] == ("edns0",) and self.kind[2:] in (("set",), ("append",), ("unset",))

    def __str__(self) -> str:
        return cut(" ".join(self.words))


class _Refused(Exception):
    """A rule that CoreDNS does not start with."""


class _Naming(NamedTuple):
    """What the rules come to: the prefix lengths by which a client is named, None for not at all; by which rule.

    ``own`` is whether a client's own word for it passes.
    """

    lengths: tuple[int, int] | None = None
    rule: _Rule | None = None
    own: bool = True


def client_findings(server: Server) -> Iterator[Found]:
    """Yield what is wrong with how a block names clients."""
    naming, before, by_option = _Naming(), [], False
    for rule in _rules(server):
        if rule.kind[:2] == ("edns0", "subnet"):
            try:
                naming = _applied(rule, naming)
            except _Refused as refused:
                yield error(rule.line, server, f"{refused}: CoreDNS does not start", _EXPECTED)
                return
        elif rule.kind[:2] == ("edns0", "local") and rule.words[4:5] == ("{client_ip}",):
            by_option = True
            if rule.kind[2:] != ("set",):
                yield error(rule.line, server, "a client that sends this option names itself", "set in place of it")
        if not rule.goes_on:
            before.append(rule)
            if rule.certain:
                break
    if naming.rule is not None:
        yield from _named(server, naming, naming.rule, [rule for rule in before if rule.line < naming.rule.line])
    elif not by_option:
        last = next((rule for rule in before if rule.certain and rule.kind[1] != "subnet"), None)
        if last is not None and any(rule.kind[:2] == ("edns0", "subnet") for rule in _rules(server)):
            message = f"clients are not named: no rule follows '{last}'"
            yield error(last.line, server, message, "'rewrite continue ...'")
        else:
            yield error(server.block.line, server, "clients are not named", _EXPECTED)


def _named(server: Server, naming: _Naming, rule: _Rule, before: list[_Rule]) -> Iterator[Found]:
    if naming.lengths is None:
        yield error(rule.line, server, "only a client that names itself is named", _EXPECTED)
    elif naming.own:
        yield error(rule.line, server, "a client that sends a subnet names itself", _EXPECTED)
    elif 0 in naming.lengths:
        yield error(rule.line, server, "a prefix of length 0 names nobody", _EXPECTED)
    elif naming.lengths != _WHOLE:
        message = "clients are named by /{} and /{} alone".format(*naming.lengths)
        yield warning(rule.line, server, message, "their whole address, 32 128")
    if rule.words[-1] != "revert":
        yield warning(rule.line, server, "a client finds its name in the reply", "'revert' at the end")
    for each in before:
        message = f"no rule follows '{each}': who asks for a name that it matches is not named"
        yield warning(each.line, server, message, "'rewrite continue ...'")


def _applied(rule: _Rule, naming: _Naming) -> _Naming:
    """Return what a rule for client subnets makes of what those before it came to. Raises _Refused."""
    action, words = rule.kind[2] if len(rule.kind) > 2 else "", rule.words[3:]
    if action == "unset" and not words:
        return _Naming(own=False)
    lengths = _lengths(words[:-1] if words[-1:] == ("revert",) else words)
    if action == "set":
        return _Naming(lengths, rule, own=False)
    if action == "append":
        return naming if naming.lengths is not None else _Naming(lengths, rule, own=naming.own)
    if action == "replace":
        return _Naming(naming.lengths and lengths, rule, own=False)
    raise _Refused(f"'{rule}' is no rule")


def _lengths(words: tuple[str, ...]) -> tuple[int, int]:
    try:
        v4, v6 = (int(word, 0) for word in words)
    except ValueError:
        raise _Refused(f"'{cut(' '.join(words))}' are no two prefix lengths") from None
    if not (0 <= v4 <= 32 and 0 <= v6 <= 128):
        raise _Refused(f"no address has a prefix of length '{cut(' '.join(words))}'")
    return v4, v6


def _rules(server: Server) -> Iterator[_Rule]:
    for each in server.directives("rewrite"):
        words = list(each.arguments)
        if len(words) < 2:
            words += [word for line in each.body for word in line.words]
        mode = words[0].lower() if words else ""
        yield _Rule(each.line, mode == "continue", tuple(words[mode in ("stop", "continue") :]))
