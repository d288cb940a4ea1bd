# SPDX-License-Identifier: Apache-2.0

"""The rendered answers that one responder remembers, by question.

An answer holds as long as its source object (``Decision.source_object``). If that is a Service, the answer survives a
publication with the same Service object. If it is the snapshot, the answer lasts until the next publication. Nothing is
ever invalidated by hand. Nothing here refers to a snapshot but the current one: a name that is asked for rarely must
not keep an old one in memory.

Of names and types whose answers have no source object, clients can make up any number. These answers share one bounded
memory, so a flood of them displaces no other answer, and last until the next publication, too.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from operator import attrgetter
from typing import Any

from cachetools import FIFOCache
from msgspec import Struct, field

from dnsserver.answers.decision import Decision, EndpointNames
from dnsserver.answers.services import zones_of
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.names import Zone
from dnsserver.responder.rendered import distinguishing_values, share_key
from locator.model import NODE_SLOT, Location
from locator.state.snapshot import AnyService, CompiledService, Snapshot
from locator.topology.selection import Value

MAX_WITHOUT_SOURCE = 16 << 20  # octets of answers without a source object: most are about names that do not exist
MAX_ANSWERS = 1024  # to one question, by the client's values; and some for each endpoint
MAX_OWN = MAX_ANSWERS // 2  # of them by all of a client's values, which are found first
SPARE_ENTRIES = 64  # of questions and Services, before what is gone is looked for

OTHER = "*"  # stands for any value that matches no endpoint; no label has this value


Values = tuple[object, ...]  # whether the client is known, and its values of some label keys


class CachedAnswers:
    """What is remembered of one question.

    ``service`` is the Service that its answers were made from, None if they hold until the next publication.
    ``answer`` is the one that all clients get; None if it depends on their values of the label keys ``client_keys``.
    All clients with values that match no endpoint then share one answer: in a large cluster, most nodes have no
    endpoint of a Service.
    """

    __slots__ = (
        "_answers", "_distinguishing", "_find_distinguishing", "_limit", "answer", "client_keys", "holds_for",
        "service",
    )  # fmt: skip

    def __init__(self, service: AnyService | None, publication: int) -> None:
        self.service = service
        self.holds_for = publication  # the number of the last one for which the answers were found to hold
        self.answer: RenderedAnswer | None = None
        self.client_keys: tuple[str, ...] = ()
        self._answers: dict[object, RenderedAnswer] = {}
        self._find_distinguishing: Callable[[], Sequence[Mapping[Value, Value]]] = tuple
        # For each key, these values, each mapped to the one that stands for it; empty before a second client asks.
        self._distinguishing: Sequence[dict[Any, Any]] = ()
        self._limit = MAX_ANSWERS

    @property
    def weight(self) -> int:
        """The approximate memory use in octets of the answer that all clients get."""
        return self.answer.weight if self.answer is not None else 0

    def find(self, location: Location) -> RenderedAnswer | None:
        """Return the answer for a client at *location*, None if it is not remembered."""
        if self.answer is not None:
            return self.answer
        values = self.values_at(location)
        return self._answers.get(values) or self._shared(values)

    def values_at(self, location: Location) -> Values:
        """Return whether *location* is known, and its values of the ``client_keys``."""
        return (location.known, *map(location.client_value, self.client_keys))

    def alike(self, location: Location) -> Iterator[Values]:
        """Yield the values of clients on nodes with other slots that get the same answer as those at *location*.

        There are few answers to a question about a balanced Service, and up to 256 slots.
        """
        if location.slot is None or self.client_keys[:1] != (NODE_SLOT,):
            return
        slots = self._values_that_matter()[1]
        known, _, *others = self.values_at(location)
        for slot, standing in slots.items():
            if standing == slots[location.slot] and slot != location.slot:
                yield known, slot, *others

    def put(self, location: Location, decision: Decision, render: Callable[[], RenderedAnswer]) -> RenderedAnswer:
        """Remember and return the answer for a client at *location*, rendered unless another client has the same."""
        if not decision.client_keys:
            self.answer = render()
            return self.answer
        if not self.client_keys:
            self.client_keys, self._find_distinguishing = decision.client_keys, distinguishing_values(decision)
        values, same = self.values_at(location), share_key(decision)
        if same is None:  # the answer is only for clients with the same values
            answer = render()
        else:
            answer = self._answers.get(same) or render()
            self._put(same, answer)
            values = self._distinguishing_of(values) if self._distinguishing else values
        self._put(values, answer)
        return answer

    def stamp(self, serial: bytes) -> None:
        """Write a serial of four octets into the SOA records."""
        for answer in self._answers.values() if self.answer is None else (self.answer,):
            answer.stamp(serial)

    def _shared(self, values: Values) -> RenderedAnswer | None:
        """Return the answer for all clients that have the same distinguishing values, None if it is not remembered."""
        self._values_that_matter()
        answer = self._answers.get(self._distinguishing_of(values))
        if answer is None or answer.error is not None:  # the text of an error is about the client's own values
            return None
        if len(self._answers) < MAX_OWN:
            self._answers[values] = answer
        return answer

    def _values_that_matter(self) -> Sequence[dict[Any, Any]]:
        if not self._distinguishing:
            distinguishing = self._find_distinguishing()
            self._distinguishing = (
                {True: True, False: False},
                *({None: None, **values} for values in distinguishing),
            )
            # Room for the answer of each endpoint, by values and by share key, and as much for others.
            self._limit = MAX_ANSWERS + 4 * sum(map(len, distinguishing))
        return self._distinguishing

    def _distinguishing_of(self, values: Values) -> Values:
        """Return *values*, each as the one that stands for it, OTHER for those that match no endpoint."""
        return tuple(map(dict.get, self._distinguishing, values, repeat(OTHER)))

    def _put(self, key: object, answer: RenderedAnswer) -> None:
        if len(self._answers) >= self._limit:
            for oldest in list(islice(self._answers, self._limit // 2)):
                del self._answers[oldest]
        self._answers[key] = answer


class ZonalAnswers(Struct):
    """The topology zones that a Service has endpoints in, and the answers to names that prefer any other.

    A client can write any number of such names; all in one DNS zone, which SRV targets end in, have the same answer.
    """

    zones: frozenset[str]
    others: defaultdict[Zone, dict[int, RenderedAnswer]] = field(default_factory=partial(defaultdict, dict))
    """By DNS zone and type."""


class _OfService:
    """What is remembered of one Service, besides answers."""

    __slots__ = ("names", "service", "zonal")

    def __init__(self, service: AnyService) -> None:
        self.service = service
        self.names: EndpointNames | None = None
        self.zonal: ZonalAnswers | None = None


class AnswerCache:
    """The answers of one responder, by the octets of the question, case folded.

    Case folding changes the type's octets, too: types 65 to 90 share an entry with 97 to 122. topodns has no records of
    these types itself, and asks an upstream for both or for neither, so one entry serves both.
    """

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._publications = 0
        self._serial = b""
        self._by_question: dict[bytes, CachedAnswers] = {}
        self._without_source: FIFOCache[bytes, CachedAnswers] = FIFOCache(MAX_WITHOUT_SOURCE, attrgetter("weight"))
        self._of_service: dict[str, _OfService] = {}  # by the Service's ``cache_key``
        self._sweep_at = SPARE_ENTRIES

    def publish(self, snapshot: Snapshot) -> None:
        """Keep only the answers that also hold for *snapshot*. ``find`` drops what is asked for and does not."""
        self._without_source.clear()
        self._snapshot = snapshot
        self._publications += 1
        self._serial = struct.pack("!I", snapshot.serial & 0xFFFFFFFF)
        if len(self._by_question) + len(self._of_service) >= self._sweep_at:  # perhaps much of it is gone
            self._by_question = {key: entry for key, entry in self._by_question.items() if self._holds(entry.service)}
            self._of_service = {key: entry for key, entry in self._of_service.items() if snapshot.holds(entry.service)}
            self._sweep_at = 2 * (len(self._by_question) + len(self._of_service)) + SPARE_ENTRIES

    def find(self, question: bytes) -> CachedAnswers | None:
        """Return what is remembered of a question, None if nothing is."""
        entry = self._by_question.get(question)
        if entry is None:
            return self._without_source.get(question)
        if entry.holds_for != self._publications:
            if not self._holds(entry.service):
                del self._by_question[question]
                return None
            entry.stamp(self._serial)
            entry.holds_for = self._publications
        return entry

    def keep(
        self, question: bytes, location: Location, decision: Decision, render: Callable[[], RenderedAnswer]
    ) -> tuple[RenderedAnswer, CachedAnswers]:
        """Render the answer to a question for clients at *location*; return it, and what is remembered of the question.

        The decision has a source object.
        """
        entry = self.find(question)
        service = None if isinstance(decision.source_object, Snapshot) else decision.source_object
        if entry is None or entry.service is not service:
            entry = self._by_question[question] = CachedAnswers(service, self._publications)
        return entry.put(location, decision, render), entry

    def keep_without_source(self, question: bytes, answer: RenderedAnswer) -> CachedAnswers:
        """Remember an answer without a source object, which is the same for all clients."""
        entry = CachedAnswers(None, self._publications)
        entry.answer = answer
        if answer.weight <= MAX_WITHOUT_SOURCE // 2:
            self._without_source[question] = entry
        return entry

    def names_of(self, service: AnyService, make: Callable[[AnyService], EndpointNames]) -> EndpointNames:
        """Return the names of a Service's endpoints; *make* computes them the first time."""
        entry = self._service(service)
        if entry.names is None:
            entry.names = make(service)
        return entry.names

    def zonal(self, compiled: CompiledService, key: str) -> ZonalAnswers:
        """Return what is remembered of the zonal names of a Service; *key* is their label key."""
        entry = self._service(compiled)
        if entry.zonal is None:
            entry.zonal = ZonalAnswers(zones_of(compiled, key))
        return entry.zonal

    def _service(self, service: AnyService) -> _OfService:
        key = service.cache_key
        entry = self._of_service.get(key)
        if entry is None or entry.service is not service:
            entry = self._of_service[key] = _OfService(service)
        return entry

    def _holds(self, service: AnyService | None) -> bool:
        """Whether what was made from *service* before a publication still holds."""
        return service is not None and self._snapshot is not None and self._snapshot.holds(service)
