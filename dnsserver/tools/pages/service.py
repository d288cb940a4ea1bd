# SPDX-License-Identifier: Apache-2.0

"""One Service: what it asks for, what is wrong with it, and each endpoint with why a client gets it or not.

The answers stand side by side, a column for each: so the answer of today can be compared with that by another
constraint. All of them are explanations, as ``explain`` gives them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dnsserver.tools.explain.explanation import (
    CandidateExplained,
    ConstraintExplained,
    Explanation,
    SourceExplained,
)
from dnsserver.tools.pages.findings import FindingRow, rows_of
from dnsserver.tools.pages.flows import Flows
from dnsserver.tools.pages.paging import Part, part_of
from dnsserver.tools.pages.services import sort_of
from locator.api.events import REASON, message_of
from locator.ip import address_text
from locator.model import CLUSTER, HOSTNAME, REGION, ZONE, EndpointSlice, Finding, Service
from locator.state.snapshot import CompiledService, Snapshot, lacking
from locator.topology.selection import ANY_ENDPOINT, LocatedEndpoint, Step
from locator.topology.service_checks import is_invalid_constraint

ROWS, MAX_COLUMNS = 50, 4
NOW = "now"


class TitledExplanation(Struct, frozen=True, gc=False):
    """What a client gets: as things are (``NOW``), or by another constraint. ``explanation`` has all candidates."""

    title: str
    explanation: Explanation


class Verdict(Struct, frozen=True, gc=False):
    """Whether a client gets an endpoint, and why or why not."""

    chosen: bool
    why: str


NO_ENDPOINT_THEN = Verdict(False, "no endpoint of the Service then")


class Column(Struct, frozen=True, gc=False):
    """The answer to one client, above the verdicts on each endpoint."""

    title: str
    steps: tuple[Step, ...]
    outcome: str
    reason: str
    chosen: int


class EndpointRow(Struct, frozen=True, gc=False):
    """An endpoint, its values of the page's keys ("" where it has no such label), and a verdict for each column."""

    addresses: tuple[str, ...]
    pod: str
    node: str
    cluster: str
    ready: bool
    values: tuple[str, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def chosen(self) -> bool:
        """Whether the client of any column gets it."""
        return any(verdict.chosen for verdict in self.verdicts)


class ServicePage(Struct, frozen=True, gc=False):
    """A Service. ``constraint`` decides; ``sources`` are all that declare one.

    ``events`` are what the Events about it say: Kubernetes' warnings of an invalid constraint. ``columns`` are empty
    unless a client was named; ``client`` says who that is. ``flows`` are simulations: as things are, and by another
    constraint if one is tried; none of a Service that is not headless. ``missing`` says why no endpoint of any Service
    is known, "" as a rule.
    """

    namespace: str
    name: str
    sort: str
    constraint: ConstraintExplained | None
    sources: tuple[SourceExplained, ...]
    findings: tuple[FindingRow, ...]
    events: tuple[str, ...]
    keys: tuple[str, ...]
    ready: int
    endpoints: Part[EndpointRow]
    columns: tuple[Column, ...]
    client: str
    flows: tuple[Flows, ...]
    missing: str


def service_page(
    compiled: CompiledService,
    snapshot: Snapshot,
    sources: Explanation,
    answers: Sequence[TitledExplanation],
    findings: Sequence[Finding],
    flows: tuple[Flows, ...],
    *,
    number: int = 1,
) -> ServicePage:
    """Return the page of a Service with part *number* of its endpoints.

    *sources* is an explanation of its name for any client. *answers* are those to one client, a column for each; none
    if no client was named. *findings* are all that there are; the explanation has more about this Service.
    """
    service = compiled.service
    about = _about(service, findings)
    known = {(finding.code, finding.field) for finding in about}
    about += [finding for finding in sources.findings or () if (finding.code, finding.field) not in known]
    keys = _keys(sources.constraint)
    verdicts = [_verdicts(answer.explanation.candidates) for answer in answers]
    located = [*compiled.endpoints, *snapshot.unready.get(compiled.cache_key, ())]
    rows = [_row(endpoint, keys, verdicts) for endpoint in located]
    rows.sort(
        key=lambda row: (not any(verdict.chosen for verdict in row.verdicts), not row.ready, row.pod, row.addresses)
    )
    return ServicePage(
        namespace=service.namespace,
        name=service.name,
        sort=sort_of(service),
        constraint=sources.constraint,
        sources=sources.sources,
        findings=rows_of(about),
        events=tuple(f"{REASON}: {message_of(finding)}" for finding in about if is_invalid_constraint(finding)),
        keys=keys,
        ready=len(compiled.endpoints),
        endpoints=part_of(rows, number, ROWS),
        columns=tuple(map(_column, answers)),
        client=answers[0].explanation.client.address if answers else "",
        flows=flows,
        missing=lacking(snapshot, EndpointSlice),
    )


def _about(service: Service, findings: Sequence[Finding]) -> list[Finding]:
    key = Service.__name__, service.namespace, service.name, ""
    return [one for one in findings if (one.kind, one.namespace, one.name, one.cluster) == key]


def _keys(constraint: ConstraintExplained | None) -> tuple[str, ...]:
    """Return the keys whose values are shown: those of the constraint, else where things usually are."""
    asked = [] if constraint is None else [key for key in constraint.keys if key not in (ANY_ENDPOINT, HOSTNAME)]
    return tuple(dict.fromkeys((*asked[:MAX_COLUMNS], REGION, ZONE)))


def _verdicts(candidates: Sequence[CandidateExplained]) -> dict[tuple[str, ...], Verdict]:
    return {row.addresses: Verdict(row.chosen, row.why) for row in candidates}


def _row(
    located: LocatedEndpoint, keys: Sequence[str], verdicts: Sequence[dict[tuple[str, ...], Verdict]]
) -> EndpointRow:
    endpoint, addresses = located.endpoint, tuple(map(address_text, located.endpoint.addresses))
    return EndpointRow(
        addresses=addresses,
        pod=endpoint.pod or "",
        node=located.location.node or "",
        cluster=located.location.labels.get(CLUSTER, ""),
        ready=endpoint.ready,
        values=tuple(located.location.value(key) or "" for key in keys),
        verdicts=tuple(column.get(addresses, NO_ENDPOINT_THEN) for column in verdicts),
    )


def _column(answer: TitledExplanation) -> Column:
    explained = answer.explanation
    return Column(
        title=answer.title,
        steps=explained.steps,
        outcome=explained.outcome,
        reason=explained.reason,
        chosen=sum(candidate.chosen for candidate in explained.candidates),
    )
