# SPDX-License-Identifier: Apache-2.0

"""Renders Decisions as bytes, and says with what each is remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cachetools import FIFOCache

from dnsserver import names
from dnsserver.answers.decision import ADDRESS_SIZES, UPSTREAM_TYPES, Authority, Decision
from dnsserver.message import wire
from dnsserver.message.packing import Packer, serial_offset
from dnsserver.message.records import Record
from dnsserver.message.rendering import RenderedAnswer, ring
from dnsserver.metrics.counters import Counts, Tally, counted_type
from locator.model import ZONE
from locator.topology.selection import EMPTY, UNREADY, Value

MAX_RECORDS = 4096  # more do not fit into any message
MAX_NONEXISTENT = 1024  # answers that a name does not exist, by Service, length and type: some of each snapshot
SOA_LABELS = (b"dns", b"hostmaster")  # of the names in an SOA record, those right before the zone

# Types whose answers are remembered with their Service. The other 65,000 are NODATA and share one bounded memory.
REMEMBERED_TYPES = UPSTREAM_TYPES | {wire.CNAME, wire.ANY}


class DecisionRenderer:
    """Renders decisions. *counts* numbers their tallies."""

    def __init__(self, authority: Authority, counts: Counts) -> None:
        self._authority = authority
        self._counts = counts
        self._nonexistent: FIFOCache[object, RenderedAnswer] = FIFOCache(MAX_NONEXISTENT)

    def render(self, question: Sequence[bytes], decision: Decision) -> RenderedAnswer:
        """Return the answer to *question*, the queried name as labels in lower case, as bytes."""
        selection = decision.selection if decision.answers or decision.client_keys else None
        key = selection.key if selection is not None and selection.key is not None else ""
        outcome = UNREADY if decision.unready else selection.outcome if selection is not None else ""
        answers, spares = _rotating(decision.qtype, decision.answers, decision.spares)
        # A reply that will be cut has no additional records.
        addresses = decision.additional_records if len(answers) <= MAX_RECORDS else ()
        asks = decision.upstream is None and self._authority.asks_upstream_for(decision.qtype)
        authoritative = 0 if decision.rcode == wire.SERVFAIL else wire.AA
        packer = Packer(question)
        aliases = packer.aliases(decision.aliases)
        soa = packer.records(decision.authority_records)
        zones, service = _zones_of(decision), _service_of(decision)
        counts, qtype = self._counts, counted_type(decision.qtype)
        counted = service if counts.counts_services and (zones or outcome in EMPTY) else None
        tally = counts.tally(Tally(qtype, decision.rcode, outcome, key, zones, counted))
        return RenderedAnswer(
            flags=wire.QR | authoritative | decision.rcode,
            answers=packer.records(answers),
            spares=packer.records(spares),
            aliases=aliases,
            authority=soa,
            additional=packer.additional(addresses, answers, spares),
            serial_at=serial_offset(soa[0]) if soa else 0,
            dependent=bool(decision.client_keys),
            error=decision.extended_error,
            outside_target=_outside_target(decision) if asks else None,
            tally=tally,
            noted=counted in counts.services and counts.askers is not None,
            service="/".join(service) if service is not None else "",
            outcome=UNREADY if outcome == UNREADY else decision.outcome,
        )

    def render_without_source(self, question: Sequence[bytes], decision: Decision) -> RenderedAnswer:
        """Return what ``render`` does; for a name that does not exist, it may be the answer for another such name.

        Such a name matters only by its length, on which the pointers in the SOA record depend; and by its last label
        before the zone, if the record can point to that, too.
        """
        if decision.rcode != wire.NXDOMAIN or decision.source_object is not None or decision.aliases:
            return self.render(question, decision)
        (soa,) = decision.authority_records
        if question[-soa.name.count(".") - 2] in SOA_LABELS:
            return self.render(question, decision)
        key = sum(map(len, question)) + len(question), decision.qtype, soa, _service_of(decision), decision.unready
        answer = self._nonexistent.get(key)
        if answer is None:
            answer = self._nonexistent[key] = self.render(question, decision)
        return answer


def _outside_target(decision: Decision) -> tuple[str, str] | None:
    """Return the name outside the zones at which a decision ends, and the namespace in the question."""
    if decision.query_name is None or decision.outside_target is None:
        return None
    return decision.outside_target, decision.query_name.namespace


def _rotating(
    qtype: int, answers: Sequence[Record], spares: Sequence[Record]
) -> tuple[Sequence[Record], Sequence[Record]]:
    """Return the records of an answer that rotate, and those that always come after them in the same order.

    The names of an address do not rotate: programs take the first (``getnameinfo``).
    """
    return ((), answers) if qtype == wire.PTR else (ring(answers), spares)


def _zones_of(decision: Decision) -> frozenset[str]:
    """Return the zones of the endpoints that a decision answers with, "" for an endpoint whose zone is not known."""
    if decision.selection is None or not decision.answers:
        return frozenset()
    size = ADDRESS_SIZES.get(decision.qtype)  # None for SRV, which has both families
    return frozenset(
        located.location.value(ZONE) or ""
        for located in decision.selection.endpoints
        if size is None or any(len(address) == size for address in located.endpoint.addresses)
    )


def _service_of(decision: Decision) -> tuple[str, str] | None:
    """Return namespace and name of the Service of which a decision is, None if it is of none."""
    found = decision.federated or (decision.service.service if decision.service is not None else None)
    return (found.namespace, found.name) if found is not None else None


def belongs_to_source_object(decision: Decision) -> bool:
    """Whether an answer is remembered with its Service or snapshot.

    All others share the one bounded memory of ``AnswerCache``: clients can ask for any number of them.
    """
    if decision.qtype not in REMEMBERED_TYPES or decision.query_name is None:
        return False
    has_records = bool(decision.answers or decision.aliases or decision.client_keys)
    common = decision.qtype in ADDRESS_SIZES and (decision.service or decision.federated) is not None
    return has_records or common or decision.query_name.name_type in (names.SERVICE, names.FEDERATED_SERVICE)


def share_key(decision: Decision) -> object:
    """Return an equal key for clients who get the same endpoints for the same reason; None if they share nothing."""
    selection = decision.selection
    if selection is None or decision.extended_error is not None:  # its text differs by client
        return None
    if decision.federated is not None:  # its spares may differ, too
        records = (decision.answers, decision.spares, decision.additional_records)
        return records, selection.outcome, selection.key
    return tuple(map(id, selection.endpoints)), selection.outcome, selection.key


def distinguishing_values(decision: Decision) -> Callable[[], tuple[Mapping[Value, Value], ...]]:
    """Return a function that finds, for each client key of a decision, the values that matter (``Constraint``)."""
    if decision.federated is not None:
        return decision.federated.distinguishing_values
    service = decision.service
    if service is None:
        return tuple
    return partial(service.constraint(decision.declaration).distinguishing_values, service.endpoints)
