# SPDX-License-Identifier: Apache-2.0

"""The last decisions that left a client without endpoints, or passed it on for want of room, for who looks later. Pure.

A reply only has its event set aside. Every few seconds some of these become lines, those of the Services first of which
the fewest are kept, so that neither a flood nor a single Service pushes out what happened to others.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from dnsserver.tools.tap.lines import DECODER, TailLine
from dnsserver.tools.tap.listeners import is_outcome
from dnsserver.tools.tap.tap import TapEvent
from locator.ip import Network, is_within
from locator.printable import json_text
from locator.topology.selection import UNREADY, UNWANTED_OUTCOMES

MAX_KEPT = 1000
MAX_OCTETS = 4 << 20  # of all lines: one has 2,000, and more where many records were sent
MAX_LINE = MAX_OCTETS // 64  # octets: a line that is longer is not kept
MAX_PENDING, MAX_PENDING_EACH = 256, 4  # events between two looks: of all Services, and of one with one outcome
MAX_LINES = 24  # made at a look: about 5 milliseconds

Group = tuple[str, str]  # a Service (``namespace/name``) and an outcome


class PendingReplies:
    """The replies between two looks by which a client got nothing, or was passed on: ``Tap`` tells of them."""

    outcomes = (*UNWANTED_OUTCOMES, UNREADY)

    def __init__(self) -> None:
        self._events: defaultdict[Group, deque[TapEvent]] = defaultdict(lambda: deque(maxlen=MAX_PENDING_EACH))

    def on_event(self, event: TapEvent) -> None:
        """Note a reply; of one Service, the last ones."""
        answer = event.answered.answer
        assert answer is not None  # it has an outcome
        group = answer.service, answer.outcome
        if group in self._events or len(self._events) < MAX_PENDING // MAX_PENDING_EACH:
            self._events[group].append(event)

    def take(self, kept: Counter[Group]) -> list[TapEvent]:
        """Return some events since the last call, in the order of time: those first of which the fewest are *kept*."""
        groups, self._events = self._events, defaultdict(lambda: deque(maxlen=MAX_PENDING_EACH))
        taken: list[TapEvent] = []
        while groups and len(taken) < MAX_LINES:
            for group in sorted(groups, key=lambda group: (kept[group], group))[: MAX_LINES - len(taken)]:
                taken.append(groups[group].pop())
                if not groups[group]:
                    del groups[group]
        return sorted(taken, key=lambda event: event.time)


class _Line(Struct, frozen=True, gc=False):
    """A decision as JSON; ``number`` counts all of them, ``client`` is None if a forwarder named nobody."""

    number: int
    client: Network | None
    text: bytes


class KeptDecisions:
    """The lines, within bounds: beyond these, the oldest of the largest group goes.

    ``pending`` has the replies that may become lines.
    """

    def __init__(self) -> None:
        self.pending = PendingReplies()
        self._groups: dict[Group, deque[_Line]] = {}
        self._octets: Counter[Group] = Counter()
        self._number = 0

    @property
    def numbers(self) -> Counter[Group]:
        """How many lines there are by Service and outcome."""
        return Counter({group: len(lines) for group, lines in self._groups.items()})

    def keep(self, line: TailLine, client: Network | None) -> None:
        """Keep a line about the reply to a client."""
        text = json_text(line).encode(errors="replace")
        if line.service is None or len(text) > MAX_LINE:
            return
        outcome = line.outcome if line.outcome in UNWANTED_OUTCOMES else UNREADY
        group = f"{line.service.namespace}/{line.service.name}", outcome
        self._number += 1
        self._groups.setdefault(group, deque()).append(_Line(self._number, client, text))
        self._octets[group] += len(text)
        total = sum(map(len, self._groups.values()))
        while total > MAX_KEPT or self._octets.total() > MAX_OCTETS:
            total -= 1
            self._drop(max(self._octets, key=self._octets.__getitem__))

    def due(self) -> list[TapEvent]:
        """Return the replies since the last call of which lines are to be kept."""
        return self.pending.take(self.numbers)

    def decisions(
        self,
        service: str | None = None,
        outcome: str | None = None,
        *,
        client: Network | None = None,
        limit: int = MAX_KEPT,
    ) -> Sequence[TailLine]:
        """Return the last decisions about a Service, with an outcome, and for a client or network; newest last."""
        found = sorted(self._matching(service, outcome, client), key=lambda line: line.number)
        return [DECODER.decode(line.text) for line in found[-limit:]]

    def knows(self, service: str) -> bool:
        """Whether a decision about a Service is kept, which may be gone."""
        return any(known == service for known, _ in self._groups)

    def _matching(self, service: str | None, outcome: str | None, client: Network | None) -> Iterator[_Line]:
        for (about, how), lines in self._groups.items():
            if service in (None, about) and is_outcome(outcome, how):
                for line in lines:
                    if client is None or (line.client is not None and is_within(line.client, client)):
                        yield line

    def _drop(self, group: Group) -> None:
        lines = self._groups[group]
        self._octets[group] -= len(lines.popleft().text)
        if not lines:
            del self._groups[group], self._octets[group]
