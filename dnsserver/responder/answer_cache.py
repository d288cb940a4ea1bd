# SPDX-License-Identifier: Apache-2.0

"""The rendered answers that one responder remembers.

An answer holds as long as its source object (``Decision.source_object``). If that is a Service, the answer survives
a publication with the same Service object. If it is the snapshot, or None, the answer lasts until
the next publication. Nothing is ever invalidated by hand.

Answers without a source object are *unlimited*: clients can ask for any number of such names and types.
They share one bounded memory, so a flood of them displaces no other answer.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any

from msgspec import Struct, field

from dnsserver.answers.decision import EndpointNames
from dnsserver.answers.services import zones_of
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.names import Zone
from locator.bounded_map import BoundedMap
from locator.model import Location
from locator.state.snapshot import CompiledService, Snapshot, SourceObject

MAX_UNLIMITED = 16 << 20  # octets of unlimited answers: most are about names that do not exist
MAX_KEY_TUPLES = 256  # tuples of label keys, each with the values of every location
MAX_LOCATIONS = 16_384  # for each tuple: a large cluster has 5,000 nodes
MAX_ANSWERS = 1024  # to one question, by the client's values
MAX_DIRECT = MAX_ANSWERS // 2  # of them by all of the client's values; at most this many displace no shared answer
MAX_QUESTIONS = 16  # for each Service and address: types times zones, with room

OTHER = "*"  # stands for any value that matches no endpoint; no label has this value

Values = tuple[object, ...]  # whether the client is known, and its values of some label keys
DistinguishingValues = tuple[frozenset[str | None], ...]  # for each of these keys, those that can match an endpoint

# What the cache has for a question: one answer for all clients, or what selects one of several.
Remembered = RenderedAnswer | tuple[Mapping[Location, Values], Mapping[object, RenderedAnswer], "DependentAnswers"]


class DependentAnswers:
    """The answers to one question that depend on the client's values of the label keys ``client_keys``.

    *distinguishing* returns the values that can match an endpoint (``Constraint.distinguishing_values``). All clients
    with other values share one answer: in a large cluster, most nodes have no endpoint of a Service.
    """

    __slots__ = ("_answers", "_distinguishing", "_find_distinguishing", "_values", "client_keys")

    def __init__(
        self,
        client_keys: tuple[str, ...],
        distinguishing: Callable[[], DistinguishingValues],
        values: BoundedMap[Location, Values],
    ) -> None:
        self.client_keys = client_keys
        self._find_distinguishing = distinguishing
        # Maps each distinguishing value, and None, to itself; empty before a second client.
        self._distinguishing: Sequence[dict[Any, Any]] = ()
        self._values = values
        self._answers: BoundedMap[object, RenderedAnswer] = BoundedMap(MAX_ANSWERS)

    @property
    def remembered(self) -> Remembered:
        """The two dictionaries of a hot look-up (location -> values, values -> answer), and this object."""
        return self._values.recent, self._answers.recent, self

    def get(self, location: Location) -> RenderedAnswer | None:
        """Return the answer for a client at *location*, None if it is not remembered."""
        values = self.values_at(location)
        return self._answers.get(values) or self.shared(values)

    def shared(self, values: Values) -> RenderedAnswer | None:
        """Return the answer for all clients that have the same distinguishing values, None if it is not remembered."""
        if not self._distinguishing:
            distinguishing = self._find_distinguishing()
            self._distinguishing = (
                {True: True, False: False},
                *({value: value for value in (None, *known)} for known in distinguishing),
            )
            # Room for the answer of each endpoint, by values and by share key, in each generation.
            self._answers.resize(MAX_ANSWERS + 4 * sum(map(len, distinguishing)))
        answer = self._answers.get(self._distinguishing_of(values))
        if answer is None or answer.error is not None:  # the text of an error is about the client's own values
            return None
        if len(self._answers.recent) < MAX_DIRECT:
            self._answers[values] = answer  # the next time, the hot look-up finds it
        return answer

    def put(self, location: Location, share_key: object, render: Callable[[], RenderedAnswer]) -> RenderedAnswer:
        """Remember and return the answer for clients with the same distinguishing values as *location*.

        Clients with an equal *share_key* share one answer. If it is None, the answer is only for clients with the same
        values.
        """
        values = self.values_at(location)
        if share_key is None:
            answer = self._answers[values] = render()
            return answer
        known = self._answers.get(share_key)
        answer = render() if known is None else known
        self._answers[share_key] = self._answers[
            self._distinguishing_of(values) if self._distinguishing else values
        ] = answer
        return answer

    def values_at(self, location: Location) -> Values:
        """Return whether *location* is known, and its values of the ``client_keys``."""
        values = self._values.get(location)
        if values is None:
            values = self._values[location] = (location.known, *map(location.client_value, self.client_keys))
        return values

    def all(self) -> Iterable[RenderedAnswer]:
        """Return every remembered answer."""
        return self._answers.values()

    def _distinguishing_of(self, values: Values) -> Values:
        """Return *values*, with OTHER for those that match no endpoint."""
        return tuple(map(dict.get, self._distinguishing, values, repeat(OTHER)))


class ZonalAnswers(Struct):
    """The topology zones that a Service has endpoints in, and the answers to names that prefer any other.

    A client can write any number of such names; all in one DNS zone, which SRV targets end in, have the same answer.
    """

    zones: frozenset[str]
    others: defaultdict[Zone, dict[int, RenderedAnswer]] = field(default_factory=partial(defaultdict, dict))
    """By DNS zone and type."""


class _ServiceAnswers:
    """The answers and endpoint names of one Service, as it was compiled."""

    __slots__ = ("answers", "names", "source_object", "zonal")

    def __init__(self, source_object: SourceObject) -> None:
        self.source_object = source_object
        self.answers: dict[bytes, Remembered] = {}
        self.names: EndpointNames | None = None
        self.zonal: ZonalAnswers | None = None


class AnswerCache:
    """The answers of one responder, by the octets of the question (case folded).

    ``current`` and ``unlimited`` are plain dictionaries for the hot look-up, and always the same
    objects. A question that is in neither may still be remembered: ``recall`` finds it.
    """

    def __init__(self) -> None:
        self.current: dict[bytes, Remembered] = {}
        self._unlimited: BoundedMap[bytes, RenderedAnswer] = BoundedMap(MAX_UNLIMITED, attrgetter("weight"))
        self.unlimited: Mapping[bytes, Remembered] = self._unlimited.recent
        self._snapshot: Snapshot | None = None
        self._serial = b""
        self._of_service: dict[str, _ServiceAnswers] = {}  # by the Service's ``cache_key``
        self._cache_keys: BoundedMap[bytes, str] = BoundedMap(MAX_QUESTIONS)  # question -> the key of its Service
        self._values: BoundedMap[tuple[str, ...], BoundedMap[Location, Values]] = BoundedMap(MAX_KEY_TUPLES)

    def publish(self, snapshot: Snapshot) -> None:
        """Keep only the answers that also hold for *snapshot*."""
        self.current.clear()
        self._unlimited.clear()
        self._snapshot = snapshot
        self._serial = struct.pack("!I", snapshot.serial & 0xFFFFFFFF)
        services = len(snapshot.services) + len(snapshot.federated) + len(snapshot.imported)
        self._cache_keys.resize(2 * MAX_QUESTIONS * (services + len(snapshot.addresses.places) + 64))
        if len(self._of_service) > 2 * services + 64:  # most of those are gone
            self._of_service = {
                key: entry for key, entry in self._of_service.items() if snapshot.holds(entry.source_object)
            }

    def recall(self, question: bytes) -> Remembered | None:
        """Return what the cache has for a question, including answers from before this snapshot.

        Case folding changes the type's octets, too: types 65 to 90 share an entry with 97 to 122.
        topodns has no records of these types itself, and asks an upstream for both or for neither, so one
        entry serves both.
        """
        entry = self._of_service.get(self._cache_keys.get(question) or "")
        if entry is not None and self._is_current(entry):
            remembered = entry.answers.get(question)
            if remembered is not None:
                answers = remembered[2].all() if isinstance(remembered, tuple) else (remembered,)
                for answer in answers:
                    answer.stamp(self._serial)
                self.current[question] = remembered
                return remembered
        return self._unlimited.get(question)

    def keep(
        self,
        question: bytes,
        render: Callable[[], RenderedAnswer],
        *,
        source_object: SourceObject | Snapshot,
        location: Location,
        client_keys: tuple[str, ...],
        distinguishing: Callable[[], DistinguishingValues],
        share_key: object = None,
    ) -> RenderedAnswer:
        """Render the answer to a question, remember it with its *source_object*, and return it.

        *client_keys* are those of the decision. *location* is the client's. *distinguishing* and *share_key* are those
        of ``DependentAnswers``, and matter only if there are *client_keys*.
        """
        answers_by_question = self.current
        if not isinstance(source_object, Snapshot):
            entry = self._entry(source_object)
            answers_by_question = entry.answers
            self._cache_keys[question] = source_object.cache_key
            if question not in self.current:  # its answers may be from before this snapshot
                self.recall(question)
        if not client_keys:
            answers_by_question[question] = answer = render()
            return answer
        remembered = answers_by_question.get(question)
        if isinstance(remembered, tuple):
            answers = remembered[2]
        else:
            answers = DependentAnswers(client_keys, distinguishing, self._values_of(client_keys))
            answers_by_question[question] = answers.remembered
        return answers.put(location, share_key, render)

    def source_object_of(self, question: bytes) -> SourceObject | None:
        """Return the Service that a remembered answer belongs to, None if it belongs to none."""
        entry = self._of_service.get(self._cache_keys.get(question) or "")
        return (
            entry.source_object if entry is not None and self._is_current(entry) and question in entry.answers else None
        )

    def keep_unlimited(self, question: bytes, answer: RenderedAnswer) -> None:
        """Remember an answer without a source object, which is the same for all clients."""
        self._unlimited[question] = answer

    def names_of(self, source_object: SourceObject, make: Callable[[SourceObject], EndpointNames]) -> EndpointNames:
        """Return the names of a Service's endpoints; *make* computes them the first time."""
        entry = self._entry(source_object)
        if entry.names is None:
            entry.names = make(source_object)
        return entry.names

    def zonal(self, compiled: CompiledService, key: str) -> ZonalAnswers:
        """Return what is remembered of the zonal names of a Service; *key* is their label key."""
        entry = self._entry(compiled)
        if entry.zonal is None:
            entry.zonal = ZonalAnswers(zones_of(compiled, key))
        return entry.zonal

    def _entry(self, source_object: SourceObject) -> _ServiceAnswers:
        key = source_object.cache_key
        entry = self._of_service.get(key)
        if entry is None or entry.source_object is not source_object:
            entry = self._of_service[key] = _ServiceAnswers(source_object)
        return entry

    def _is_current(self, entry: _ServiceAnswers) -> bool:
        return self._snapshot is not None and self._snapshot.holds(entry.source_object)

    def _values_of(self, client_keys: tuple[str, ...]) -> BoundedMap[Location, Values]:
        values = self._values.get(client_keys)
        if values is None:
            values = self._values[client_keys] = BoundedMap(MAX_LOCATIONS)
        return values
