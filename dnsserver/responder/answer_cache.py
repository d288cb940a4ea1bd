"""Rendered answers, remembered by one responder for as long as all that they were made from stays the same.

An answer hangs on a Service, on the whole snapshot, or on nothing (a name of which there is no
end: one that does not exist, say). A Service's answers are found again after a publication if the
Service is still the same object. The others are forgotten then. Nothing is ever invalidated by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping

from dnsserver.answers.decision import EndpointNames
from dnsserver.message.rendering import RenderedAnswer
from locator.bounded_map import BoundedMap
from locator.model import Location
from locator.state.snapshot import CompiledService, Snapshot

MAX_ENDLESS = 16 << 20  # octets of answers about names of which there is no end: most do not exist
MAX_TERMS = 256  # lists of label keys for which the clients' values are remembered
MAX_LOCATIONS = 16_384  # remembered for each of them: the nodes of a large cluster, and as many again
MAX_PLACES = 1024  # answers to one question by the client's values
MAX_QUESTIONS = 16  # remembered for each Service and address: types times zones, with room

Values = tuple[object, ...]  # whether the client is known, and its values of some label keys

# What is remembered of a question: one answer for everybody, or ...
Remembered = RenderedAnswer | tuple[Mapping[Location, Values], Mapping[object, RenderedAnswer], "DependentAnswers"]


class DependentAnswers:
    """The answers to one question that depend on where the client is.

    ``terms`` are the label keys that matter.
    """

    __slots__ = ("_answers", "_values", "terms")

    def __init__(self, terms: tuple[str, ...], values: BoundedMap[Location, Values]) -> None:
        self.terms = terms
        self._values = values
        self._answers: BoundedMap[object, RenderedAnswer] = BoundedMap(MAX_PLACES)

    @property
    def remembered(self) -> Remembered:
        """Itself behind the two dictionaries that a hot look-up needs: location -> values -> answer."""
        return self._values.recent, self._answers.recent, self

    def get(self, location: Location) -> RenderedAnswer | None:
        """Return the answer for a client at *location*, None if none is remembered."""
        return self._answers.get(self._values_at(location))

    def put(self, location: Location, same: object, render: Callable[[], RenderedAnswer]) -> RenderedAnswer:
        """Remember what *render* makes for clients with the values that *location* has, and return it.

        Clients for which *same* is equal and not None share one answer, and one rotation.
        """
        found = self._answers.get(same) if same is not None else None
        if found is None:
            found = render()
            if same is not None:
                self._answers[same] = found
        self._answers[self._values_at(location)] = found
        return found

    def all(self) -> Iterable[RenderedAnswer]:
        """Return every answer."""
        return self._answers.values()

    def _values_at(self, location: Location) -> Values:
        values = self._values.get(location)
        if values is None:
            values = self._values[location] = (location.known, *map(location.labels.get, self.terms))
        return values


class _ServiceAnswers:
    """What is remembered of one Service as it was compiled."""

    __slots__ = ("answers", "compiled", "names")

    def __init__(self, compiled: CompiledService) -> None:
        self.compiled = compiled
        self.answers: dict[bytes, Remembered] = {}
        self.names: EndpointNames | None = None


class AnswerCache:
    """What one responder remembers, by the octets of the question (case folded).

    ``current`` and ``endless`` are the plain dictionaries that a hot look-up needs, always the
    same objects; what they lack, ``recall`` may still find.
    """

    def __init__(self) -> None:
        self.current: dict[bytes, Remembered] = {}
        self._endless: BoundedMap[bytes, RenderedAnswer] = BoundedMap(MAX_ENDLESS, lambda answer: answer.weight)
        self.endless: Mapping[bytes, Remembered] = self._endless.recent
        self._services: Mapping[str, CompiledService] = {}
        self._serial = b""
        self._of_service: dict[str, _ServiceAnswers] = {}  # by the Service's key
        self._of_question: BoundedMap[bytes, _ServiceAnswers] = BoundedMap(MAX_QUESTIONS)
        self._values: BoundedMap[tuple[str, ...], BoundedMap[Location, Values]] = BoundedMap(MAX_TERMS)

    def publish(self, snapshot: Snapshot) -> None:
        """Remember nothing but what holds for *snapshot*, too."""
        self.current.clear()
        self._endless.clear()
        self._services = services = snapshot.services
        self._serial = struct.pack("!I", snapshot.serial & 0xFFFFFFFF)
        self._of_question.resize(2 * MAX_QUESTIONS * (len(services) + len(snapshot.addresses.places) + 64))
        if len(self._of_service) > 2 * len(services) + 64:  # most of those are gone
            self._of_service = {key: known for key, known in self._of_service.items() if key in services}

    def recall(self, question: bytes) -> Remembered | None:
        """Return what is remembered of a question, from before this snapshot, too.

        Folding reaches the type, too: 65 to 90 fall together with 97 to 122. No type of either
        range has records in what is served, so both get the same NODATA.
        """
        known = self._of_question.get(question)
        if known is not None and self._is_current(known):
            remembered = known.answers.get(question)
            if remembered is not None:
                answers = remembered[2].all() if isinstance(remembered, tuple) else (remembered,)
                for answer in answers:
                    answer.stamp(self._serial)
                self.current[question] = remembered
                return remembered
        return self._endless.get(question)

    def keep(
        self,
        question: bytes,
        render: Callable[[], RenderedAnswer],
        *,
        hangs_on: CompiledService | Snapshot | None,
        location: Location,
        terms: tuple[str, ...],
        same: object = None,
    ) -> RenderedAnswer:
        """Remember what *render* makes of a decision about a question, and return it.

        *hangs_on* holds all that the decision was made from, None if there is no end of such names.
        *terms* are the label keys on whose values at the client's *location* the answer depends; for
        *same* see ``DependentAnswers.put``.
        """
        if hangs_on is None:
            answer = render()
            if not terms:
                self._endless[question] = answer
            return answer
        memory = self.current
        if isinstance(hangs_on, CompiledService):
            known = self._known(hangs_on)
            memory = known.answers
            self._of_question[question] = known
        if not terms:
            memory[question] = answer = render()
            return answer
        remembered = memory.get(question)
        if isinstance(remembered, tuple):
            answers = remembered[2]
        else:
            answers = DependentAnswers(terms, self._values_of(terms))
            memory[question] = answers.remembered
        return answers.put(location, same, render)

    def names_of(self, compiled: CompiledService, make: Callable[[CompiledService], EndpointNames]) -> EndpointNames:
        """Return the names of a Service's endpoints, which *make* makes when they are asked for first."""
        known = self._known(compiled)
        if known.names is None:
            known.names = make(compiled)
        return known.names

    def _known(self, compiled: CompiledService) -> _ServiceAnswers:
        key = compiled.service.key
        known = self._of_service.get(key)
        if known is None or known.compiled is not compiled:
            if known is not None:
                known.answers.clear()  # a question that is not asked again may still lead there
            known = self._of_service[key] = _ServiceAnswers(compiled)
        return known

    def _is_current(self, known: _ServiceAnswers) -> bool:
        return self._services.get(known.compiled.service.key) is known.compiled

    def _values_of(self, terms: tuple[str, ...]) -> BoundedMap[Location, Values]:
        values = self._values.get(terms)
        if values is None:
            values = self._values[terms] = BoundedMap(MAX_LOCATIONS)
        return values
