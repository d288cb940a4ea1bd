# SPDX-License-Identifier: Apache-2.0

"""The list of Services: first those that ask for something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec import Struct

from dnsserver.tools.explain.explain import constraint_explained
from dnsserver.tools.explain.explanation import ConstraintExplained
from dnsserver.tools.pages.paging import Part, part_of
from dnsserver.tools.pages.steps import STEP, Steps
from locator.model import EndpointSlice, Finding, Service
from locator.state.snapshot import CompiledService, Snapshot, lacking
from locator.topology.constraints import has_unmatched

ROWS = 50


class Keys(Struct, frozen=True, gc=False):
    """The keys (``namespace/name``) of all Services in order: those that ask for something, and the others."""

    constrained: tuple[str, ...]
    others: tuple[str, ...]


class ServiceRow(Struct, frozen=True, gc=False):
    """A Service: its sort, what it asks for, how many ready endpoints it has, and how many findings are about it.

    ``unmatched``: it asks Kubernetes for near endpoints, and gets no hints that count.
    """

    namespace: str
    name: str
    sort: str
    constraint: ConstraintExplained | None
    unmatched: bool
    ready: int
    findings: int


class ServiceList(Struct, frozen=True, gc=False):
    """Some Services, whose keys contain ``text``. ``constrained`` is how many of all of them ask for something.

    ``missing`` says why no endpoint of any is known, "" as a rule.
    """

    text: str
    constrained: int
    rows: Part[ServiceRow]
    missing: str


def keys_of(snapshot: Snapshot) -> Steps[Keys]:
    """Return the keys of all Services."""
    constrained, others, services = list[str](), list[str](), iter(snapshot.services.items())
    while part := list(islice(services, STEP)):
        asking = {key for key, one in part if one.declaration is not None or has_unmatched(one.declarations)}
        constrained += sorted(asking)
        others += sorted(key for key, _ in part if key not in asking)
        yield
    constrained.sort()  # parts in order, which takes little
    yield
    others.sort()
    return Keys(tuple(constrained), tuple(others))


def service_list(
    snapshot: Snapshot, keys: Keys, about: Mapping[str, int], *, text: str = "", number: int = 1
) -> Steps[ServiceList]:
    """Return part *number* of the Services whose keys contain *text*. *about* has the number of findings by key."""
    constrained = yield from _containing(keys.constrained, text)
    others = yield from _containing(keys.others, text)
    part = part_of([*constrained, *others], number, ROWS)
    rows = [_row(snapshot.services[key], about.get(key, 0)) for key in part.rows]
    return ServiceList(text, len(constrained), part.of(rows), lacking(snapshot, EndpointSlice))


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


def _containing(keys: Sequence[str], text: str) -> Steps[Sequence[str]]:
    if not text:
        return keys
    found: list[str] = []
    for start in range(0, len(keys), STEP):
        found += [key for key in keys[start : start + STEP] if text in key]
        yield
    return found


def _row(compiled: CompiledService, findings: int) -> ServiceRow:
    service, declaration = compiled.service, compiled.declaration
    return ServiceRow(
        namespace=service.namespace,
        name=service.name,
        sort=sort_of(service),
        constraint=None if declaration is None else constraint_explained(declaration),
        unmatched=has_unmatched(compiled.declarations),
        ready=len(compiled.locations),
        findings=findings,
    )
