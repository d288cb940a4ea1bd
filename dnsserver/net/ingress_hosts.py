# SPDX-License-Identifier: Apache-2.0

"""Resolves the host names of load balancers ahead of queries, so that answers to federated names need not wait.

A name is asked for again when its TTL is over. While its addresses of a type cannot be resolved, the last ones stay for
an hour. Names that are never answered hold up no others, and those of one namespace hold up none of another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

import trio
from msgspec import Struct
from msgspec.structs import replace

from dnsserver.answers.decision import ADDRESS_SIZES, UpstreamAnswer
from dnsserver.message.records import Opaque, type_name
from dnsserver.net.upstream import Upstream
from locator.federation.federating import ResolvedHost

log = logging.getLogger("topodns")

TICK_SECONDS = 1.0  # between looks at what is due, while there are names at all
STEP_SECONDS = 5  # by which a TTL falls behind before it is published anew
STALE_SECONDS = 3600.0  # for which the last addresses of a name stay; resolvers keep them for longer (RFC 8767)
STALE_TTL = 30  # seconds (RFC 8767, section 4)
AT_ONCE = 8  # names of one namespace: as many look-ups of two types as it may have in flight
WAIT_SECONDS = 2.0  # for what is asked for, before what is known is published


class _Answered(Struct, frozen=True):
    """What the upstream last said about a name: its addresses of one type, their TTL, and when, by trio's clock."""

    addresses: tuple[bytes, ...]
    ttl: int
    at: float


class IngressHosts:
    """Keeps the addresses of host names up to date by *upstream*, and gives them to *publish* when they change."""

    def __init__(self, upstream: Upstream, publish: Callable[[Mapping[str, ResolvedHost]], None]) -> None:
        self._upstream, self._publish = upstream, publish
        self._wanted: Mapping[str, str] = {}  # names, each with its namespace
        self._changed = trio.Event()
        self._asked: set[str] = set()  # names that are being asked for
        self._answered = trio.Event()  # set while there are none
        self._answered.set()
        self._limits: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()  # by namespace
        self._resolved: dict[str, ResolvedHost] = {}
        self._last: dict[tuple[str, int], _Answered] = {}  # by name and type
        self._problems: dict[str, str] = {}  # by name, as logged

    def want(self, hosts: Mapping[str, str]) -> None:
        """Resolve these names from now on, and no others, each for a namespace."""
        self._wanted = hosts
        self._changed.set()

    async def run(self) -> None:
        """Resolve the names that are wanted, again and again, until cancelled."""
        published: Mapping[str, ResolvedHost] = {}
        async with trio.open_nursery() as nursery:
            while True:
                if not self._wanted:
                    await self._changed.wait()
                due, anew = trio.current_time() + TICK_SECONDS, self._changed.is_set()
                if anew:
                    self._changed = trio.Event()
                self.ask(nursery)
                with trio.move_on_after(WAIT_SECONDS):
                    await self._answered.wait()
                if anew or published != self._resolved:
                    published = dict(self._resolved)
                    self._publish(published)
                with trio.move_on_at(due):
                    await self._changed.wait()

    def ask(self, nursery: trio.Nursery) -> None:
        """Ask for each name once, in tasks of *nursery*, unless its addresses are remembered, or it is asked for."""
        for name in self._resolved.keys() - self._wanted.keys():
            del self._resolved[name]
        self._last = {key: last for key, last in self._last.items() if key[0] in self._wanted}
        self._problems = {name: problem for name, problem in self._problems.items() if name in self._wanted}
        for name, namespace in sorted(self._wanted.items()):
            if name in self._asked:
                continue
            known = {qtype: self._upstream.answer_at_once(name, qtype, namespace) for qtype in ADDRESS_SIZES}
            answers = {qtype: said for qtype, said in known.items() if said is not None and not said.failed}
            if len(answers) == len(known):  # no task for what is remembered
                self._take_in(name, answers)
                continue
            if not self._asked:
                self._answered = trio.Event()
            self._asked.add(name)
            nursery.start_soon(self._ask, name, namespace, answers)

    @property
    def resolved(self) -> Mapping[str, ResolvedHost]:
        """The names that have addresses."""
        return self._resolved

    async def _ask(self, name: str, namespace: str, answers: dict[int, UpstreamAnswer]) -> None:
        """Complete the *answers* about a name, and take them in."""

        async def ask(qtype: int) -> None:
            answers[qtype] = await self._upstream.find(name, qtype, namespace)

        limit = self._limits.setdefault(namespace, trio.CapacityLimiter(AT_ONCE))
        async with limit, trio.open_nursery() as nursery:
            for qtype in ADDRESS_SIZES.keys() - answers.keys():
                nursery.start_soon(ask, qtype)
        if name in self._wanted:
            self._take_in(name, answers)
        self._asked.remove(name)
        if not self._asked:
            self._answered.set()

    def _take_in(self, name: str, answers: Mapping[int, UpstreamAnswer]) -> None:
        """Take in what the upstream says about a name, by type: a type that fails changes nothing for the other."""
        now, addresses, ttls = trio.current_time(), list[bytes](), dict[int, int]()
        for qtype, size in ADDRESS_SIZES.items():
            key, said = (name, qtype), answers[qtype]
            last = self._last.pop(key, None)
            if not said.failed:
                of_type = tuple(record.data.octets for record in said.records if isinstance(record.data, Opaque))
                ttl = min((record.ttl for record in (*said.aliases, *said.records)), default=0)
                last = _Answered(of_type, ttl, now) if of_type else None
            elif last is not None:
                stays = now - last.at < STALE_SECONDS
                last = replace(last, ttl=min(last.ttl, STALE_TTL)) if stays else None
            if last is not None:
                self._last[key] = last
                addresses += last.addresses
                ttls[size] = last.ttl
        failed = [qtype for qtype in ADDRESS_SIZES if answers[qtype].failed]
        self._note(name, failed, empty=not addresses)
        known, after = self._resolved.get(name), ResolvedHost(tuple(sorted(addresses)), ttls)
        if not addresses:
            self._resolved.pop(name, None)
        elif known is None or known.addresses != after.addresses or _differs(known.ttls, after.ttls):
            self._resolved[name] = after

    def _note(self, name: str, failed: Sequence[int], *, empty: bool) -> None:
        """Log a problem with a name when it begins or changes, and that it is over. *failed* are types."""
        problem = ""
        if failed or empty:
            types = " and ".join(type_name(qtype) for qtype in failed)
            why = f"the upstream does not answer for {types}" if failed else "it has no address"
            then = "it is in no answer until it is resolved" if empty else "the addresses that are known stay"
            problem = f"{why}; {then}"
        if problem == self._problems.get(name, ""):
            return
        if problem:
            self._problems[name] = problem
            log.warning("load balancer %s: %s", name, problem)
        else:
            del self._problems[name]
            log.info("load balancer %s: resolved", name)


async def resolved_once(upstream: Upstream, hosts: Mapping[str, str]) -> Mapping[str, ResolvedHost]:
    """Return the addresses of host names, those that *upstream* resolves in time."""
    resolver = IngressHosts(upstream, lambda _: None)
    resolver.want(hosts)
    async with trio.open_nursery() as nursery:
        resolver.ask(nursery)
    return resolver.resolved


def _differs(known: Mapping[int, int], now: Mapping[int, int]) -> bool:
    """Whether TTLs are worth publishing: they came anew, or what is known is too long by now."""
    return known.keys() != now.keys() or any(not 0 <= known[size] - ttl < STEP_SECONDS for size, ttl in now.items())
