# SPDX-License-Identifier: Apache-2.0

"""Resolves names outside the zones that aliases lead to, by asking upstream name servers.

An upstream cannot do harm: every look-up has a deadline, a reply that cannot be used counts as a failure, and all
memory is bounded.

A namespace whose targets are never answered cannot harm others either. Each has a share of the look-ups, of the queries
that wait for them, and of the remembered answers: the namespace of the Service in which a chain of aliases begins.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from math import inf
from typing import TypeVar

import dns.asyncbackend
import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.nameserver
import dns.rdatatype
import dns.resolver
import dns.rrset
import trio
from msgspec import Struct
from msgspec.structs import replace

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.message import wire
from dnsserver.message.edns import UDP_SIZE
from dnsserver.message.records import Host, Opaque, Record
from dnsserver.metrics.counters import Counts
from dnsserver.names import labels_of
from dnsserver.settings.values import DNS_PORT, ListenAddress
from locator.control.fair_shares import FairTurns, Shares, Turn
from locator.ip import address_text, parse_address

log = logging.getLogger(__name__)

T = TypeVar("T")
_Key = tuple[str, int]  # a name and a type

LOOKUP_SECONDS = 1.8  # for a look-up, and for all of one query: forwarders such as CoreDNS stop waiting after 2 s
# For its turn; then it is refused. At least as long is left for the look-up: time enough to ask a single server once.
TURN_SECONDS = LOOKUP_SECONDS / 2
MAX_LOOKUPS = 256  # in flight, each with a socket of its own
# Of one namespace: if the upstream takes 50 ms, enough for 320 new names a second. Ten namespaces whose targets are
# never answered leave enough for as much in each other one.
LOOKUPS_EACH = 16
MAX_WAITING = 1024  # queries; more get SERVFAIL at once
# Of one namespace. One name that many ask for has many queries that wait for one look-up, each time its TTL is over.
WAITING_EACH = 256
MAX_REMEMBERED = 1024  # answers
EXPLANATIONS = ""  # in the place of a namespace: they have a share of their own, whatever they are about
MAX_RECORDS, MAX_OCTETS = 256, 16384  # of one answer; a larger one is a failure, not cut (RFC 2181, section 9)

# The most seconds for which an answer is remembered: long enough to spare the upstream, which
# remembers longer, and short enough that a corrected name works soon.
LONGEST, LONGEST_NEGATIVE = 300.0, 30.0
FAILURE_SECONDS = 5.0  # for which a failure is remembered, and no query waits; at least 1 s (RFC 9520, section 3.2)


class NoServers(Exception):
    """A resolv.conf names no usable server. The message names the file and the reason."""


class _Remembered(Struct):
    """A remembered answer: when it came, and until when it holds, by trio's clock.

    ``answer`` has the TTLs of then; ``aged`` is the answer as last returned, with the TTLs of ``age`` seconds later.
    """

    answer: UpstreamAnswer
    since: float
    until: float
    aged: UpstreamAnswer | None = None
    age: int = 0


class _Lookup:
    """A look-up that several queries may wait for: one of them asks, once its turn has come.

    ``changed`` is set when there is an answer, and when the query that asked has ended without one.
    """

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.turn = Turn(self.begun.set)
        self.changed = trio.Event()
        self.is_asked = False
        self.answer: _Remembered | None = None


class _Memory:
    """Answers by name and type. When it is full, the namespace that fills most of it gives up its oldest answer."""

    def __init__(self) -> None:
        self._known: dict[_Key, tuple[str, _Remembered]] = {}
        self._keys: dict[str, dict[_Key, None]] = {}  # by namespace, the oldest first

    def get(self, key: _Key) -> _Remembered | None:
        """Return the answer, None if there is none that still holds."""
        _, known = self._known.get(key, ("", None))
        return known if known is not None and trio.current_time() < known.until else None

    def put(self, key: _Key, known: _Remembered, namespace: str) -> None:
        """Remember an answer that *namespace* has asked for, whoever gets it later."""
        self._forget(key)
        if len(self._known) >= MAX_REMEMBERED:
            _, keys = max(self._keys.items(), key=lambda item: len(item[1]))
            self._forget(next(iter(keys)))
        self._known[key] = namespace, known
        self._keys.setdefault(namespace, {})[key] = None

    def _forget(self, key: _Key) -> None:
        if key in self._known:
            namespace, _ = self._known.pop(key)
            del self._keys[namespace][key]
            if not self._keys[namespace]:
                del self._keys[namespace]


def servers_in(resolv_conf: str) -> tuple[ListenAddress, ...]:
    """Return the name servers in a file in the format of resolv.conf. Raises NoServers."""
    resolver = dns.resolver.Resolver(configure=False)
    try:
        resolver.read_resolv_conf(resolv_conf)
        # A link-local address needs its interface, which a packed address cannot hold.
        addresses = [str(server) for server in resolver.nameservers if "%" not in str(server)]
        servers = tuple(ListenAddress(parse_address(address), DNS_PORT) for address in addresses)
    except (dns.exception.DNSException, OSError, ValueError) as error:
        raise NoServers(f"{resolv_conf}: {error}") from None
    if not servers:
        raise NoServers(f"{resolv_conf}: only link-local name servers")
    return servers


class Upstream:
    """The name servers for names outside the zones, asked in the order given until one answers.

    One namespace has at most ``LOOKUPS_EACH`` look-ups in flight and ``WAITING_EACH`` queries that wait, and in both no
    more than it leaves free. Further look-ups wait for ``TURN_SECONDS``, further queries are refused at once. Whoever
    joins a look-up that another namespace has begun needs no turn, and whoever joins one that waits does not wait for
    the turn of that namespace alone.
    """

    most_sockets = MAX_LOOKUPS  # open at a time

    def __init__(self, servers: Sequence[ListenAddress], counts: Counts) -> None:
        self._counts = counts
        self._resolver = _resolver(servers)
        self._backend = dns.asyncbackend.get_backend("trio")
        self._memory = _Memory()
        self._lookups: dict[_Key, _Lookup] = {}  # those without an answer
        self._turns = FairTurns(most=MAX_LOOKUPS, each=LOOKUPS_EACH)
        self._waiting = Shares(most=MAX_WAITING, each=WAITING_EACH)

    def answer_at_once(self, target: str, qtype: int, namespace: str) -> UpstreamAnswer | None:
        """Return what can be said without waiting, None if ``find`` must be awaited.

        That is a remembered answer, its TTLs counted down, or a failure if too many queries of *namespace* wait.
        """
        known = self._memory.get((target, qtype))
        if known is not None:
            self._counts.upstream["remembered"] += 1
            return _aged(known)
        return None if self._waiting.has_room(namespace) else self._refused(namespace)

    async def find(self, target: str, qtype: int, namespace: str, *, deadline: float = inf) -> UpstreamAnswer:
        """Return what the upstream says about a name and a type, for a query about a Service of *namespace*.

        Names are in lower case and have no final dot. Never raises. Takes less than 2 s, and ends at *deadline* by
        trio's clock.
        """
        found = self.answer_at_once(target, qtype, namespace)
        if found is not None:
            return found
        self._waiting.take(namespace)
        try:
            with trio.move_on_at(deadline):
                found = await self._wait_for((target, qtype), namespace)
        finally:
            self._waiting.give_back(namespace)
        if found is None:
            self._counts.upstream["failed"] += 1
            return failure(f"no upstream answered in time for {target}")
        return found

    def for_one_query(self) -> Callable[[str, int, str], Awaitable[UpstreamAnswer]]:
        """Return ``find`` for the look-ups of one query, which together may take as long as one."""
        left = inf  # the first ends by itself: its failure is one

        async def find(target: str, qtype: int, namespace: str) -> UpstreamAnswer:
            nonlocal left
            began = trio.current_time()
            said = await self.find(target, qtype, namespace, deadline=began + left)
            left = min(left, LOOKUP_SECONDS) - (trio.current_time() - began)
            return said

        return find

    async def find_all(
        self, compute: Callable[[Callable[[str], UpstreamAnswer | None]], Awaitable[T]], qtype: int
    ) -> T:
        """Return what *compute* returns once it knows all names that it asks for, by the ``outside`` of ``resolve``.

        It is called again after each look-up.
        """
        said: dict[str, UpstreamAnswer] = {}
        missing: list[str] = []
        find = self.for_one_query()

        def outside(target: str) -> UpstreamAnswer | None:
            if target not in said:
                missing.append(target)
            return said.get(target)

        while True:
            result = await compute(outside)
            if not missing:
                return result
            target = missing.pop()
            said[target] = await find(target, qtype, EXPLANATIONS)

    async def _wait_for(self, key: _Key, namespace: str) -> UpstreamAnswer | None:
        """Wait for a look-up's turn and its answer; None if the time is over."""
        began, lookup = trio.current_time(), self._lookups.setdefault(key, _Lookup())
        self._turns.want(lookup.turn, namespace)
        try:
            with trio.move_on_at(began + TURN_SECONDS):
                await lookup.begun.wait()
            if not lookup.begun.is_set():
                return self._refused(namespace)
            answer = await self._asked(key, lookup, began + LOOKUP_SECONDS)
            if answer is not None:
                self._counts.upstream["failed" if answer.failed else "answered"] += 1
            return answer
        finally:
            self._turns.leave(lookup.turn, namespace)
            if not lookup.turn.wanted_by and self._lookups.get(key) is lookup:
                del self._lookups[key]

    async def _asked(self, key: _Key, lookup: _Lookup, deadline: float) -> UpstreamAnswer | None:
        """Ask, or wait for the query that does; ask anew if that has ended without an answer. None at *deadline*."""
        while lookup.answer is None and lookup.is_asked:
            changed = lookup.changed
            with trio.move_on_at(deadline) as waiting:
                await changed.wait()
            if waiting.cancelled_caught:
                break
        if lookup.answer is None and not lookup.is_asked:
            lookup.is_asked = True
            try:
                lookup.answer = await self._look_up(*key, deadline)
                if lookup.answer.until > lookup.answer.since and lookup.turn.holder is not None:
                    self._memory.put(key, lookup.answer, lookup.turn.holder)
                del self._lookups[key]
                self._turns.end(lookup.turn)
            finally:
                lookup.is_asked = False
                lookup.changed.set()
                lookup.changed = trio.Event()
        return None if lookup.answer is None else lookup.answer.answer

    def _refused(self, namespace: str) -> UpstreamAnswer:
        """Count a query that is refused, and return that."""
        self._counts.upstream["refused"] += 1
        self._counts.refused_lookups.note(namespace)
        return _refused_lookup(namespace)

    async def _look_up(self, target: str, qtype: int, deadline: float) -> _Remembered:
        """Ask the upstream and read its response. Every error is a failure, remembered for ``FAILURE_SECONDS``.

        A look-up that ran out of time is not remembered if its wait for a turn, or another query, left it only part of
        the time.
        """
        began = trio.current_time()
        try:
            with trio.fail_at(deadline):
                response = await self._response(dns.name.Name((*labels_of(target), b"")), qtype)
            answer, seconds = _read(response)
        except (dns.exception.DNSException, trio.TooSlowError, OSError, ValueError) as error:
            log.debug("upstream: %s, type %d: %r", target, qtype, error)
            had_all = deadline - began > 0.9 * LOOKUP_SECONDS or not isinstance(error, trio.TooSlowError)
            answer, seconds = _failure_of(error, target), FAILURE_SECONDS if had_all else 0.0
        except Exception:  # an error of one look-up must not end the server
            self._counts.failures["upstream"] += 1
            log.exception("upstream: %s, type %d could not be looked up", target, qtype)
            answer, seconds = failure(f"{target} could not be looked up"), FAILURE_SECONDS
        now = trio.current_time()
        return _Remembered(answer, now, now + seconds)

    async def _response(self, name: dns.name.Name, qtype: int) -> dns.message.QueryMessage:
        """Return the first NOERROR or NXDOMAIN response. Raises DNSException."""
        try:
            answer = await self._resolver.resolve(
                name, dns.rdatatype.RdataType.make(qtype), raise_on_no_answer=False, search=False, backend=self._backend
            )
        except dns.resolver.NXDOMAIN as error:
            response: dns.message.QueryMessage = error.response(name)  # type: ignore[no-untyped-call]
            return response
        return answer.response


