"""Resolves the targets of ExternalName Services outside the zones, by asking upstream name servers.

This is the only module that imports dnspython. An upstream cannot do harm: every look-up has a
deadline, a reply that cannot be used counts as a failure, and all memory is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import dns.asyncbackend
import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.nameserver
import dns.rdatatype
import dns.resolver
import trio
from cachetools import TLRUCache
from msgspec import Struct
from msgspec.structs import replace

from dnsserver.message.edns import UDP_SIZE
from dnsserver.message.records import Host, Opaque, Record
from dnsserver.message.wire import CNAME
from dnsserver.metrics.counters import Counts
from dnsserver.names import labels_of
from dnsserver.settings.values import DNS_PORT, ListenAddress
from locator.ip import address_text, parse_address

log = logging.getLogger(__name__)

LOOKUP_SECONDS = 1.8  # for a whole look-up: forwarders such as CoreDNS stop waiting after 2 s
MAX_LOOKUPS = 256  # in flight, each with a socket of its own
MAX_WAITING = 1024  # queries; more get the aliases alone, at once
MAX_REMEMBERED = 1024  # answers
MAX_RECORDS, MAX_OCTETS = 256, 16384  # of one answer; a larger one is a failure, not cut (RFC 2181, section 9)

# The most seconds for which an answer is remembered: long enough to spare the upstream, which
# remembers longer, and short enough that a corrected name works soon.
LONGEST, LONGEST_NEGATIVE = 300.0, 30.0
FAILURE_SECONDS = 5.0  # for which a failure is remembered, and no query waits; at least 1 s (RFC 9520, section 3.2)


class NoServers(Exception):
    """A resolv.conf names no usable server. The message names the file and the reason."""


class Found(Struct, frozen=True):
    """The records of a name: CNAMEs first, in order, then those of the type; None if the look-up failed."""

    records: tuple[Record, ...] | None


class _Known(Struct):
    """A remembered answer: when it came, and until when it holds, by trio's clock.

    ``records`` have the TTLs of then, None after a failure. ``aged`` are the records as last
    returned, with the TTLs of ``age`` seconds later.
    """

    records: tuple[Record, ...] | None
    since: float
    until: float
    aged: tuple[Record, ...] | None = None
    age: int = 0


class _Lookup:
    """A look-up in flight that several queries may wait for. If it ends without an answer, it was cancelled."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.answer: _Known | None = None


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
    """The name servers for names outside the zones, asked in the order given until one answers."""

    most_sockets = MAX_LOOKUPS  # open at a time

    def __init__(self, servers: Sequence[ListenAddress], counts: Counts) -> None:
        self._counts = counts
        self._resolver = _resolver(servers)
        self._backend = dns.asyncbackend.get_backend("trio")
        self._known: TLRUCache[tuple[str, int], _Known] = TLRUCache(
            MAX_REMEMBERED, lambda _, known, __: known.until, timer=trio.current_time
        )
        self._in_flight: dict[tuple[str, int], _Lookup] = {}
        self._waiting = 0

    def answer_at_once(self, target: str, qtype: int) -> Found | None:
        """Return what can be said without waiting, None if ``find`` must be awaited.

        That is a remembered answer, its TTLs counted down, or a failure if too many queries wait.
        """
        known = self._known.get((target, qtype))
        if known is not None:
            self._counts.upstream["remembered"] += 1
            return Found(_aged(known))
        is_new = (target, qtype) not in self._in_flight
        if self._waiting >= MAX_WAITING or (is_new and len(self._in_flight) >= MAX_LOOKUPS):
            self._counts.upstream["refused"] += 1
            return Found(None)
        return None

    async def find(self, target: str, qtype: int) -> tuple[Record, ...] | None:
        """Return the CNAMEs from *target* on, in order, then its records of a type; None if the look-up failed.

        A name that does not exist is an answer: the CNAMEs that lead to it, or no records. Names
        are in lower case and have no final dot. Never raises, and takes less than 2 s.
        """
        found = self.answer_at_once(target, qtype)
        if found is not None:
            return found.records
        self._waiting += 1
        try:
            known = await self._join((target, qtype), trio.current_time() + LOOKUP_SECONDS)
        finally:
            self._waiting -= 1
        records = None if known is None else known.records
        self._counts.upstream["failed" if records is None else "answered"] += 1
        return records

    async def _join(self, key: tuple[str, int], deadline: float) -> _Known | None:
        """Wait for the look-up in flight, or start one; start again if it is cancelled (its connection is closed)."""
        while (lookup := self._in_flight.get(key)) is not None:
            with trio.move_on_at(deadline) as waiting:
                await lookup.ended.wait()
            if lookup.answer is not None or waiting.cancelled_caught:
                return lookup.answer
        lookup = self._in_flight[key] = _Lookup()
        try:
            lookup.answer = await self._look_up(*key, deadline)
            self._known[key] = lookup.answer
            return lookup.answer
        finally:
            del self._in_flight[key]
            lookup.ended.set()

    async def _look_up(self, target: str, qtype: int, deadline: float) -> _Known:
        """Ask the upstream and read its response. Every error is a failure, remembered for ``FAILURE_SECONDS``."""
        try:
            with trio.fail_at(deadline):
                response = await self._response(dns.name.Name((*labels_of(target), b"")), qtype)
            records, seconds = _read(response)
        except (dns.exception.DNSException, trio.TooSlowError, OSError, ValueError) as error:
            log.debug("upstream: %s, type %d: %r", target, qtype, error)
            records, seconds = None, FAILURE_SECONDS
        except Exception:  # an error of one look-up must not end the server
            self._counts.failures["upstream"] += 1
            log.exception("upstream: %s, type %d could not be looked up", target, qtype)
            records, seconds = None, FAILURE_SECONDS
        now = trio.current_time()
        return _Known(records, now, now + seconds)

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


