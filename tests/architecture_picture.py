# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/architecture.svg``, which draws which folder imports which: ``make docs``."""

from __future__ import annotations

from html import escape
from zlib import crc32

from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout, VertexViewer
from grandalf.routing import route_with_lines

from tests.architecture_page import drawn, label, package
from tests.import_graph import is_edge

HEIGHT, ACROSS, DOWN = 30, 6, 34  # of a box, and between boxes, in pixels
LETTER = 7.4  # width, in pixels
FILLS = {"dnsserver": "#dbe4ff", "locator": "#d3f9d8"}
STYLE = "text{font:13px sans-serif;text-anchor:middle;dominant-baseline:central}path{fill:none;stroke:#868e96}"
ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" style="fill:#868e96;stroke:none"/></marker>'
)


class Box(Vertex):  # type: ignore[misc]
    """A folder in the drawing. Its hash is that of its name, so that the same graph is always drawn the same."""

    def __hash__(self) -> int:
        return crc32(self.data.encode())


class Arrow(Edge):  # type: ignore[misc]
    """An import in the drawing."""

    def __hash__(self) -> int:
        return crc32(f"{self.v[0].data} {self.v[1].data}".encode())


class Route:
    """Where an arrow leads along."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    def setpath(self, points: list[tuple[float, float]]) -> None:
        self.points = points


def document() -> str:
    """Return the drawing: a box for each folder, an arrow to each that it imports. Edges have thick borders."""
    graph = drawn()
    boxes = {name: Box(name) for name in sorted(graph)}
    arrows = [Arrow(boxes[name], boxes[target]) for name in sorted(graph) for target in sorted(graph[name])]
    for name, box in boxes.items():
        box.view = VertexViewer(w=len(label(name)) * LETTER + 16, h=HEIGHT)
    for arrow in arrows:
        arrow.view = Route()
    (component,) = Graph(list(boxes.values()), arrows).C
    layout = SugiyamaLayout(component)
    layout.xspace, layout.yspace = ACROSS, DOWN
    layout.route_edge = route_with_lines
    layout.init_all(optimize=True)
    layout.draw(30)
    sides = [box.view.xy[0] + half * box.view.w / 2 for box in boxes.values() for half in (-1, 1)]
    sides += [x for arrow in arrows for x, _ in arrow.view.points]
    left, right = min(sides) - 8, max(sides) + 8
    bottom = max(box.view.xy[1] for box in boxes.values())
    parts = [_arrow(arrow) for arrow in arrows] + [_box(name, box) for name, box in boxes.items()]
    view = f"{left:.0f} {-HEIGHT} {right - left:.0f} {bottom + 2 * HEIGHT:.0f}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" width="{right - left:.0f}">'
    return "\n".join([head, f"<style>{STYLE}</style>{ARROW}", *parts, "</svg>", ""])


def _arrow(arrow: Arrow) -> str:
    points = " ".join(f"{x:.0f} {y:.0f}" for x, y in arrow.view.points)
    return f'<path marker-end="url(#arrow)" d="M{points}"/>'


def _box(name: str, box: Box) -> str:
    (x, y), width = box.view.xy, box.view.w
    stroke = 3 if is_edge(name) else 1
    return (
        f'<rect x="{x - width / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{width:.0f}" height="{HEIGHT}" rx="5"'
        f' fill="{FILLS[package(name)]}" stroke="#343a40" stroke-width="{stroke}"/>'
        f'<text x="{x:.0f}" y="{y:.0f}">{escape(label(name))}</text>'
    )


if __name__ == "__main__":
    print(document(), end="")
