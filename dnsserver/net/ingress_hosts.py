"""Resolves the host names of load balancers ahead of queries, so that answers to federated names need not wait.

A name is asked for again when its TTL is over. While it cannot be resolved, its last addresses stay for an hour.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from dnsserver.answers.decision import ADDRESS_SIZES
from dnsserver.message.records import Opaque, Record
from dnsserver.net.upstream import Upstream
from locator.federation.federating import ResolvedHost

log = logging.getLogger("topodns")

TICK_SECONDS = 1.0  # between looks at what is due, while there are names at all
STEP_SECONDS = 5  # by which a TTL falls behind before it is published anew
STALE_SECONDS = 3600.0  # for which the last addresses of a name stay; resolvers keep them for longer (RFC 8767)
STALE_TTL = 30  # seconds (RFC 8767, section 4)
AT_ONCE = 16  # queries

Answer = tuple[Record, ...] | None  # None: the upstream does not answer


class IngressHosts:
    """Keeps the addresses of host names up to date by *upstream*, and gives them to *publish* when they change."""

    def __init__(self, upstream: Upstream, publish: Callable[[Mapping[str, ResolvedHost]], None]) -> None:
        self._upstream, self._publish = upstream, publish
        self._wanted: frozenset[str] = frozenset()
        self._changed = trio.Event()
        self._resolved: dict[str, ResolvedHost] = {}
        self._since: dict[str, float] = {}  # when a name was last resolved
        self._failing: set[str] = set()

    def want(self, hosts: frozenset[str]) -> None:
        """Resolve these names from now on, and no others."""
        self._wanted = hosts
        self._changed.set()

    async def run(self) -> None:
        """Resolve for ever."""
        while True:
            changed = self._changed
            if not self._wanted:
                await changed.wait()
            if await self.resolve() or changed.is_set():
                self._publish(dict(self._resolved))
            if changed.is_set():
                self._changed = trio.Event()
            with trio.move_on_after(TICK_SECONDS):
                await self._changed.wait()

    async def resolve(self) -> bool:
        """Resolve each name once, unless its addresses are remembered; return whether something changed."""
        before, limit = dict(self._resolved), trio.CapacityLimiter(AT_ONCE)
        for name in self._resolved.keys() - self._wanted:
            del self._resolved[name]
        found: dict[str, dict[int, Answer]] = {name: {} for name in sorted(self._wanted)}
        async with trio.open_nursery() as nursery:
            for name, answers in found.items():
                for qtype in ADDRESS_SIZES:
                    nursery.start_soon(self._ask, name, qtype, answers, limit)
        for name, answers in found.items():
            self._take_in(name, answers)
        return before != self._resolved

    @property
    def resolved(self) -> Mapping[str, ResolvedHost]:
        """The names that have addresses."""
        return self._resolved

    async def _ask(self, name: str, qtype: int, answers: dict[int, Answer], limit: trio.CapacityLimiter) -> None:
        async with limit:
            answers[qtype] = await self._upstream.find(name, qtype)

    def _take_in(self, name: str, answers: Mapping[int, Answer]) -> None:
        """Take in what the upstream says about a name, by type."""
        failed, addresses, ttls = None in answers.values(), list[bytes](), dict[int, int]()
        for qtype, records in answers.items():
            of_type = [record.data.octets for record in records or () if isinstance(record.data, Opaque)]
            if records and of_type:
                addresses += of_type
                ttls[ADDRESS_SIZES[qtype]] = min(record.ttl for record in records)
        self._note(name, failed=failed, empty=not addresses)
        now, known = trio.current_time(), self._resolved.get(name)
        if failed and known is not None and now - self._since[name] < STALE_SECONDS:
            stale = {size: min(ttl, STALE_TTL) for size, ttl in known.ttls.items()}
            self._resolved[name] = ResolvedHost(known.addresses, stale)
            return
        self._since[name] = now
        after = ResolvedHost(tuple(sorted(addresses)), ttls)
        if not addresses:
            self._resolved.pop(name, None)
        elif known is None or known.addresses != after.addresses or _differs(known.ttls, after.ttls):
            self._resolved[name] = after

    def _note(self, name: str, *, failed: bool, empty: bool) -> None:
        """Log once that a name cannot be resolved, and that it can again."""
        if (failed or empty) == (name in self._failing):
            return
        if failed or empty:
            self._failing.add(name)
            why = "the upstream does not answer" if failed else "it has no address"
            log.warning("load balancer %s: %s; it is in no answer until it is resolved", name, why)
        else:
            self._failing.discard(name)
            log.info("load balancer %s: resolved", name)


async def resolved_once(upstream: Upstream, hosts: frozenset[str]) -> Mapping[str, ResolvedHost]:
    """Return the addresses of host names, those that *upstream* resolves in time."""
    resolver = IngressHosts(upstream, lambda _: None)
    resolver.want(hosts)
    await resolver.resolve()
    return resolver.resolved


def _differs(known: Mapping[int, int], now: Mapping[int, int]) -> bool:
    """Whether TTLs are worth publishing: they came anew, or what is known is too long by now."""
    return known.keys() != now.keys() or any(not 0 <= known[size] - ttl < STEP_SECONDS for size, ttl in now.items())
