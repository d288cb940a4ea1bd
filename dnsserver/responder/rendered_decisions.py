"""From a Decision to its records as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dnsserver import names
from dnsserver.answers.decision import ADDRESS_SIZES, LOOKED_UP, Authority, Decision
from dnsserver.message import wire
from dnsserver.message.packing import Packer, serial_offset
from dnsserver.message.records import Record
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.message.rotation import Rotations
from dnsserver.message.wire import Query
from dnsserver.metrics.counters import Counts, Tally, counted_type

MAX_ANSWERS = 4096  # records rendered of one answer: more do not fit into any message

# Types that get a place beside the Service; 65,000 others are one NODATA each and share a small memory.
REMEMBERED_TYPES = LOOKED_UP | {wire.CNAME, wire.ANY}


class DecisionRenderer:
    """Renders decisions, each of which is counted by *counts*. *chance* draws the order of the records."""

    def __init__(self, authority: Authority, counts: Counts, chance: Callable[[], float]) -> None:
        self._authority = authority
        self._counts = counts
        self._rotations = Rotations(chance)

    def render(self, query: Query, decision: Decision) -> RenderedAnswer:
        """Return a decision about a query as bytes; of more records than any message holds, some of them."""
        selection = decision.selection if decision.answers or decision.terms else None
        tier = selection.key if selection is not None and selection.key is not None else ""
        outcome = selection.outcome if selection is not None else ""
        answers, glue = decision.answers, decision.additional
        if len(answers) > MAX_ANSWERS:  # they are cut again, so glue never goes with them
            start = self._rotations.window(len(answers))
            answers, glue = (*answers[start:], *answers[:start])[:MAX_ANSWERS], ()
        elsewhere = decision.elsewhere is not None and self._authority.looks_up(query.qtype)
        packer = Packer(query.labels)
        aliases = packer.aliases(decision.aliases)
        soa = packer.records(decision.authority)
        return RenderedAnswer(
            flags=wire.QR | wire.AA | decision.rcode,
            answers=packer.records(answers),
            aliases=aliases,
            authority=soa,
            glue=packer.glue(glue, answers),
            serial_at=serial_offset(soa[0]) if soa else 0,
            dependent=bool(decision.terms),
            error=decision.extended_error,
            elsewhere=decision.aliases if elsewhere else (),
            tally=self._counts.tally(Tally(counted_type(decision.qtype), decision.rcode, outcome, tier)),
            rotations=self._rotations,
        )

    def completed(self, alias: RenderedAnswer, labels: Sequence[bytes], found: Sequence[Record]) -> RenderedAnswer:
        """Return an alias with what was *found* at its target: more aliases, then records of the type."""
        packer = Packer(labels)
        return RenderedAnswer(
            flags=alias.flags,
            aliases=packer.aliases([*alias.elsewhere, *(record for record in found if record.rtype == wire.CNAME)]),
            answers=packer.records(record for record in found if record.rtype != wire.CNAME),
            tally=alias.tally,
            rotations=self._rotations,
        )


def is_lasting(decision: Decision) -> bool:
    """Whether an answer is worth a place of its own: there are many more names and types without records than with."""
    if decision.qtype not in REMEMBERED_TYPES or decision.meaning is None:
        return False
    has_records = bool(decision.answers or decision.aliases or decision.terms)
    common = decision.qtype in ADDRESS_SIZES and decision.service is not None
    return has_records or common or decision.meaning.shape == names.SERVICE


def likeness(decision: Decision) -> object:
    """Return a key that is equal for clients who get the same endpoints for the same reason; None if unlike all."""
    selection = decision.selection
    if selection is None or decision.extended_error is not None:  # whose text differs by client
        return None
    return tuple(map(id, selection.endpoints)), selection.outcome, selection.key