def _resolver(servers: Sequence[ListenAddress]) -> dns.asyncresolver.Resolver:
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = [
        dns.nameserver.Do53Nameserver(address_text(server.address), server.port) for server in servers
    ]
    resolver.lifetime = LOOKUP_SECONDS
    # Every server gets its share of the time, and a single one is asked twice: datagrams get lost, and
    # a resolver that was too slow the first time has the answer the second time.
    resolver.timeout = LOOKUP_SECONDS / max(2, len(servers))
    resolver.use_edns(0, 0, UDP_SIZE)
    return resolver


def failure(text: str, code: int = wire.EDE_NO_REACHABLE_AUTHORITY) -> UpstreamAnswer:
    """Return that a look-up failed, and why."""
    return UpstreamAnswer(wire.SERVFAIL, extended_error=(code, text))


@lru_cache(MAX_REMEMBERED)
def _refused_lookup(namespace: str) -> UpstreamAnswer:
    """Return that a look-up of a namespace was refused. It is one object, so that its replies can be remembered."""
    whose = f"namespace {namespace}" if namespace else "explanations"
    text = f"too many look-ups of {whose}: at most {LOOKUPS_EACH} at a time, and {WAITING_EACH} queries that wait"
    return failure(text, wire.EDE_NETWORK_ERROR)


