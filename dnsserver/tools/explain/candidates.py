# SPDX-License-Identifier: Apache-2.0

"""Says of every endpoint of a Service why it is among those that a client gets, or why not.

It reads the Selection that the answer was made from; it never chooses itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from dnsserver import names
from dnsserver.answers.decision import ADDRESS_SIZES
from dnsserver.answers.endpoint_names import endpoint_names
from dnsserver.message.records import type_name
from dnsserver.tools.explain.reasons import HINTED, Case, reason, unnarrowed, why_all
from locator.model import HOSTNAME, in_two_clusters
from locator.state.snapshot import CompiledService, Vote
from locator.topology.selection import (
    ALL,
    ANY_ENDPOINT,
    NEAREST,
    UNMET,
    FirstMatch,
    Hinted,
    LocatedEndpoint,
    NamedDomain,
    Narrowing,
    Selection,
    Step,
    has_address,
    names_for,
)


class Candidate(Struct, frozen=True):
    """An endpoint of a Service, and why it was or was not chosen.

    ``values`` are the endpoint's values of the constraint's keys, None where it has no such label. ``votes`` are those
    of clusters about an entry of a federated Service.
    """

    located: LocatedEndpoint
    values: Mapping[str, str | None]
    chosen: bool
    why: str
    votes: tuple[Vote, ...] = ()


def candidates_of(case: Case) -> list[Candidate]:
    """Return all endpoints of the Service: those that were chosen, the other ready ones, those that are not ready."""
    service = case.decision.service
    if service is None:
        return []
    keys = [] if case.constraint is None else [key for key in case.constraint.keys if key != ANY_ENDPOINT]
    judged = list(_judged(case, service))
    judged += [(located, False, "not ready") for located in case.snapshot.unready.get(service.cache_key, ())]
    judged.sort(key=lambda row: (not row[1], not row[0].endpoint.ready, *order(row[0])))
    return [
        Candidate(located, {key: located.location.value(key) for key in keys}, chosen, why)
        for located, chosen, why in judged
    ]


def order(located: LocatedEndpoint) -> tuple[str, tuple[bytes, ...]]:
    """Return a key that sorts endpoints by pod and address."""
    return located.endpoint.pod or "", located.endpoint.addresses


def _judged(case: Case, service: CompiledService) -> Iterator[tuple[LocatedEndpoint, bool, str]]:
    """Yield each ready endpoint, whether it was chosen, and why or why not."""
    selection, query_name = case.decision.selection, case.query_name
    if selection is not None:
        chosen, why = set(map(id, selection.endpoints)), why_chosen(case, selection)
        for located in service.endpoints:
            if id(located) in chosen:
                yield located, True, f"{why}{without_record(case, located)}"
            else:
                yield located, False, why_not(case, selection, located)
        return
    is_routed = service.service.virtual and service.service.cluster_ips
    why = "kube-proxy chooses behind the cluster IP" if is_routed else reason(case)
    own: set[int] = set()
    if query_name is not None and query_name.name_type in names.ENDPOINTS_OWN:
        by_name = endpoint_names(service, pod_names=case.authority.endpoint_pod_names).endpoints
        own = {id(located) for located, _ in by_name.get(query_name.endpoint_labels, ())}
    for located in service.endpoints:
        if id(located) in own:
            yield located, True, f"the name is its own{without_record(case, located)}"
        else:
            yield located, False, "the name is another endpoint's" if own else why


def why_chosen(case: Case, selection: Selection) -> str:
    """Say why an endpoint in a selection was chosen."""
    constraint = case.constraint
    if selection.outcome == ALL:
        return why_all(case, selection)
    if selection.outcome != NEAREST:
        return unnarrowed(case)
    if isinstance(constraint, NamedDomain):
        return f"has {constraint.key}={constraint.value}"
    if isinstance(constraint, Hinted):
        return f"its hints name the client's {HINTED[selection.narrowed[0]]}"
    return f"has the client's {' and '.join(selection.narrowed)}"


def why_not(case: Case, selection: Selection, located: LocatedEndpoint) -> str:
    """Say which key ruled the endpoint out; if no key narrowed anything, how it differs in each."""
    constraint = case.constraint
    if selection.octets is not None and not has_address(selection.octets, located):
        return f"has no {type_name(case.decision.qtype)} record, and others have"
    if isinstance(constraint, Hinted):
        (step,) = (step for step in selection.steps if step.key in selection.narrowed)
        named, word = names_for(step.key, located), HINTED[step.key]
        if not named:
            return f"has no hint for a {word}"
        if step.value in named and not in_two_clusters(case.location, located.location):
            return "its hints do not count: others of its address family have none"
        return f"its hints name {word} {', '.join(named)}, not the client's {step.value}"
    if not case.location.known and selection.outcome == UNMET and not isinstance(constraint, NamedDomain):
        return "the client cannot be located, so it has no labels"
    differing = [step for step in selection.steps if not _matches(case, step, located)]
    ruling = [step for step in differing if step.key in selection.narrowed][:1]
    texts = [f"{_difference(step, located)}{_policies(case, step.key)}" for step in ruling or differing]
    before = selection.steps[: selection.steps.index(ruling[0])] if ruling else ()
    skipped = [step for step in before if step.key not in selection.narrowed]
    return "; ".join(texts + _too_few(case, skipped, located))


def _matches(case: Case, step: Step, located: LocatedEndpoint) -> bool:
    value = located.location.value(step.key)
    if value is None or value != step.value:
        return False
    # Two nodes of one name may be in two clusters.
    return step.key != HOSTNAME or not in_two_clusters(case.location, located.location)


def _difference(step: Step, located: LocatedEndpoint) -> str:
    value = located.location.value(step.key)
    if step.value is None:
        return f"the client has no {step.key}"
    if value == step.value:
        return f"{step.key} is {value}, but in another cluster"
    return f"has no {step.key}" if value is None else f"{step.key} is {value}, not {step.value}"


def _policies(case: Case, key: str) -> str:
    """Name the ServicePolicies that declare a key, "" if it is from another source."""
    declaration = case.decision.declaration
    if declaration is None or not declaration.policies:
        return ""
    of_key = zip(declaration.policies, declaration.policy_keys, strict=True)
    return f" (policy {', '.join(name for name, named in of_key if named == key)})"


def _too_few(case: Case, steps: Iterable[Step], located: LocatedEndpoint) -> list[str]:
    """Name the keys of *steps* that the endpoint matches, but too few others do (``topodns.io/min-endpoints``)."""
    constraint = case.constraint
    if not isinstance(constraint, FirstMatch | Narrowing):
        return []
    return [
        f"{step.key} is the client's, but {step.matched} with it are too few (min-endpoints is {constraint.at_least})"
        for step in steps
        if _matches(case, step, located)
    ]


def without_record(case: Case, located: LocatedEndpoint) -> str:
    """Return what a chosen endpoint lacks to have a record in the answer, "" if it has one."""
    query_name, qtype, endpoint = case.query_name, case.decision.qtype, located.endpoint
    if qtype in ADDRESS_SIZES and ADDRESS_SIZES[qtype] not in map(len, endpoint.addresses):
        return f", but has no {type_name(qtype)} record"
    if query_name is None or query_name.name_type != names.PORT:
        return ""
    has_port = any((port.name, port.protocol) == (query_name.port, query_name.protocol) for port in endpoint.ports)
    return "" if has_port else f", but has no port {query_name.port}"
