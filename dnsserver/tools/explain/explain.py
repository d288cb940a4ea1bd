# SPDX-License-Identifier: Apache-2.0

"""Explains a Decision, the same that ``serve`` answers from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from dnsserver.answers.decision import Authority, UpstreamAnswer
from dnsserver.answers.resolution import nothing_outside, resolve
from dnsserver.message.records import type_name
from dnsserver.message.wire import RCODES
from dnsserver.names import name_text, query_name_of
from dnsserver.tools.explain.balance import balance_explained, clients_of
from dnsserver.tools.explain.candidates import candidates_of
from dnsserver.tools.explain.explanation import (
    AnswerExplained,
    ClientExplained,
    ConstraintExplained,
    ErrorExplained,
    Explanation,
    QuestionExplained,
    ServiceExplained,
)
from dnsserver.tools.explain.reasons import ExplainedDecision, reason
from dnsserver.tools.explain.sources import sources_of
from locator.findings import ClusterCode
from locator.ip import Network, address_text, network_text
from locator.model import CLUSTER, Finding
from locator.places.book import Place
from locator.state.object_checks import asking_in, nearness_findings, zone_findings
from locator.state.snapshot import Snapshot
from locator.topology.constraints import Declaration
from locator.topology.selection import FirstMatch, Narrowing


class Asker(NamedTuple):
    """The client of an explanation: how to call it, where it is, which object says so, and which is ``overlooked``."""

    text: str
    place: Place
    holder: str = ""
    overlooked: str = ""


def asker_at(client: Network, snapshot: Snapshot) -> Asker:
    """Return the client at a prefix."""
    book = snapshot.addresses
    return Asker(client_text(client), book.locate_network(client), book.holder(client), book.overlooked(client))


def client_text(client: Network) -> str:
    """Return how an explanation calls the client at a prefix; one of full length is a single address."""
    return address_text(client.address) if client.is_host else network_text(client)


def explain(
    name: Sequence[bytes],
    qtype: int,
    client: Network | Asker,
    snapshot: Snapshot,
    authority: Authority,
    *,
    candidates: bool = False,
    suggests: bool = True,
    outside: Callable[[str], UpstreamAnswer | None] = nothing_outside,
) -> Explanation:
    """Return the answer for a final client, and the reasons; with *candidates* also those for each endpoint.

    *suggests* is that of ``ExplainedDecision``, *outside* that of ``resolve``.
    """
    asker = client if isinstance(client, Asker) else asker_at(client, snapshot)
    location = asker.place.location
    decision = resolve(query_name_of(name, authority.zones), qtype, snapshot, location, authority, outside=outside)
    explained = ExplainedDecision(decision, location, snapshot, authority, suggests)
    service = decision.federated or (decision.service.service if decision.service is not None else None)
    labels = {key: value for key, value in location.labels.items() if key != CLUSTER or authority.tells_clusters}
    return Explanation(
        question=QuestionExplained(f"{name_text(name)}.", type_name(qtype)),
        client=ClientExplained(
            asker.text, asker.place.located_by, asker.holder or None, asker.overlooked or None, location.node, labels
        ),
        service=None if service is None else ServiceExplained(service.namespace, service.name),
        constraint=None
        if decision.declaration is None
        else constraint_explained(decision.declaration, clients_of(decision, snapshot)),
        sources=tuple(sources_of(explained)),
        steps=() if decision.selection is None else decision.selection.steps,
        candidates=tuple(candidates_of(explained)) if candidates else (),
        outcome=decision.outcome,
        reason=reason(explained),
        rcode=RCODES[decision.rcode],
        extended_error=None if decision.extended_error is None else ErrorExplained(*decision.extended_error),
        answers=tuple(
            AnswerExplained(f"{record.name}.", type_name(record.rtype), record.ttl, str(record.data))
            for record in (*decision.aliases, *decision.answers, *decision.spares)
        ),
        findings=tuple(_findings(explained)) if suggests else (),
        balance=balance_explained(decision, snapshot, location),
    )


def constraint_explained(declaration: Declaration, clients: str | UnsetType = UNSET) -> ConstraintExplained:
    """Return what a source declares; *clients* count where the load is balanced, if the Service says who."""
    constraint = declaration.constraint
    return ConstraintExplained(
        source=declaration.source,
        keys=constraint.keys,
        valid=declaration.valid,
        error=declaration.error,
        effective=declaration.effective,
        without_effect=declaration.without_effect,
        min_endpoints=constraint.at_least if isinstance(constraint, FirstMatch | Narrowing) else 1,
        required=constraint.required if isinstance(constraint, Narrowing) else None,
        policies=declaration.policies,
        policy_keys=declaration.policy_keys,
        clients=clients,
    )


def _findings(explained: ExplainedDecision) -> Iterator[Finding]:
    """Yield what is worth knowing about what the Service asks for, beyond what the sources say by themselves.

    There is nothing about multi-cluster Services.
    """
    service, services = explained.decision.service, explained.snapshot.services
    if service is not None and services.get(service.service.key) is service:
        same = partial(asking_in, services, service.service.namespace)
        found = nearness_findings(service, explained.decision.declaration, same)
        yield from (finding for finding in found if finding.code != ClusterCode.SourceNotHeard.name)
        yield from zone_findings(service, explained.location)
