# SPDX-License-Identifier: Apache-2.0

"""The list of Services: first those that ask for something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from starlette.requests import Request

from dnsserver.tools.api.contents import batches
from dnsserver.tools.console.page import PAGE, TEXT, Page, PageContext, part_of, read
from locator.model import EndpointSlice, Finding, Service
from locator.state.snapshot import CompiledService, Snapshot, lacking
from locator.topology.constraints import has_unmatched

ROWS = 50

Keys = tuple[Sequence[str], Sequence[str]]  # ``namespace/name`` in order: of those that ask for something, of others


async def services_page(context: PageContext, request: Request) -> Page:
    """Return a part of the Services whose keys contain a text."""
    given = read(request, TEXT, PAGE)
    text, snapshot, findings = given["text"], context.inspected.current(), context.changes.findings
    asking, others = [await containing(keys, text) for keys in await service_keys(context, snapshot)]

    async def by_service() -> Mapping[str, int]:
        return await context.turns.in_thread(lambda: findings_by_service(findings))

    part = part_of([*asking, *others], given["page"], ROWS)
    shown = {
        "text": text,
        "constrained": len(asking),
        "services": part.of([snapshot.services[key] for key in part.rows]),
        "findings": await context.once("findings of services", (findings,), by_service),
        "missing": lacking(snapshot, EndpointSlice),
    }
    return Page("services.html", "Services", shown)


async def service_keys(context: PageContext, snapshot: Snapshot) -> Keys:
    """Return the keys of all Services."""
    return await context.once("services", (snapshot.services,), lambda: keys_of(snapshot.services))


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


def sort_of(service: Service) -> str:
    """Return what sort of Service it is, as people call it."""
    if service.alias is not None:
        return "external name"
    if service.headless:
        return "headless"
    return "cluster IP" if service.cluster_ips else "without address"
