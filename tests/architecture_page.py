# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/architecture.md``: which folder imports which, and what each is for: ``make docs``.

What each is for comes from the tree in ``CONTRIBUTING.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from tests.import_graph import folder_imports, is_edge
from tests.this_machine import ROOT

DOCUMENT = ROOT / "docs" / "architecture.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
VALUES = "locator"  # its own modules, which import no folder: one box for all
ENTRY = "dnsserver.__main__"  # only starts ``cli``
LINE = re.compile(r"(?P<indent> *)(?P<name>\w+(?:\.py|/)) +(?P<purpose>\S.*)")
INDENT = 2

HEAD = """\
# Architecture

## In a cluster

[![A client asks CoreDNS, which asks topodns, which follows the API server](in-a-cluster.svg)](in-a-cluster.svg)

1. A pod asks its DNS, as ever.
2. CoreDNS forwards the names that it was told to, and writes the pod's address into the query (EDNS client subnet).
3. topodns looks up where that pod is, which endpoints the Service has, where these are, and what the Service asks for.
   It answers with the near ones, and CoreDNS passes the answer on. No answer waits for the API server: topodns follows
   it by watches, and holds what it needs in memory.
4. The pod connects to an endpoint itself. topodns sees names, not connections.

All replicas do the same, each for itself. They share no state, so each can end at any time, and more of them answer
more queries. A change becomes visible some milliseconds after the API server reports it. While the API server is
away, answers stay as they were: [A live cluster](live.md).

The controller and the webhook are separate programs of the same image, for those who need them: the controller keeps
[PodLocators](scale.md) and [votes on load balancers](health.md) true, the webhook sets [hints](hints.md) for
kube-proxy. One replica of each leads, by a Lease.

## In the code

topodns is two packages. `locator` knows where everything in a cluster is, and what each Service asks for. `dnsserver`
answers DNS queries from that. `dnsserver` imports `locator`, never the other way round.

Most folders are pure: they take values and return values. Only the edges use sockets, threads, clocks, files and logs.
No pure folder imports an edge. Between folders there is no circle of imports. `tests/test_layers.py` enforces these
rules.

## Which folder imports which

An arrow leads from a folder to one that it imports. An arrow that follows from others is left out: if `app.py` imports
`net/` and `net/` imports `responder/`, there is no arrow from `app.py` to `responder/`. Edges have thick borders.
`dnsserver` is blue, `locator` green.

[![Which folder imports which](architecture.svg)](architecture.svg)
"""
TABLE = """
The same as a table. A folder imports only folders above it. The last column leaves out what follows, as the drawing
does.

| folder | what it is for | imports |
| --- | --- | --- |
"""
WALKS = """
## How it works

[CONTRIBUTING.md](../CONTRIBUTING.md) has a line for each module, and follows a query and a change through the code:

- [the way of a query](../CONTRIBUTING.md#the-way-of-a-query), from a datagram to the reply
- [the way of a change](../CONTRIBUTING.md#the-way-of-a-change), from an event of the API server to the next answer

It also says [where something new goes](../CONTRIBUTING.md#where-something-new-goes).

<!-- Printed by "make docs" from the imports in the code and the tree in CONTRIBUTING.md. -->
"""


def tree() -> dict[str, str]:
    """Return what each folder and module is for, by its path, as the tree in ``CONTRIBUTING.md`` says."""
    block = next(block for block in CONTRIBUTING.read_text().split("```") if block.startswith("\nlocator/"))
    purposes: dict[str, str] = {}
    folders: list[str] = []
    for line in block.strip().splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, f"no line of the tree: {line}"
        del folders[len(match["indent"]) // INDENT :]
        folders.append(match["name"])
        purposes["".join(folders)] = match["purpose"]
    return purposes


def document() -> str:
    """Return the page."""
    graph = _graph()
    reduced = drawn()
    ordered = sorted(graph, key=lambda box: (is_edge(box), _height(graph, box), box))
    return HEAD + _table(ordered, reduced) + WALKS


def _graph() -> dict[str, set[str]]:
    """Return for each box the boxes that it imports, in order."""
    graph: dict[str, set[str]] = {}
    for folder, imported in sorted(folder_imports().items()):
        if folder != ENTRY:
            graph.setdefault(_box(folder), set()).update(map(_box, imported))
    for box, imported in graph.items():
        imported.discard(box)
    return graph


def _box(folder: str) -> str:
    return VALUES if folder.rpartition(".")[0] == VALUES and _is_module(folder) else folder


def _is_module(folder: str) -> bool:
    return (ROOT / f"{folder.replace('.', '/')}.py").exists()


def _path(folder: str) -> str:
    return folder.replace(".", "/") + (".py" if _is_module(folder) else "/")


def without_what_follows(graph: Mapping[str, Set[str]]) -> dict[str, set[str]]:
    """Return a graph without the edges that follow from others (its transitive reduction)."""
    return {
        box: {target for target in imported if not any(_leads(graph, other, target) for other in imported - {target})}
        for box, imported in graph.items()
    }


def _leads(graph: Mapping[str, Set[str]], start: str, end: str) -> bool:
    return end in graph[start] or any(_leads(graph, following, end) for following in graph[start])


def _height(graph: Mapping[str, Set[str]], box: str) -> int:
    """Return how many boxes stand on each other below one."""
    return max((1 + _height(graph, below) for below in graph[box]), default=0)


def drawn() -> dict[str, set[str]]:
    """Return for each box the boxes to which arrows lead."""
    return without_what_follows(_graph())


def label(box: str) -> str:
    """Return what stands in a box."""
    return "model, ip, labels, ..." if box == VALUES else _path(box).removeprefix(f"{package(box)}/")


def package(box: str) -> str:
    return box.partition(".")[0]


def _table(ordered: list[str], graph: Mapping[str, Set[str]]) -> str:
    purposes = tree() | {f"{VALUES}/": "its own modules: values that every folder shares"}
    rows = []
    for box in ordered:
        imported = ", ".join(f"`{_path(target)}`" for target in sorted(graph[box]))
        rows.append(f"| `{_path(box)}` | {purposes[_path(box)]} | {imported or 'nothing'} |\n")
    return TABLE + "".join(rows)


if __name__ == "__main__":
    print(document(), end="")
