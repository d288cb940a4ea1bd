# SPDX-License-Identifier: Apache-2.0

"""The list of Services: first those that ask for something, or by what is answered about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from starlette.requests import Request

from dnsserver.settings import values
from dnsserver.tools.api.contents import batches
from dnsserver.tools.api.operations import Parameter
from dnsserver.tools.console.changes import SNAPSHOT
from dnsserver.tools.console.page import (
    FOLLOWS_ALL,
    PAGE,
    TEXT,
    Page,
    PageContext,
    part_of,
    read,
)
from dnsserver.tools.console.traffic import Traffic, traffic
from dnsserver.tools.console.troubles.expected import expected_if_read
from dnsserver.tools.live.history import Answered
from locator.model import EndpointSlice, Finding, Service
from locator.state.snapshot import CompiledService, Snapshot, lacking
from locator.topology.constraints import has_unmatched

ROWS = 50
NAME, FINDINGS = "name", "findings"
BY_TRAFFIC: Mapping[str, Callable[[Answered], float]] = {  # the greatest come first
    "answers": lambda one: one.answers,
    "crossing": lambda one: one.crossing_share,
    "unmet": lambda one: one.unmet,
    "spilled": lambda one: one.spilled,
}
SORTS = values.choice("WORD", NAME, *BY_TRAFFIC, FINDINGS)
SORT = Parameter("sort", "By what the list is sorted.", SORTS.read, SORTS.expected)

Keys = tuple[Sequence[str], Sequence[str]]  # ``namespace/name`` in order: of those that ask for something, of others


async def services_page(context: PageContext, request: Request) -> Page:
    """Return a part of the Services whose keys contain a text."""
    given = read(request, TEXT, SORT, PAGE)
    text, snapshot, findings = given["text"], context.inspected.current(), context.changes.findings
    asking, others = [await containing(keys, text) for keys in await service_keys(context, snapshot)]

    async def by_service() -> Mapping[str, int]:
        return await context.turns.in_thread(lambda: findings_by_service(findings))

    numbers = await context.cached("findings of services", (findings,), by_service)
    live, sort = traffic(context), given["sort"]
    keys = await context.turns.in_thread(lambda: in_order([*asking, *others], sort, live, numbers))
    part, expected = part_of(keys, given["page"], ROWS), await expected_if_read(context)
    shown = {
        "live": live,
        "counted_by": context.live,
        "by": sort,
        "text": text,
        "constrained": len(asking),
        "services": part.of([snapshot.services[key] for key in part.rows]),
        "findings": numbers,
        "unmet": {} if expected is None else expected.unmet,
        "missing": lacking(snapshot, EndpointSlice),
    }
    return Page("services.html", "Services", shown, FOLLOWS_ALL if live is not None else SNAPSHOT)


def in_order(keys: Sequence[str], sort: str, live: Traffic | None, findings: Mapping[str, int]) -> Sequence[str]:
    """Return *keys* as ``SORT`` says; the same as they came where it says nothing, or nothing is answered."""
    if sort == NAME:
        return sorted(keys)
    if sort == FINDINGS:
        return sorted(keys, key=lambda key: -findings.get(key, 0))
    if live is None or sort not in BY_TRAFFIC:
        return keys
    of, traffic_of = BY_TRAFFIC[sort], live.of
    return sorted(keys, key=lambda key: -of(traffic_of(key)))


async def service_keys(context: PageContext, snapshot: Snapshot) -> Keys:
    """Return the keys of all Services."""
    return await context.cached("services", (snapshot.services,), lambda: keys_of(snapshot.services))


async def keys_of(services: Mapping[str, CompiledService]) -> Keys:
    """Return the keys of all Services, those first that ask for something."""
    constrained, others = list[str](), list[str]()
    async for batch in batches(services.items()):
        asking = {key for key, one in batch if one.declaration is not None or has_unmatched(one.declarations)}
        constrained += sorted(asking)
        others += sorted(key for key, _ in batch if key not in asking)
    constrained.sort()  # batches in order, which takes little
    others.sort()
    return constrained, others


async def containing(keys: Sequence[str], text: str) -> Sequence[str]:
    """Return the *keys* that contain a text."""
    found: list[str] = []
    async for batch in batches(keys if text else ()):
        found += [key for key in batch if text in key]
    return found if text else keys


def findings_by_service(findings: Sequence[Finding]) -> Mapping[str, int]:
    """Return how many findings are about each Service of the own cluster, by its key."""
    return Counter(
        f"{finding.namespace}/{finding.name}"
        for finding in findings
        if finding.kind == Service.__name__ and not finding.cluster
    )


def type_of(service: Service) -> str:
    """Return the type of a Service, as people call it: kubectl has no word for headless ones."""
    if service.alias is not None:
        return "external name"
    if service.headless:
        return "headless"
    return "cluster IP" if service.cluster_ips else "without address"
