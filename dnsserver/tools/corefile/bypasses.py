# SPDX-License-Identifier: Apache-2.0

"""Finds names of a stub zone that another block of the Corefile answers by itself.

CoreDNS chooses a block once, by the name that was asked. Three things then make a name of the stub zone out of it and
stay in their block (as CoreDNS 1.14.7 does in ``core/dnsserver/server.go``): ``autopath``, ``rewrite name``, and the
plugin ``kubernetes``, which follows an ExternalName within its own zones. A CNAME that leads elsewhere, also by
``rewrite cname``, is asked for anew, and so comes to the right block.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import comb, prod
from string import ascii_lowercase, digits
from typing import NamedTuple

from dnsserver.tools.corefile.caddyfile import Directive
from dnsserver.tools.corefile.codes import CorefileCode, CorefileProblem
from dnsserver.tools.corefile.stub_blocks import ARPA
from dnsserver.tools.corefile.stub_zones import (
    Corefile,
    Rule,
    ServerBlock,
    Stub,
    share_address,
    upstreams_of,
    within,
    zones_named,
)
from locator.printable import cut

_FORMS = ("exact", "prefix", "suffix", "substring", "regex")
_GROUP = re.compile(r"\{(0|[1-9][0-9]?)\}")  # of a group, in what a regular expression is replaced by
# A group without others in it, or one character or class, and how often it may come.
_ATOM = re.compile(
    r"(?:\((?:\?:|\?P<\w+>)?(?!\?)([^()]*)\)|(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\()\[]))([*+?]|\{[\d,]+\})?"
)
_WORDS = ("a", "1", "web", "web-0")  # what groups may stand for
_CHARACTERS = f"a1-.{ascii_lowercase}{digits}"
MAX_PATTERN = 500  # characters of a regular expression that is tried, and of its replacement: a name has half as many
MAX_WAYS = 500_000  # in which Python may match one of some fifty names that are tried: it takes up to 20 ms


def bypasses(corefile: Corefile, stub: Stub) -> Iterator[CorefileProblem]:
    """Yield what other blocks answer of the zones of *stub*."""
    others = [server for server in corefile.servers if server is not stub.server and share_address(server, stub.server)]
    for server in others:
        for zone in stub.zones:
            other = _OtherBlock(server, [stub.server, *others], stub, zone)
            if zone and not any(within(zone, arpa) for arpa in ARPA) and not other.asks_topodns:
                yield from _autopath(other)
                yield from _rewrites(other)
                yield from _external_names(other, corefile.external_names)


class _OtherBlock(NamedTuple):
    """A block, all that listen beside it, a stub that is among them, and a zone of that stub."""

    server: ServerBlock
    among: Sequence[ServerBlock]
    stub: Stub
    zone: str

    def takes(self, name: str) -> bool:
        """Whether CoreDNS chooses this block for *name*: the one with the longest zone; several may have views."""
        for port in {key.port for key in self.stub.server.keys}:
            keys = [
                (len(key.zone), server)
                for server in self.among
                for key in server.keys
                if key.port == port and within(name, key.zone)
            ]
            longest = max((length for length, _ in keys), default=-1)
            if any(server is self.server for length, server in keys if length == longest):
                return True
        return False

    @property
    def forward(self) -> Directive | None:
        """The first ``forward`` that takes names of the zone that come here; None if ``kubernetes`` answers them."""
        forwards = self.server.directives("forward") if not self.server.knows(self.zone) else []
        taking = (
            forward
            for forward in forwards
            if forward.arguments and any(within(self.zone, taken) for taken in zones_named(forward.arguments[0]))
        )
        return next(taking, None)  # fmt: skip

    @property
    def asks_topodns(self) -> bool:
        """Whether it forwards names of the zone to where the stub forwards them."""
        upstreams = {*upstreams_of(self.forward)} if self.forward is not None else set()
        return not upstreams.isdisjoint({*self.stub.upstreams} - {None})

    def problem(self, code: CorefileCode, line: int, namespace: str = "", **values: str) -> CorefileProblem:
        """Return what a name of the zone that becomes one here, or is asked in *namespace*, is answered with."""
        if self.server.knows(self.zone):
            answered = "kubernetes answers in this block"
        elif self.forward is not None:
            answered = f"this block forwards to {cut(' '.join(self.forward.arguments[1:]))}"
        else:
            answered = "nothing in this block knows"
        parent = self.zone.partition(".")[2] if self.zone.partition(".")[2].startswith("svc.") else ""
        wanted = f"{namespace}.{parent}, too," if namespace and parent else parent or "the whole domain"
        texts = {"zone": cut(self.zone), **{key: cut(text) for key, text in values.items()}}
        return code.at(line, self.server, answered=answered, wanted=wanted, stub=self.stub.server.block.line, **texts)


def _autopath(other: _OtherBlock) -> Iterator[CorefileProblem]:
    """Find names such as ``web.shop.default.svc.cluster.local``, which a pod of ``default`` asks first for web.shop.

    The search path in a file is not known here.
    """
    server, zone = other.server, other.zone
    for autopath in server.directives("autopath"):
        *zones, search = autopath.arguments or ("",)
        plugins = server.directives("kubernetes") if search == "@kubernetes" else []
        domains = [domain for plugin in plugins if _knows_pods(plugin) for domain in server.zones_of(plugin)]
        searched = [named for text in zones for named in zones_named(text)] or [key.zone for key in server.keys]
        asked = [
            f"web.{zone.removesuffix(f'svc.{domain}')}{namespace}.svc.{domain}"
            for domain in domains
            for namespace in ("default", "kube-system")
            if zone.endswith(f".svc.{domain}")
        ]
        taken = (name for name in asked if other.takes(name) and any(within(name, parent) for parent in searched))
        if (name := next(taken, None)) is not None:
            yield other.problem(CorefileCode.AutopathBypassesStub, autopath.line, name=name)


def _knows_pods(plugin: Directive) -> bool:
    """Whether ``kubernetes`` knows of which namespace a client is; otherwise autopath has no effect."""
    return any(line.arguments[:1] == ("verified",) for line in plugin.lines("pods"))


def _rewrites(other: _OtherBlock) -> Iterator[CorefileProblem]:
    for rule in other.server.rules:
        rewrite = _rewrite(rule)
        if rewrite is not None and (name := rewrite.leads_into(other)) is not None:
            yield other.problem(CorefileCode.RewriteBypassesStub, rule.rewrite.line, name=name)


class _Rewrite(NamedTuple):
    """A rule ``rewrite name``: names are in lower case and have a final dot, unless *form* is ``regex``."""

    form: str
    source: str
    target: str

    def leads_into(self, other: _OtherBlock) -> str | None:
        """Return a name that the block takes and that the rule makes a name of the zone; None if none is known."""
        zone = other.zone
        sources = self._examples(zone) if self.form == "regex" else self._candidates(f"{zone}.")
        for name in sources:
            asked, becomes = name.rstrip("."), self.applied(name).removesuffix(".")
            is_name = all(asked.split(".")) and (self.form != "regex" or all(becomes.split(".")))
            if is_name and within(becomes, zone) and other.takes(asked):
                return asked
        return None

    def applied(self, name: str) -> str:
        """Return the name that the rule makes of *name*, as ``plugin/rewrite/name.go`` does."""
        if self.form == "regex":
            found = re.search(self.source, name)
            groups = () if found is None else (found[0], *found.groups(""))
            places = {f"{{{number}}}": text for number, text in enumerate(groups)}
            return name if found is None else _GROUP.sub(lambda place: places.get(place[0], place[0]), self.target)
        if self.form == "prefix" and name.startswith(self.source):
            return self.target + name.removeprefix(self.source)
        if self.form == "suffix" and name.endswith(self.source):
            return name.removesuffix(self.source) + self.target
        if self.form == "substring":
            return name.replace(self.source, self.target)
        return self.target if name == self.source else name

    def _candidates(self, zone: str) -> Iterator[str]:
        """Yield names of which the rule may make a name of *zone*, which has a final dot, and a few others."""
        source, target = self.source, self.target
        if self.form == "exact":
            yield source
        for wanted in (zone, f"a.{zone}"):
            if self.form == "suffix" and wanted.endswith(target):
                yield wanted.removesuffix(target) + source
            for cut_at in range(len(wanted) + 1) if self.form in ("prefix", "substring") else ():
                head, tail = wanted[:cut_at], wanted[cut_at:]
                if target.endswith(head):
                    yield source + tail  # the replacement ends in the zone's first letters
                if self.form == "substring" and tail.startswith(target):
                    yield head + source + tail.removeprefix(target)
        if self.form in ("suffix", "substring"):
            yield from (f"{labels}{source}" for labels in ("a", "a.", ""))

    def _examples(self, zone: str) -> Iterator[str]:
        """Yield names that match a regular expression, so that its groups become a name of *zone* if they can.

        It yields none for groups in groups or with flags, for what Python does not read as Go does, and for what may
        take Python long: Go matches any expression in linear time, but Python tries one way after the other.
        """
        if max(len(self.source), len(self.target)) > MAX_PATTERN:
            return
        atoms = list(_ATOM.finditer(self.source))
        if "".join(atom[0] for atom in atoms) != self.source or any(map(_repeats_choices, atoms)):
            return
        try:
            with warnings.catch_warnings(action="error", category=FutureWarning):  # of [[:alpha:]], for one
                re.compile(self.source)
                names = dict.fromkeys(_example(atoms, values) for values in self._values(zone))
        except (re.error, FutureWarning, OverflowError):
            return
        choices = prod(atom[0].count("|") + 1 for atom in atoms) << self.source.count("?")
        stretches = 1 + sum(map(self.source.count, "*+{"))  # one before the match
        for name in names:
            if choices * _divisions(name, stretches) <= MAX_WAYS:
                yield f"{name.rstrip('.')}."

    def _values(self, zone: str) -> Iterator[Mapping[int, str]]:
        """Yield what groups may have matched: words, or what makes the replacement a name of *zone*."""
        groups = dict.fromkeys(int(place) for place in _GROUP.findall(self.target))
        words = dict.fromkeys((*_WORDS, *re.findall(r"[a-z0-9][a-z0-9-]*", self.source)[:8]))
        for word in words:
            yield dict.fromkeys(groups, word)
        yield {}
        for value in (".+?", ".+", "[^.]+"):
            *texts, end = _GROUP.split(self.target.removesuffix("."))
            pattern, seen = "", set[str]()
            for text, number in zip(texts[::2], texts[1::2], strict=True):
                pattern += re.escape(text) + (f"(?P=g{number})" if number in seen else f"(?P<g{number}>{value})")
                seen.add(number)
            for wanted in (zone, *(f"{word}.{zone}" for word in words)):
                if _divisions(wanted, len(groups)) > MAX_WAYS:
                    continue
                if (found := re.fullmatch(pattern + re.escape(end), wanted)) is not None:
                    yield {int(name.removeprefix("g")): text for name, text in found.groupdict().items()}


def _repeats_choices(atom: re.Match[str]) -> bool:
    """Whether a group may come several times, and match in several ways each time: their number grows exponentially."""
    group, _, repeated = atom.groups()
    return repeated not in (None, "?") and not set(group or "").isdisjoint("*+?{|")


def _divisions(text: str, parts: int) -> int:
    """Return in how many ways a text, or the beginning of it, consists of so many parts, which may be empty."""
    return comb(len(text) + parts, parts)


def _example(atoms: Sequence[re.Match[str]], values: Mapping[int, str]) -> str:
    """Return a text that *atoms* of a regular expression match in most cases, with *values* in its groups."""
    texts, number = [], 0
    for atom in atoms:
        group, character, repeated = atom.groups()
        if group is not None and not atom[0].startswith("(?:"):
            number += 1
        if group is not None:
            first = list(_ATOM.finditer(group.partition("|")[0]))
            own = not atom[0].startswith("(?:") and number in values
            texts.append(values[number] if own else _example(first, {}))
        elif character not in ("^", "$") and repeated not in ("?", "*"):
            likely = next((one for one in _CHARACTERS if re.fullmatch(character, one)), character.removeprefix("\\"))
            texts.append(likely)
    return "".join(texts)


def _rewrite(rule: Rule) -> _Rewrite | None:
    """Return a rule for names, None if it is another one, or one that CoreDNS refuses."""
    field, *words = rule.words or ("",)
    if field.lower() != "name" or len(words) < 2:
        return None
    form = "exact" if len(words) == 2 else words.pop(0).lower()
    if form not in _FORMS:
        return None
    return _Rewrite(form, words[0] if form == "regex" else _absolute(words[0]), _absolute(words[1]))


def _absolute(name: str) -> str:
    return f"{name.rstrip('.').lower()}."


def _external_names(other: _OtherBlock, external_names: Mapping[str, str]) -> Iterator[CorefileProblem]:
    code = CorefileCode.ExternalNameBypassesStub
    for plugin in other.server.directives("kubernetes"):
        for domain, (service, target) in product(other.server.zones_of(plugin), external_names.items()):
            namespace, _, name = service.partition("/")
            named = target.rstrip(".").lower()
            inside = within(named, other.zone) and within(named, domain)
            if inside and other.takes(f"{name}.{namespace}.svc.{domain}"):
                yield other.problem(code, plugin.line, namespace, service=service, target=named)
