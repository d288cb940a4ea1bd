# SPDX-License-Identifier: Apache-2.0

"""Explains a Decision, the same that ``serve`` answers from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dnsserver.answers.decision import Authority, Decision, UpstreamAnswer
from dnsserver.answers.resolution import nothing_outside, resolve
from dnsserver.message.records import type_name
from dnsserver.message.wire import RCODES
from dnsserver.names import name_text, query_name_of
from dnsserver.tools.explain.candidates import Candidate, candidates_of
from dnsserver.tools.explain.explanation import (
    CandidateExplained,
    ClientExplained,
    ConstraintExplained,
    ErrorExplained,
    Explanation,
    ServiceExplained,
    SourceExplained,
    StepExplained,
    VoteExplained,
)
from dnsserver.tools.explain.federated_reasons import federated_candidates, federated_sources, kind_of
from dnsserver.tools.explain.reasons import Case, reason
from dnsserver.tools.explain.sources import ExplainedDeclaration, sources_of
from locator.findings import ClusterCode
from locator.ip import Network, address_text, network_text
from locator.model import CLUSTER, Finding
from locator.places.book import Place
from locator.state.object_checks import nearness_findings, zone_findings
from locator.state.snapshot import Snapshot, Vote
from locator.topology.constraints import Declaration
from locator.topology.selection import FirstMatch, Narrowing, Step


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

    *suggests* is that of ``Case``, *outside* that of ``resolve``.
    """
    asker = client if isinstance(client, Asker) else asker_at(client, snapshot)
    location = asker.place.location
    query_name = query_name_of(name, authority.zones)
    decision = resolve(query_name, qtype, snapshot, location, authority, outside=outside)
    case = Case(decision, location, snapshot, authority, suggests)
    declaration, found = decision.declaration, decision.federated
    declared = sources_of(case) if found is None else federated_sources(case, found)
    return {
        "question": {"name": f"{name_text(name)}.", "type": type_name(qtype)},
        "client": _client(asker, tells_clusters=authority.tells_clusters),
        "service": _service(decision),
        "constraint": None if declaration is None else constraint_explained(declaration),
        "sources": list(map(_source, declared)),
        "steps": [_step(step) for step in (decision.selection.steps if decision.selection else ())],
        "candidates": _candidates(case) if candidates else [],
        "outcome": decision.outcome,
        "reason": reason(case),
        "rcode": RCODES[decision.rcode],
        "extended_error": _error(decision),
        "answers": [
            {"name": f"{record.name}.", "type": type_name(record.rtype), "ttl": record.ttl, "data": str(record.data)}
            for record in (*decision.aliases, *decision.answers, *decision.spares)
        ],
        "findings": list(_findings(case)) if suggests else [],
    }


def _findings(case: Case) -> Iterator[Finding]:
    """Yield what is worth knowing about what the Service asks for, beyond what the sources say by themselves.

    There is nothing about multi-cluster Services.
    """
    service, services = case.decision.service, case.snapshot.services
    if service is not None and services.get(service.service.key) is service:
        found = nearness_findings(service, services, case.decision.declaration)
        yield from (finding for finding in found if finding.code != ClusterCode.SourceNotHeard.name)
        yield from zone_findings(service, case.location)


def _client(asker: Asker, *, tells_clusters: bool) -> ClientExplained:
    place = asker.place
    labels = {key: value for key, value in place.location.labels.items() if key != CLUSTER or tells_clusters}
    return {
        "address": asker.text,
        "located_by": place.located_by,
        "holder": asker.holder or None,
        "overlooked": asker.overlooked or None,
        "node": place.location.node,
        "labels": labels,
    }


def _service(decision: Decision) -> ServiceExplained | None:
    found = decision.federated
    if found is not None:
        return {"namespace": found.namespace, "name": found.name}
    if decision.service is None:
        return None
    service = decision.service.service
    return {"namespace": service.namespace, "name": service.name}


def constraint_explained(declaration: Declaration) -> ConstraintExplained:
    """Return what a source declares."""
    constraint = declaration.constraint
    return {
        "source": declaration.source,
        "keys": list(constraint.keys),
        "valid": declaration.valid,
        "error": declaration.error,
        "effective": declaration.effective,
        "without_effect": declaration.without_effect,
        "min_endpoints": constraint.at_least if isinstance(constraint, FirstMatch | Narrowing) else 1,
        "required": list(constraint.required) if isinstance(constraint, Narrowing) else None,
        "policies": list(declaration.policies),
        "policy_keys": list(declaration.policy_keys),
    }


def _source(declared: ExplainedDeclaration) -> SourceExplained:
    explained: SourceExplained = {
        "source": declared.declaration.source,
        "keys": list(declared.declaration.constraint.keys),
        "policies": list(declared.declaration.policies),
        "heard": declared.decides,
        "why": declared.why,
    }
    if declared.cluster:
        explained["cluster"] = declared.cluster
    return explained


def _step(step: Step) -> StepExplained:
    return {"key": step.key, "value": step.value, "matched": step.matched}


def _candidates(case: Case) -> list[CandidateExplained]:
    found = case.decision.federated
    if found is None:
        return [_candidate(candidate) for candidate in candidates_of(case)]
    return [
        {**_candidate(candidate), "kind": kind_of(candidate.located), "votes": list(map(_vote, candidate.votes))}
        for candidate in federated_candidates(case, found)
    ]


def _vote(vote: Vote) -> VoteExplained:
    return {"cluster": vote.cluster, "vote": vote.word}


def _candidate(candidate: Candidate) -> CandidateExplained:
    endpoint = candidate.located.endpoint
    return {
        "addresses": list(map(address_text, endpoint.addresses)),
        "pod": endpoint.pod,
        "node": candidate.located.location.node,
        "cluster": candidate.located.location.labels.get(CLUSTER),
        "ready": endpoint.ready,
        "values": dict(candidate.values),
        "chosen": candidate.chosen,
        "why": candidate.why,
    }


def _error(decision: Decision) -> ErrorExplained | None:
    if decision.extended_error is None:
        return None
    code, text = decision.extended_error
    return {"code": code, "text": text}
