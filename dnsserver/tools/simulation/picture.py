# SPDX-License-Identifier: Apache-2.0

"""Draws who flows where, as SVG: client domains on the left, the endpoints that they get on the right.

Nothing is said by colour alone: flows that cross zones are dashed, those that may are dotted, and what is overloaded,
idle or unmet says so in words.
Shapes have classes and no styles, so that a page may colour them, and a Content-Security-Policy does not forbid them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from dnsserver.text import grouped
from dnsserver.tools.simulation.codes import described
from dnsserver.tools.simulation.service import OVERLOADED, UNUSED, Simulated
from dnsserver.tools.simulation.text import constraint_text, percent
from locator.model import ZONE
from locator.printable import cut, printable
from locator.topology.selection import LocatedEndpoint

WIDTH = 760
MARGIN, BOX, TARGET, GAP, ROW, TITLE = 16, 170, 270, 14, 20, 78  # in pixels, as all sizes here
MIN_HEIGHT = 44  # of a box
MAX_DOMAINS, MAX_ENDPOINTS = 12, 8  # that are drawn; how many are left is said
MAX_PICTURES = 20  # Services in one file
WIDEST, THINNEST = 28.0, 1.5  # strokes, for all of the load and for hardly any
INK, FAINT, PAPER, SAME, CROSSING, BAD = "#1b1f24", "#6a737d", "#ffffff", "#2f6f9f", "#b4560f", "#a3123a"

# By class: the colour of a flow, its dashes, and what it is.
FLOW_KINDS = {
    "same": (SAME, "", "in the same zone"),
    "crossing": (CROSSING, "7 4", "to another zone"),
    "unclear": (FAINT, "2 4", "a zone is not known"),
}

Value = str | None
SVG = "http://www.w3.org/2000/svg"


class Box(NamedTuple):
    """A domain in the picture: its heading, its lines, and where it is."""

    heading: str
    lines: Sequence[tuple[str, str]]  # a text, and the class that it has
    top: float
    height: float

    @property
    def middle(self) -> float:
        """Where flows begin and end."""
        return self.top + self.height / 2


def picture(services: Sequence[Simulated], max_overload: float) -> str:
    """Return an SVG file with some Services, one below the other."""
    top, parts = 0.0, list[Element]()
    for simulated in services[:MAX_PICTURES]:
        part, height = _drawn(simulated, max_overload)
        part.set("transform", f"translate(0 {top:.0f})")
        parts.append(part)
        top += height + GAP
    if (more := len(services) - MAX_PICTURES) > 0:
        note = Element("text", {"x": str(MARGIN), "y": f"{top + ROW:.0f}", "fill": INK, "class": "text"})
        note.text = f"{grouped(more, 'more Service')}; --service NS/NAME draws one"
        parts.append(note)
        top += 2 * ROW
    title = f"Who gets what: {', '.join(simulated.subject.name for simulated in services[:3])}"
    root = _root(max(top, 2 * ROW), title)
    SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": PAPER, "class": "paper"})
    root.extend(parts)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def inline_picture(simulated: Simulated, max_overload: float) -> str:
    """Return the picture of one Service as an element for a page, without a background and a heading."""
    part, height = _drawn(simulated, max_overload, headed=False)
    root = _root(height, f"Who gets what of {simulated.subject.name}")
    root.append(part)
    return ElementTree.tostring(root, encoding="unicode")


def _root(height: float, title: str) -> Element:
    root = Element(
        "svg",
        {
            "xmlns": SVG, "viewBox": f"0 0 {WIDTH} {height:.0f}", "width": str(WIDTH), "height": f"{height:.0f}",
            "role": "img", "aria-label": title, "font-family": "system-ui, sans-serif", "font-size": "13",
            "class": "flows",
        },
    )  # fmt: skip
    SubElement(root, "title").text = title
    return root


def _drawn(simulated: Simulated, max_overload: float, *, headed: bool = True) -> tuple[Element, float]:
    """Return the picture of a Service, and its height."""
    group, top = Element("g"), float(GAP)
    if headed:
        top = float(TITLE)
        _text(group, MARGIN, 22, simulated.subject.name, weight="bold")
        _text(group, MARGIN, 42, _short(constraint_text(simulated), 100), fill=FAINT)
        crossing = f"{percent(simulated.crossing)} of the load crosses zones, {percent(simulated.crossing_before)}"
        _text(group, MARGIN, 60, f"{crossing} without the constraint", fill=FAINT)
    origins, targets = _origin_boxes(simulated, top), _target_boxes(simulated, max_overload, top)
    for origin, target, share in _flows(simulated, origins, targets):
        _flow(group, origins[origin], targets[target], share, _kind(origin, target))
    for boxes, left, width in ((origins, MARGIN, BOX), (targets, WIDTH - MARGIN - TARGET, TARGET)):
        for box in boxes.values():
            _draw(group, box, left, width)
    bottom = max([box.top + box.height for box in (*origins.values(), *targets.values())], default=top)
    if left_out := _not_drawn(simulated):
        bottom += GAP + ROW
        _text(group, MARGIN, bottom, f"not drawn: {left_out}", fill=FAINT)
    return group, bottom + GAP


def _not_drawn(simulated: Simulated) -> str:
    """Return how many zones are too many to draw, "" if none."""
    numbers = {"clients": len(simulated.origins), "endpoints": len({_zone(one) for one in simulated.endpoints})}
    more = {side: number - MAX_DOMAINS for side, number in numbers.items() if number > MAX_DOMAINS}
    return ", ".join(f"{grouped(number, 'zone')} of {side}" for side, number in more.items())


def _zone(located: LocatedEndpoint) -> Value:
    return located.location.labels.get(ZONE)


def _origin_boxes(simulated: Simulated, top: float) -> dict[Value, Box]:
    boxes: dict[Value, Box] = {}
    for value in _largest({value: origin.clients for value, origin in simulated.origins.items()}):
        origin = simulated.origins[value]
        clients = round(origin.clients)
        lines = [(grouped(clients, "client"), "faint")]
        if origin.unmet:
            unmet = round(origin.unmet)
            lines.append((f"\N{BALLOT X} {unmet:,} {'gets' if unmet == 1 else 'get'} nothing", "bad"))
        boxes[value] = _box(_heading(value), lines, top)
        top += boxes[value].height + GAP
    return boxes


def _target_boxes(simulated: Simulated, max_overload: float, top: float) -> dict[Value, Box]:
    by_value: dict[Value, list[tuple[float, LocatedEndpoint]]] = {}
    for share, located in zip(simulated.shares, simulated.endpoints, strict=True):
        by_value.setdefault(_zone(located), []).append((share, located))
    boxes: dict[Value, Box] = {}
    for value in _largest({value: len(pairs) for value, pairs in by_value.items()}):
        pairs = sorted(by_value[value], key=lambda pair: -pair[0])
        lines = [_endpoint_line(simulated, *pair, max_overload) for pair in pairs[:MAX_ENDPOINTS]]
        if (more := len(pairs) - MAX_ENDPOINTS) > 0:
            lines.append((grouped(more, "more endpoint"), "faint"))
        boxes[value] = _box(_heading(value), lines, top)
        top += boxes[value].height + GAP
    return boxes


def _endpoint_line(
    simulated: Simulated, share: float, located: LocatedEndpoint, max_overload: float
) -> tuple[str, str]:
    times, name = share * len(simulated.endpoints), _short(described(located), 20)
    rating = simulated.rating(share, max_overload)
    if rating == OVERLOADED:
        return f"\N{BLACK UP-POINTING TRIANGLE} {name}: {times:.1f}\N{MULTIPLICATION SIGN} overloaded", "bad"
    if rating == UNUSED:
        return f"\N{WHITE CIRCLE} {name}: idle", "idle"
    return f"{name}: {percent(share)}, {times:.1f}\N{MULTIPLICATION SIGN}", "text"


def _largest(numbers: Mapping[Value, float]) -> list[Value]:
    """Return the values to draw, in their order: the largest if they are too many, and those without a value last."""
    largest = sorted(numbers, key=lambda value: (-numbers[value], value or ""))[:MAX_DOMAINS]
    return sorted(largest, key=lambda value: (value is None, value or ""))


def _heading(value: Value) -> str:
    return "no zone" if value is None else value


def _box(heading: str, lines: Sequence[tuple[str, str]], top: float) -> Box:
    heading = _short(heading, 24)
    return Box(heading, lines, top, max(MIN_HEIGHT, 10.0 + ROW * (1 + len(lines))))


def _flows(
    simulated: Simulated, origins: Mapping[Value, Box], targets: Mapping[Value, Box]
) -> Iterator[tuple[Value, Value, float]]:
    """Yield the flows between boxes that are drawn: the widest last, so that it lies on top."""
    for (origin, target), share in sorted(simulated.flows.items(), key=lambda item: item[1]):
        if origin in origins and target in targets:
            yield origin, target, share


def _flow(group: Element, origin: Box, target: Box, share: float, kind: str) -> None:
    start, end = MARGIN + BOX, WIDTH - MARGIN - TARGET
    bend = (start + end) / 2
    colour, dashes, where = FLOW_KINDS[kind]
    path = SubElement(
        group,
        "path",
        {
            "d": f"M{start} {origin.middle:.1f} C{bend:.0f} {origin.middle:.1f} {bend:.0f} {target.middle:.1f} "
            f"{end} {target.middle:.1f}",
            "fill": "none", "stroke": colour, "stroke-opacity": "0.65",
            "stroke-width": f"{max(THINNEST, WIDEST * share):.1f}", "class": kind,
            **({"stroke-dasharray": dashes} if dashes else {}),
        },
    )  # fmt: skip
    words = f"{origin.heading} to {target.heading}: {percent(share)} of the load, {where}"
    SubElement(path, "title").text = cut(words)


def _kind(origin: Value, target: Value) -> str:
    if origin is None or target is None:
        return "unclear"
    return "same" if origin == target else "crossing"


def _draw(group: Element, box: Box, left: float, width: float) -> None:
    SubElement(
        group,
        "rect",
        {
            "x": f"{left:.0f}", "y": f"{box.top:.0f}", "width": f"{width:.0f}", "height": f"{box.height:.0f}",
            "rx": "6", "fill": PAPER, "stroke": FAINT, "class": "box",
        },
    )  # fmt: skip
    _text(group, left + 10, box.top + 20, box.heading, weight="bold")
    colours = {"bad": BAD, "faint": FAINT, "idle": FAINT, "text": INK}
    for number, (text, word) in enumerate(box.lines, 1):
        _text(group, left + 10, box.top + 20 + ROW * number, text, fill=colours[word], name=word)


def _text(
    group: Element, left: float, top: float, text: str, *, fill: str = INK, weight: str = "", name: str = ""
) -> None:
    attributes = {
        "x": f"{left:.0f}",
        "y": f"{top:.0f}",
        "fill": fill,
        "class": name or ("faint" if fill == FAINT else "text"),
    }
    if weight:
        attributes["font-weight"] = weight
    SubElement(group, "text", attributes).text = printable(text)  # XML cannot hold all characters


def _short(text: str, most: int) -> str:
    """Return a text without its middle if it is too long: the names of pods differ at their ends."""
    end = most // 3
    return text if len(text) <= most else f"{text[: most - end - 1]}\N{HORIZONTAL ELLIPSIS}{text[-end:]}"