def _read(response: dns.message.QueryMessage) -> tuple[tuple[Record, ...], float]:
    """Return the records of a response, and for how many seconds to remember them.

    Raises DNSException, and ValueError if the response cannot be passed on.
    """
    if response.flags & dns.flags.TC:
        raise ValueError("truncated, also over TCP")
    chain = response.resolve_chaining()
    records = [
        Record(_text(rrset.name), CNAME, rrset.ttl, Host(_text(next(iter(rrset)).target))) for rrset in chain.cnames
    ]
    if chain.answer is not None:
        owner, rtype, ttl = _text(chain.answer.name), int(chain.answer.rdtype), chain.answer.ttl
        # Uncompressed: compression pointers are valid only in the upstream's own message.
        records += [Record(owner, rtype, ttl, Opaque(rdata.to_wire() or b"")) for rdata in chain.answer]
    elif not records and response.answer:
        raise ValueError("records of another name")
    octets = sum(len(record.data.octets) for record in records if isinstance(record.data, Opaque))
    if len(records) > MAX_RECORDS or octets > MAX_OCTETS:
        raise ValueError(f"{len(records)} records of {octets} octets")
    return tuple(records), min(float(chain.minimum_ttl), LONGEST_NEGATIVE if chain.answer is None else LONGEST)


def _text(name: dns.name.Name) -> str:
    """Return a name as text in lower case. Raises ValueError if a label is not ASCII or contains a dot."""
    labels = tuple(label.lower() for label in name.labels[:-1])
    text = b".".join(labels).decode("ascii")
    if labels_of(text) != labels:
        raise ValueError(f"{name}: a label contains a dot")
    return text


def _aged(known: _Known) -> tuple[Record, ...] | None:
    """Return remembered records with the rest of their TTLs; within one second, the same tuple."""
    age = int(trio.current_time() - known.since)
    if not age or known.records is None:
        return known.records
    if known.aged is None or known.age != age:
        known.aged, known.age = tuple(replace(record, ttl=record.ttl - age) for record in known.records), age
    return known.aged
