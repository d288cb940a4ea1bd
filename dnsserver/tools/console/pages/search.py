# SPDX-License-Identifier: Apache-2.0

"""The search for everything: Services, pods, nodes, topology domains, addresses, codes of findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request

from dnsserver.tools.api.contents import batches
from dnsserver.tools.console.page import TEXT, WITHIN, Page, PageContext, read, segment, service_path
from dnsserver.tools.console.pages.map import console_keys
from dnsserver.tools.console.pages.services import service_keys
from locator.ip import address_text, is_address, parse_address
from locator.model import Node, Pod

SEARCH_PATH = "/search"
MOST = 20  # of each type: who gets more writes more


class Result(NamedTuple):
    """Something that was found: its type, its name, and the path of what is known of it."""

    type: str
    name: str
    path: str


async def search_page(context: PageContext, request: Request) -> Page:
    """Return what has a text in its name; where the text is the whole name of one thing, the way to it."""
    text = read(request, TEXT)["text"].strip()
    found = await results(context, text) if text else []
    exact = [result for result in found if result.name == text]
    shown = {"text": text, "results": found, "most": MOST}
    if len(exact) == 1:
        return Page("search.html", "Search", shown, status=303, headers={"Location": exact[0].path})
    return Page("search.html", "Search", shown)


async def results(context: PageContext, text: str) -> list[Result]:
    """Return at most ``MOST`` of each sort that have a text in their name; the case of letters makes no difference."""
    inspected, wanted = context.inspected, text.lower()
    snapshot = inspected.current()
    asking, others = await service_keys(context, snapshot)
    _, pods = await inspected.own.look_up(Pod, "")
    nodes = await inspected.own.objects(Node)
    domains = await domains_on(list(nodes.values()), await console_keys(context, snapshot))
    codes = dict.fromkeys(finding.code for finding in context.changes.findings)
    types: Sequence[tuple[str, Iterable[str], Callable[[str], str]]] = (
        ("Service", [*asking, *others], service_path),
        ("Node", nodes, lambda name: f"/nodes/{segment(inspected.cluster)}/{segment(name)}"),
        ("Pod", pods, lambda key: f"/explain?{urlencode({'client': f'pod/{key}'})}"),
        ("Topology domain", domains, lambda domain: f"/map?{urlencode({WITHIN: domain})}"),
        ("Finding", codes, lambda code: f"/findings?{urlencode({'code': code})}"),
    )
    found = [Result("Address", *_explained(text))] if is_address(text) else []
    for kind, names, path in types:
        there = await first(MOST, names, lambda name: wanted in name.lower())
        found += [Result(kind, name, path(name)) for name in there]
    return found


async def first(most: int, texts: Iterable[str], matches: Callable[[str], bool]) -> list[str]:
    """Return the first of *texts* that match, at most so many, in alphabetical order."""
    found: list[str] = []
    async for batch in batches(texts):
        if len(found) < most:
            found += filter(matches, batch)
    return sorted(found[:most])


async def domains_on(nodes: Iterable[Node], keys: Sequence[str]) -> list[str]:
    """Return the domains of some *keys* that nodes are in, as ``KEY=VALUE``."""
    domains = set[str]()
    async for batch in batches(nodes):
        domains.update(f"{key}={node.labels[key]}" for node in batch for key in keys if key in node.labels)
    return sorted(domains)


def _explained(address: str) -> tuple[str, str]:
    """Return an address, and the path of what it gets."""
    text = address_text(parse_address(address))
    return text, f"/explain?{urlencode({'client': text})}"
