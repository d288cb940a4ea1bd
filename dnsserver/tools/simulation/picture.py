# SPDX-License-Identifier: Apache-2.0

"""Draws who flows where, as SVG: zones of clients on the left, zones with the endpoints that they get on the right.

This module says what is drawn and where, in pixels; picture.svg is the template.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined, Template

from dnsserver.text import grouped, percent
from dnsserver.tools.simulation import IDLE
from dnsserver.tools.simulation.service import OVERLOADED, Simulated, described
from dnsserver.tools.simulation.text import constraint_text
from locator.model import ZONE
from locator.printable import cut, printable
from locator.topology.selection import LocatedEndpoint

WIDTH, MARGIN, GAP, ROW = 760, 16, 14, 20
CLIENTS_WIDTH, ENDPOINTS_WIDTH, MIN_HEIGHT = 170, 270, 44  # of a box
TITLE = 78  # the height of what stands above the boxes
MAX_DOMAINS, MAX_ENDPOINTS = 12, 8  # that are drawn; how many are left is said
MAX_PICTURES = 20  # Services in one file
WIDEST, THINNEST = 28.0, 1.5  # strokes, for all of the load and for hardly any
BESIDE = 12  # where a second flow is drawn between the same boxes
BARRED = 27  # the height of a row with a bar
INSIDE = 10  # from the edge of a box to what is in it
LEGEND = 182  # from one kind of flow to the next
KINDS = ("same", "crossing", "spilled", "unclear")  # of flows, in the order of the legend

Zone = str | None  # of clients or endpoints; None if they have none


class Bar(NamedTuple):
    """The load of an endpoint that has a cap, and that cap, in pixels of the whole ``width``."""

    load: float
    cap: float
    width: int


class Line(NamedTuple):
    """A text, its class in the template, and the bar below it, if there is one."""

    text: str
    kind: str
    bar: Bar | None = None


class Box(NamedTuple):
    """A zone in the picture: its heading, the lines below, and where it is."""

    heading: str
    lines: Sequence[Line]
    left: int
    width: int
    top: int

    @property
    def height(self) -> int:
        """Its height, which grows with its lines."""
        return max(MIN_HEIGHT, 10 + ROW + sum(_height(line) for line in self.lines))

    @property
    def placed_lines(self) -> Iterator[tuple[int, Line]]:
        """The lines, each with where it is."""
        top = self.top + 2 * ROW
        for line in self.lines:
            yield top, line
            top += _height(line)

    @property
    def middle(self) -> float:
        """Where flows begin and end."""
        return self.top + self.height / 2


class Flow(NamedTuple):
    """A part of the load, from the clients in one box to the endpoints in another.

    ``kind`` is "same" if both are in one zone, "crossing" if not, and "unclear" if one of them has none; or "spilled"
    if there was no room nearer. ``top`` is how much lower it begins and ends than the middle of the boxes.
    """

    origin: Box
    target: Box
    share: float
    kind: str
    top: int = 0


class Drawing(NamedTuple):
    """One Service, drawn at ``top``, from where its own places count. ``not_drawn`` is what there is no room for.

    The legend is at ``legend``: the ``kinds`` of flows, and ``cap``, what the mark on a bar means, "" without bars.
    """

    simulated: Simulated
    top: int
    flows: Sequence[Flow]
    boxes: Sequence[Box]
    legend: int
    kinds: Sequence[str]
    cap: str
    bottom: int
    not_drawn: str


def picture(services: Sequence[Simulated], max_overload: float) -> str:
    """Return an SVG file with some Services, one below the other."""
    top, drawings = 0, list[Drawing]()
    for simulated in services[:MAX_PICTURES]:
        drawings.append(_drawing(simulated, max_overload, top, TITLE))
        top += drawings[-1].bottom + 2 * GAP
    more = max(0, len(services) - MAX_PICTURES)
    title = f"Who gets what: {', '.join(simulated.subject.name for simulated in services[:3])}"
    height = max(top + (2 * ROW if more else 0), 2 * ROW)
    return _template().render(whole=True, title=title, height=height, drawings=drawings, more=more) + "\n"


def inline_picture(simulated: Simulated, max_overload: float) -> str:
    """Return the picture of one Service as an element for a page, without a background and a heading."""
    drawing, title = _drawing(simulated, max_overload, 0, GAP), f"Who gets what of {simulated.subject.name}"
    return _template().render(whole=False, title=title, height=drawing.bottom + GAP, drawings=[drawing], more=0)


@cache
def _template() -> Template:
    templates = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    templates.filters.update(
        constraint_text=constraint_text, cut=cut, grouped=grouped, percent=percent, printable=printable, short=_short
    )
    start, end = MARGIN + CLIENTS_WIDTH, WIDTH - MARGIN - ENDPOINTS_WIDTH
    templates.globals.update(
        WIDTH=WIDTH, MARGIN=MARGIN, ROW=ROW, INSIDE=INSIDE, LEGEND=LEGEND,
        THINNEST=THINNEST, WIDEST=WIDEST,
        START=start, END=end, BEND=(start + end) // 2,
    )  # fmt: skip
    return templates.from_string((pkgutil.get_data(__package__, "picture.svg") or b"").decode())


def _drawing(simulated: Simulated, max_overload: float, top: int, first: int) -> Drawing:
    """Draw a Service; its *first* boxes are so far below its *top*."""
    origins, targets = _origins(simulated, first), _targets(simulated, max_overload, first)
    boxes = [*origins.values(), *targets.values()]
    shares = [(*flow, share, _kind(*flow), 0) for flow, share in simulated.flows.items()]
    shares += [(*flow, share, "spilled", BESIDE if flow in simulated.flows else 0)
               for flow, share in simulated.spilled.items()]  # fmt: skip
    flows = [
        Flow(origins[zone], targets[other], share, kind, top)
        for zone, other, share, kind, top in sorted(shares, key=itemgetter(2))  # the widest lies on top
        if zone in origins and other in targets
    ]
    legend = bottom = max([box.top + box.height for box in boxes], default=first)
    used = {flow.kind for flow in flows}
    kinds, cap = [kind for kind in KINDS if kind in used], _cap_text(simulated)
    bottom += GAP + ROW if kinds else 0
    bottom += ROW if cap else 0
    zones = {"clients": len(simulated.origins), "endpoints": len(set(map(_zone, simulated.endpoints)))}
    not_drawn = ", ".join(f"{grouped(number - MAX_DOMAINS, 'zone')} of {side}"
                          for side, number in zones.items() if number > MAX_DOMAINS)  # fmt: skip
    bottom += GAP + ROW if not_drawn else 0
    return Drawing(simulated, top, flows, boxes, legend, kinds, cap, bottom, not_drawn)


def _kind(zone: Zone, other: Zone) -> str:
    if zone is None or other is None:
        return "unclear"
    return "same" if zone == other else "crossing"


def _zone(located: LocatedEndpoint) -> Zone:
    return located.location.labels.get(ZONE)


def _origins(simulated: Simulated, top: int) -> dict[Zone, Box]:
    lines: dict[Zone, list[Line]] = {}
    for zone in _largest({zone: origin.clients for zone, origin in simulated.origins.items()}):
        origin = simulated.origins[zone]
        lines[zone] = [Line(grouped(round(origin.clients), "client"), "faint")]
        if origin.unmet:
            unmet = round(origin.unmet)
            lines[zone].append(Line(f"\N{BALLOT X} {unmet:,} {'gets' if unmet == 1 else 'get'} nothing", "bad"))
    return _boxes(lines, MARGIN, CLIENTS_WIDTH, top)


def _targets(simulated: Simulated, max_overload: float, top: int) -> dict[Zone, Box]:
    by_zone: dict[Zone, list[tuple[float, LocatedEndpoint]]] = {}
    for share, located in zip(simulated.shares, simulated.endpoints, strict=True):
        by_zone.setdefault(_zone(located), []).append((share, located))
    lines: dict[Zone, list[Line]] = {}
    for zone in _largest({zone: len(pairs) for zone, pairs in by_zone.items()}):
        pairs = sorted(by_zone[zone], key=lambda pair: -pair[0])
        lines[zone] = [_endpoint_line(simulated, *pair, max_overload) for pair in pairs[:MAX_ENDPOINTS]]
        if (more := len(pairs) - MAX_ENDPOINTS) > 0:
            lines[zone].append(Line(grouped(more, "more endpoint"), "faint"))
    return _boxes(lines, WIDTH - MARGIN - ENDPOINTS_WIDTH, ENDPOINTS_WIDTH, top)


def _endpoint_line(simulated: Simulated, share: float, located: LocatedEndpoint, max_overload: float) -> Line:
    times, name = share * len(simulated.endpoints), _short(described(located), 20)
    rating, bar = simulated.rating(share, max_overload), _bar(simulated, share)
    if rating == OVERLOADED:
        return Line(f"\N{BLACK UP-POINTING TRIANGLE} {name}: {times:.1f}\N{MULTIPLICATION SIGN} overloaded", "bad", bar)
    if rating == IDLE:
        return Line(f"\N{WHITE CIRCLE} {name}: idle", "idle", bar)
    return Line(f"{name}: {percent(share)}, {times:.1f}\N{MULTIPLICATION SIGN}", "text", bar)


def _bar(simulated: Simulated, share: float) -> Bar | None:
    """Return the bar of an endpoint with this share of the load; bars of one Service have the same scale."""
    if (cap := _cap(simulated)) is None:
        return None
    width = ENDPOINTS_WIDTH - 2 * INSIDE
    scale = width / max(1.25 * cap, *simulated.shares)
    return Bar(share * scale, cap * scale, width)


def _cap(simulated: Simulated) -> float | None:
    """Return the cap as a share of the load, None if nothing bounds that."""
    balance = simulated.balance
    return None if balance is None or not balance.clients else balance.cap / balance.clients


def _cap_text(simulated: Simulated) -> str:
    cap, balance = _cap(simulated), simulated.balance
    if cap is None or balance is None:
        return ""
    times = f"{cap * len(simulated.endpoints):.2f}\N{MULTIPLICATION SIGN} an even share"
    return f"the most that an endpoint may expect: {balance.cap:.1f} of {grouped(balance.clients, 'client')}, {times}"


def _height(line: Line) -> int:
    return ROW if line.bar is None else BARRED


def _largest(numbers: Mapping[Zone, float]) -> list[Zone]:
    """Return the zones to draw, in their order: the largest if they are too many, and what has no zone last."""
    largest = sorted(numbers, key=lambda zone: (-numbers[zone], zone or ""))[:MAX_DOMAINS]
    return sorted(largest, key=lambda zone: (zone is None, zone or ""))


def _boxes(lines: Mapping[Zone, Sequence[Line]], left: int, width: int, top: int) -> dict[Zone, Box]:
    """Return a box for each zone, one below the other."""
    boxes: dict[Zone, Box] = {}
    for zone, texts in lines.items():
        boxes[zone] = box = Box("no zone" if zone is None else _short(zone, 24), texts, left, width, top)
        top += box.height + GAP
    return boxes


def _short(text: str, most: int) -> str:
    """Return a text without its middle if it is too long: the names of pods differ at their ends."""
    end = most // 3
    return text if len(text) <= most else f"{text[: most - end - 1]}\N{HORIZONTAL ELLIPSIS}{text[-end:]}"