def _failure_of(error: Exception, target: str) -> UpstreamAnswer:
    """Return that a look-up failed with an error.

    Servers that are silent or refuse leave no reachable authority; what a network or a reply that cannot be used
    prevents is a network error (RFC 8914, sections 4.23 and 4.24).
    """
    tried = error.kwargs.get("errors", ()) if isinstance(error, dns.exception.DNSException) else ()
    broken = any(
        isinstance(reason, Exception) and not isinstance(reason, dns.exception.Timeout) for _, _, _, reason, _ in tried
    )
    silent = isinstance(error, (trio.TooSlowError, dns.resolver.LifetimeTimeout, dns.resolver.NoNameservers))
    if silent and not broken:
        return failure(f"no upstream answers for {target}")
    return failure(f"the upstream cannot be asked for {target}", wire.EDE_NETWORK_ERROR)


def _read(response: dns.message.QueryMessage) -> tuple[UpstreamAnswer, float]:
    """Return what a response says, and for how many seconds to remember it.

    Raises DNSException, and ValueError if the response cannot be passed on.
    """
    if response.flags & dns.flags.TC:
        raise ValueError("truncated, also over TCP")
    chain = response.resolve_chaining()
    aliases = [
        Record(_text(rrset.name), wire.CNAME, rrset.ttl, Host(_text(next(iter(rrset)).target)))
        for rrset in chain.cnames
    ]
    records: list[Record] = []
    if chain.answer is not None:
        records = _records(chain.answer, chain.answer.ttl)
    elif not aliases and response.answer:
        raise ValueError("records of another name")
    octets = sum(len(record.data.octets) for record in records if isinstance(record.data, Opaque))
    if len(aliases) + len(records) > MAX_RECORDS or octets > MAX_OCTETS:
        raise ValueError(f"{len(records)} records of {octets} octets")
    soa: list[Record] = []
    for rrset in response.authority if chain.answer is None else ():
        if rrset.rdtype == dns.rdatatype.SOA and chain.canonical_name.is_subdomain(rrset.name):
            soa = _records(rrset, min(rrset.ttl, rrset[0].minimum))[:1]  # RFC 2308, section 3
    answer = UpstreamAnswer(int(response.rcode()), tuple(aliases), tuple(records), tuple(soa))
    return answer, min(float(chain.minimum_ttl), LONGEST_NEGATIVE if chain.answer is None else LONGEST)


