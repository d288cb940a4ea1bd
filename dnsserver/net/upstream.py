"""Names elsewhere: what the target of an ExternalName Service has, asked of other name servers.

The only import of dnspython. Nothing that such a server says or leaves unsaid may do harm: every
look-up ends in time, what cannot be used counts as not found, and there is a bound for everything.
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

from dnsserver.message.edns import MAX_UDP_REPLY
from dnsserver.message.records import Host, Opaque, Record
from dnsserver.message.wire import CNAME
from dnsserver.metrics.counters import Counts
from dnsserver.names import labels_of
from dnsserver.settings.values import DNS_PORT, ListenAddress
from locator.ip import address_text, parse_address

log = logging.getLogger(__name__)

LOOKUP_SECONDS = 1.8  # in all: forwarders such as CoreDNS give a server up after 2 s
MAX_LOOKUPS = 256  # in flight, each with a socket of its own
MAX_WAITING = 1024  # queries; more are told at once that nothing was found
MAX_KNOWN = 1024  # answers remembered
MAX_RECORDS, MAX_OCTETS = 256, 16384  # of one answer; a larger one is not passed on, and not cut (RFC 2181, section 9)

# Seconds for which an answer is remembered at most: long enough to spare the upstream, which
# remembers longer, and short enough that nobody waits for a mended name.
LONGEST, LONGEST_NEGATIVE = 300.0, 30.0
FAILURE_SECONDS = 5.0  # for which a failure is remembered and nobody waits; 1 s at least (RFC 9520, section 3.2)


class NoServers(Exception):
    """A resolv.conf that names no server that can be asked: which, and why."""


class Found(Struct, frozen=True):
    """What a name has: CNAMEs on the way, in order, and the records; None where nothing could be found out."""

    records: tuple[Record, ...] | None


class _Known(Struct):
    """An answer as it came, when that was, and until when it holds, by trio's clock.

    ``aged`` is the answer as it was last handed out, ``age`` seconds after it came.
    """

    records: tuple[Record, ...] | None
    since: float
    until: float
    aged: tuple[Record, ...] | None = None
    age: int = 0


class _Lookup:
    """A look-up in flight, which others may join. Without an answer at its end, its asker gave up."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.answer: _Known | None = None


def servers_in(resolv_conf: str) -> tuple[ListenAddress, ...]:
    """Return the name servers that a file in the form of resolv.conf names. Raises NoServers."""
    resolver = dns.resolver.Resolver(configure=False)
    try:
        resolver.read_resolv_conf(resolv_conf)
        # A link-local address is of use only with its interface, which a packed address cannot name.
        texts = [str(each) for each in resolver.nameservers if "%" not in str(each)]
        servers = tuple(ListenAddress(parse_address(text), DNS_PORT) for text in texts)
    except (dns.exception.DNSException, OSError, ValueError) as error:
        raise NoServers(f"{resolv_conf}: {error}") from None
    if not servers:
        raise NoServers(f"{resolv_conf}: only link-local name servers")
    return servers


