# SPDX-License-Identifier: Apache-2.0

"""What was answered in the last 24 hours, by zone and by Service: minutes for an hour, then ten minutes. Pure.

What is counted goes into cells of columns, one column for each minute and one for each ten minutes. A column that is
new has room for what is known, and an old one is thrown away whole, so nothing goes through all Services but a reader.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from dnsserver.metrics.counters import MAX_SERVICES, OTHER

MINUTE, TEN_MINUTES = 60.0, 600.0
MINUTES, TENS = 61, 145  # columns: an hour and a day, and the minute, or the ten minutes, that have just begun
ZONE, SERVICE = "zone", "service"  # what a row is about
# Rows: Services, and zones, of which a cluster has some dozens. Further zones count together, as "other".
MAX_ROWS = {SERVICE: MAX_SERVICES, ZONE: 128}
MEASURES = ANSWERS, CROSSING, UNMET, SPILLED = range(4)
# All columns when they are full: 1,129 rows of 4 numbers of 8 octets, 206 times. The numbers are floats, since of an
# answer with endpoints in several zones a part crosses.
MAX_OCTETS = (sum(MAX_ROWS.values()) + 1) * len(MEASURES) * 8 * (MINUTES + TENS)  # 7.4 million


class Answered(Struct, frozen=True):
    """Numbers of answers: those with endpoints, how many of these lead to another zone, unmet and spilled ones.

    An answer with endpoints in several zones crosses as often as a client does that takes each zone as often.
    """

    answers: float = 0.0
    crossing: float = 0.0
    unmet: float = 0.0
    spilled: float = 0.0

    @property
    def crossing_share(self) -> float:
        """Which part of the answers with endpoints leads to another zone; 0 if there are none."""
        return self.crossing / self.answers if self.answers else 0.0


class _Columns:
    """A ring of columns, each for so many *seconds*. The last one has just begun."""

    def __init__(self, number: int, seconds: float, began: float) -> None:
        self.seconds = seconds
        self._number, self._began, self._last = number, began, 0
        self.columns: list[array[float]] = [array("d")]

    def turn(self, now: float, cells: int) -> None:
        """Begin the columns that are due at *now*, the last one with so many *cells*."""
        last = int((now - self._began) // self.seconds)
        for _ in range(min(last - self._last, self._number)):
            self.columns.append(array("d"))
        del self.columns[: -self._number]
        self._last = max(last, self._last)
        self.make_room(cells)

    def make_room(self, cells: int) -> None:
        """Have so many cells in the last column."""
        self.columns[-1].extend([0.0] * (cells - len(self.columns[-1])))

    def empty(self, cell: int, cells: int) -> None:
        """Have nothing in so many cells from one on, in no column."""
        for column in self.columns:
            if cell < len(column):
                column[cell : cell + cells] = array("d", [0.0] * cells)

    def is_over(self, now: float) -> bool:
        """Whether the last column is over."""
        return int((now - self._began) // self.seconds) > self._last

    def whole(self) -> Sequence[array[float]]:
        """Return the columns but for the last one, which is not over."""
        return self.columns[:-1]

    def covered(self, columns: int, now: float) -> float:
        """Return how many seconds the last *columns* have seen until *now*."""
        return (min(columns, len(self.columns)) - 1) * self.seconds + (now - self._began - self._last * self.seconds)


class History:
    """What was answered since it *began*, in seconds on some clock that never goes back."""

    def __init__(self, began: float) -> None:
        self.began = began
        self._rows: dict[str, dict[str, int]] = {sort: {} for sort in MAX_ROWS}
        self._size = 0
        self._free: list[int] = []  # rows of what was forgotten, with what was counted then
        self._minutes, self._tens = _Columns(MINUTES, MINUTE, began), _Columns(TENS, TEN_MINUTES, began)
        self._rings = self._minutes, self._tens
        self._minute = self._minutes.columns[-1]  # the ten minutes get it when it is over

    def cell(self, sort: str, name: str, measure: int) -> int:
        """Return the number of the cell with a measure of a zone or a Service (*sort*); further zones share a row."""
        rows = self._rows[sort]
        if name not in rows and len(rows) >= MAX_ROWS[sort]:
            name = OTHER
        if name not in rows:
            rows[name] = self._empty_row()
        return rows[name] * len(MEASURES) + measure

    def forget(self, sort: str, names: Iterable[str]) -> None:
        """Forget what was answered about some zones or Services. The numbers of their cells may be those of others."""
        self._free += [self._rows[sort].pop(name) for name in names]

    def turn(self, now: float) -> None:
        """Count what is added from now on as answered at *now*."""
        if self._minutes.is_over(now):
            ten = self._tens.columns[-1]
            for cell, times in enumerate(self._minute):
                if times:
                    ten[cell] += times
        for ring in self._rings:
            ring.turn(now, self._size * len(MEASURES))
        self._minute = self._minutes.columns[-1]

    def add(self, cells: Iterable[tuple[int, float]], times: float) -> None:
        """Add *times* to some cells, each by its share."""
        minute = self._minute
        for cell, share in cells:
            minute[cell] += times * share

    def recent(self, sort: str, now: float, minutes: int = 5) -> tuple[float, Mapping[str, Answered]]:
        """Return how many seconds were seen of the last *minutes*, the present one among them, and what was answered.

        Rows without any answer are left out.
        """
        columns = self._minutes.columns[-minutes:]
        sums = map(sum, zip(*map(self._filled, columns), strict=True))
        rows = list(zip(*[sums] * len(MEASURES), strict=True))
        found = {name: Answered(*rows[row]) for name, row in self._rows[sort].items() if any(rows[row])}
        return self._minutes.covered(minutes, now), found

    def hour(self, sort: str, name: str, measure: int) -> list[float]:
        """Return answers a second in the minutes of the last hour that are over, the oldest first."""
        return self._rates(self._minutes, sort, name, measure)

    def day(self, sort: str, name: str, measure: int) -> list[float]:
        """Return answers a second in the ten minutes of the last day that are over, the oldest first."""
        return self._rates(self._tens, sort, name, measure)

    def names(self, sort: str) -> Iterator[str]:
        """Yield the zones or Services that were ever answered about."""
        return iter(self._rows[sort])

    @property
    def octets(self) -> int:
        """How many octets the columns take."""
        return sum(column.itemsize * len(column) for ring in self._rings for column in ring.columns)

    def _empty_row(self) -> int:
        """Return a row that nothing was counted in, if possible one that was used before."""
        row = self._free.pop() if self._free else self._size
        self._size = max(self._size, row + 1)
        for ring in self._rings:
            ring.make_room(self._size * len(MEASURES))
            ring.empty(row * len(MEASURES), len(MEASURES))
        return row

    def _rates(self, ring: _Columns, sort: str, name: str, measure: int) -> list[float]:
        row = self._rows[sort].get(name)
        if row is None:
            return [0.0 for _ in ring.whole()]
        cell = row * len(MEASURES) + measure
        return [column[cell] / ring.seconds if cell < len(column) else 0.0 for column in ring.whole()]

    def _filled(self, column: array[float]) -> array[float]:
        """Return a column with 0 for rows that are younger."""
        return column + array("d", bytes(column.itemsize * (self._size * len(MEASURES) - len(column))))