def _records(rrset: dns.rrset.RRset, ttl: int) -> list[Record]:
    """Return an RRset as records. Names are uncompressed: pointers are valid only in the upstream's own message."""
    owner, rtype = "" if rrset.name == dns.name.root else _text(rrset.name), int(rrset.rdtype)
    return [Record(owner, rtype, ttl, Opaque(rdata.to_wire() or b"", rdata.to_text())) for rdata in rrset]


def _text(name: dns.name.Name) -> str:
    """Return a name as text in lower case. Raises ValueError if a label is not ASCII or contains a dot."""
    labels = tuple(label.lower() for label in name.labels[:-1])
    text = b".".join(labels).decode("ascii")
    if labels_of(text) != labels:
        raise ValueError(f"{name}: a label contains a dot")
    return text


def _aged(known: _Remembered) -> UpstreamAnswer:
    """Return a remembered answer with the rest of its TTLs; within one second, the same object."""
    age = int(trio.current_time() - known.since)
    if not age or known.answer.failed:
        return known.answer
    if known.aged is None or known.age != age:
        known.age, said = age, known.answer
        aliases, records, soa = (
            tuple(replace(record, ttl=record.ttl - age) for record in records)
            for records in (said.aliases, said.records, said.soa)
        )
        known.aged = replace(said, aliases=aliases, records=records, soa=soa)
    return known.aged