class Upstream:
    """Name servers that know the rest of the world, asked in the order given until one answers."""

    most_sockets = MAX_LOOKUPS  # open at a time

    def __init__(self, servers: Sequence[ListenAddress], counts: Counts) -> None:
        self._counts = counts
        self._resolver = _resolver(servers)
        self._backend = dns.asyncbackend.get_backend("trio")
        self._known: TLRUCache[tuple[str, int], _Known] = TLRUCache(
            MAX_KNOWN, lambda _, known, __: known.until, timer=trio.current_time
        )
        self._flying: dict[tuple[str, int], _Lookup] = {}
        self._waiting = 0

    def recall(self, target: str, qtype: int) -> Found | None:
        """Return what need not be waited for; None: ask.

        That is what is remembered, its TTLs counted down, and nothing at all when too many wait.
        """
        known = self._known.get((target, qtype))
        if known is not None:
            self._counts.upstream["remembered"] += 1
            return Found(_aged(known))
        alone = (target, qtype) not in self._flying
        if self._waiting >= MAX_WAITING or (alone and len(self._flying) >= MAX_LOOKUPS):
            self._counts.upstream["refused"] += 1
            return Found(None)
        return None

    async def find(self, target: str, qtype: int) -> tuple[Record, ...] | None:
        """Return the CNAMEs from *target* on, in order, and its records of a type; None if nothing could be found out.

        A name that does not exist has no records, which is an answer: whatever CNAMEs led to it.
        Names are in lower case and have no final dot. Never raises, and takes less than 2 s.
        """
        found = self.recall(target, qtype)
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
        """Wait for a look-up in flight, or begin one; if its asker gives up (a closed connection), begin again."""
        while (lookup := self._flying.get(key)) is not None:
            with trio.move_on_at(deadline) as waiting:
                await lookup.ended.wait()
            if lookup.answer is not None or waiting.cancelled_caught:
                return lookup.answer
        lookup = self._flying[key] = _Lookup()
        try:
            lookup.answer = await self._look_up(*key, deadline)
            self._known[key] = lookup.answer
            return lookup.answer
        finally:
            del self._flying[key]
            lookup.ended.set()

    async def _look_up(self, target: str, qtype: int, deadline: float) -> _Known:
        """Ask, and read what comes; whatever goes wrong is a failure, which is remembered for a while."""
        try:
            with trio.fail_at(deadline):
                response = await self._response(dns.name.Name((*labels_of(target), b"")), qtype)
            records, seconds = _read(response)
        except (dns.exception.DNSException, trio.TooSlowError, OSError, ValueError) as error:
            log.debug("upstream: %s, type %d: %r", target, qtype, error)
            records, seconds = None, FAILURE_SECONDS
        except Exception:  # the wall around one look-up
            self._counts.failures["upstream"] += 1
            log.exception("upstream: %s, type %d could not be looked up", target, qtype)
            records, seconds = None, FAILURE_SECONDS
        now = trio.current_time()
        return _Known(records, now, now + seconds)

    async def _response(self, name: dns.name.Name, qtype: int) -> dns.message.QueryMessage:
        """Return the first response that says yes or no. Raises DNSException."""
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
    # Each server gets its turn, and a single one a second try: datagrams are lost, and an answer
    # that took a resolver long is there when it is asked again.
    resolver.timeout = LOOKUP_SECONDS / max(2, len(servers))
    resolver.use_edns(0, 0, MAX_UDP_REPLY)
    return resolver


def _read(response: dns.message.QueryMessage) -> tuple[tuple[Record, ...], float]:
    """Return what a response has for its question, and for how long it may be remembered.

    Raises ValueError where it has something that cannot be passed on, and DNSException.
    """
    if response.flags & dns.flags.TC:
        raise ValueError("cut off")
    chain = response.resolve_chaining()
    records = [
        Record(_text(rrset.name), CNAME, rrset.ttl, Host(_text(next(iter(rrset)).target))) for rrset in chain.cnames
    ]
    if chain.answer is not None:
        owner, rtype, ttl = _text(chain.answer.name), int(chain.answer.rdtype), chain.answer.ttl
        # Without compression, which could only point into the message that it came in.
        records += [Record(owner, rtype, ttl, Opaque(rdata.to_wire() or b"")) for rdata in chain.answer]
    elif not records and response.answer:
        raise ValueError("records of another name")
    octets = sum(len(record.data.octets) for record in records if isinstance(record.data, Opaque))
    if len(records) > MAX_RECORDS or octets > MAX_OCTETS:
        raise ValueError(f"{len(records)} records of {octets} octets")
    return tuple(records), min(float(chain.minimum_ttl), LONGEST_NEGATIVE if chain.answer is None else LONGEST)


def _text(name: dns.name.Name) -> str:
    """Return a name as text in lower case. Raises ValueError if it has octets that no name of ours has."""
    labels = tuple(label.lower() for label in name.labels[:-1])
    text = b".".join(labels).decode("ascii")
    if labels_of(text) != labels:
        raise ValueError(f"{name} has a dot in a label")
    return text


def _aged(known: _Known) -> tuple[Record, ...] | None:
    """Return remembered records with what is left of their TTLs: within a second, the very same."""
    age = int(trio.current_time() - known.since)
    if not age or known.records is None:
        return known.records
    if known.aged is None or known.age != age:
        known.aged, known.age = tuple(replace(record, ttl=record.ttl - age) for record in known.records), age
    return known.aged
