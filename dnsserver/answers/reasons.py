"""Says in one phrase why an answer is what it is."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dnsserver import names
from dnsserver.answers.decision import Authority, Decision
from dnsserver.answers.resolution import MAX_ALIASES
from dnsserver.message.records import type_name
from dnsserver.message.wire import ANY, CNAME, NXDOMAIN, REFUSED, SERVFAIL
from dnsserver.names import Meaning, labels_of, meaning_of
from dnsserver.spelling import listed, names_in, nearest_key, suggestion
from locator.model import HOSTNAME, ZONE, EndpointSlice, Location, Node, Service
from locator.state.findings import LACKING
from locator.state.snapshot import CompiledService, FederatedService, Snapshot
from locator.topology.constraints import AUTO, TRAFFIC_DISTRIBUTION
from locator.topology.hints import Hinted
from locator.topology.selection import (
    ALL,
    NEAREST,
    UNCONSTRAINED,
    UNMET,
    Constraint,
    FirstMatch,
    NamedDomain,
    Narrowing,
    Selection,
)

ANY_WILL_DO = "none is nearer, and the constraint allows any"
HINTED = {HOSTNAME: "node", ZONE: "zone"}  # what hints name -> the word for it
AUTO_MODE = "the Service's topology mode is Auto, which switches trafficDistribution off"
OWN_NAME = "an endpoint's own name is never narrowed"
NOT_HEADLESS = "the Service is not headless"


class Case(Struct, frozen=True, eq=False):
    """A Decision, and what it was made from; ``location`` is the client's.

    ``suggests``: the reason why a name does not exist says which one does, for 30 microseconds a Service.
    """

    decision: Decision
    location: Location
    snapshot: Snapshot
    authority: Authority
    suggests: bool = True

    @property
    def meaning(self) -> Meaning | None:
        """What the name means, or the name at the end of its aliases; None if that is outside the zones."""
        decision = self.decision
        if not decision.aliases:
            return decision.meaning
        return meaning_of(labels_of(str(decision.aliases[-1].data)), self.authority.zones)

    @property
    def constraint(self) -> Constraint | None:
        """The constraint that chose the endpoints, or would have; None if there is none."""
        declaration = self.decision.declaration
        return None if declaration is None else declaration.constraint


def reason(case: Case) -> str:
    """Return in one phrase why the answer is what it is."""
    decision = case.decision
    if decision.federated is not None:
        return _federated(case, decision.federated)
    if decision.selection is not None and decision.outcome != UNCONSTRAINED:
        outcome = f"{_outcome(case, decision.selection)}{_of_family(decision)}"
        nowhere = not case.location.known and Node.__name__ in case.snapshot.lacks
        return f"{outcome}; {LACKING[Node.__name__]}" if nowhere else outcome
    if decision.meaning is None:
        zones = ", ".join(zone.name for zone in case.authority.zones if not zone.reverse)
        return f"the name is outside the served zones: {zones}"
    if decision.rcode == REFUSED:
        return "zone transfers are not served"
    if decision.rcode == SERVFAIL:
        return f"an alias that leads to {decision.outside_target}, outside the served zones, and the look-up failed"
    return _alias(decision, case.authority) or _unnarrowed(case)


def _alias(decision: Decision, authority: Authority) -> str:
    """Return why an alias is answered as it is, or "" if the name where it ends decides."""
    if not decision.aliases:
        return ""
    if decision.qtype in (CNAME, ANY):
        return "the Service is an alias"
    if decision.outside_target is not None:
        asked = ", which an upstream resolves" if authority.asks_upstream_for(decision.qtype) else ""
        missing = ": it does not exist" if decision.rcode == NXDOMAIN else ""
        return f"an alias of a name outside the served zones{asked}{missing}"
    if not decision.answers and not decision.authority_records:
        return f"the aliases form a loop, or are more than {MAX_ALIASES}"
    return "an alias of a name that does not exist" if decision.rcode == NXDOMAIN else ""


def _unnarrowed(case: Case) -> str:
    decision, meaning = case.decision, case.meaning
    assert meaning is not None  # only at the end of aliases, and those outside the zones have been told
    exists, compiled = decision.rcode != NXDOMAIN, decision.service
    if meaning.shape == names.REVERSE and exists:
        return "a reverse name is never narrowed"
    if compiled is None:
        return "the name belongs to no Service" if exists else _no_such_name(meaning, case)
    if compiled.service.alias == "":
        return "the Service's externalName is not a domain name"
    if not exists and EndpointSlice.__name__ in case.snapshot.lacks:
        return f"{LACKING[EndpointSlice.__name__]}, so the Service's endpoints are not known"
    if not exists:
        empty = meaning.shape == names.SERVICE and compiled.empty
        return (
            "the Service has no ready endpoint"
            if empty
            else "no port and no ready endpoint of the Service has this name"
        )
    if meaning.shape == names.ENDPOINT:
        return OWN_NAME
    return _unconstrained(decision, compiled)


def _unconstrained(decision: Decision, compiled: CompiledService) -> str:
    if not compiled.service.headless:
        return NOT_HEADLESS
    if decision.declaration is None:
        in_vain = [one.unheard for one in compiled.declarations if one.in_vain]
        return f"no constraint is in effect: {in_vain[0]}" if in_vain else "the Service has no constraint"
    if not decision.declaration.valid:
        return "the constraint is invalid"
    return decision.declaration.without_effect or "no endpoint is chosen for this name and type"


def _no_such_name(meaning: Meaning, case: Case) -> str:
    snapshot, suggests = case.snapshot, case.suggests
    if meaning.zone.about == names.FEDERATION and meaning.service:
        closest = nearest_key(meaning.namespace, meaning.service, snapshot.federated) if suggests else None
        hint = f", did you mean {closest}?" if closest else listed(snapshot.federated) if suggests else ""
        what = f"a Service {meaning.service_key} that has a ready endpoint and an address for anybody"
        return f"no cluster exports {what}{hint}"
    is_import = meaning.zone.about == names.MULTICLUSTER
    known, kind = (snapshot.imported, "ServiceImport") if is_import else (snapshot.services, "Service")
    if not meaning.service or meaning.service_key in known:
        return "the name does not exist"
    if meaning.namespace not in snapshot.namespaces:
        hint = suggestion(meaning.namespace, snapshot.namespaces) if suggests else ""
        return f"topodns serves no namespace {meaning.namespace}{hint}"
    if not is_import and Service.__name__ in snapshot.lacks:
        return LACKING[Service.__name__]
    return f"topodns serves no {kind} {meaning.service_key}{_hint(meaning, known) if suggests else ''}"


def _hint(meaning: Meaning, known: Mapping[str, CompiledService]) -> str:
    closest = nearest_key(meaning.namespace, meaning.service, known)
    if closest is None:
        return listed(names_in(meaning.namespace, known))
    return f", did you mean {closest.removeprefix(f'{meaning.namespace}/')}?"


def _federated(case: Case, found: FederatedService) -> str:
    decision, selection = case.decision, case.decision.selection
    if decision.rcode == NXDOMAIN:
        return "no port and no entry of the Service has this name"
    if selection is None:
        return "the name is the same for all clients"
    if not selection.endpoints:
        reached = found.entries(found.viewer(case.location))
        return _outcome(case, selection) if reached else "nothing that the Service has can be reached by this client"
    return _outcome(case, selection)


def _of_family(decision: Decision) -> str:
    """Return which endpoints alone were considered, "" if all were."""
    if decision.selection is None or decision.selection.octets is None:
        return ""
    return f"; only endpoints with an {type_name(decision.qtype)} record count, because the nearest have none"


def _outcome(case: Case, selection: Selection) -> str:
    constraint, outcome = case.constraint, selection.outcome
    if outcome == ALL:
        what = "every ready endpoint" if case.decision.federated is None else "every entry"
        return f"{what}: {why_all(case, selection)}"
    if isinstance(constraint, NamedDomain):
        domain = f"{constraint.key}={constraint.value}, which the name demands"
        return f"the endpoints with {domain}" if outcome == NEAREST else f"no ready endpoint has {domain}"
    if isinstance(constraint, Hinted):
        key, value = next((step.key, step.value) for step in selection.steps if step.key == selection.key)
        return f"the endpoints whose hints name the client's {HINTED[key]} {value}"
    if outcome == UNMET:
        return "no ready endpoint is as near as the constraint demands"
    return "the endpoints nearest to the client"


def why_all(case: Case, selection: Selection) -> str:
    """Return why a constraint leaves every ready endpoint."""
    constraint = case.constraint
    if selection.key is None:
        return "the client is unknown, and --unknown-client is all"
    if isinstance(constraint, NamedDomain):
        return f"none has {constraint.key}={constraint.value}, which the name prefers"
    if constraint is not None and constraint.terms and not case.location.known:
        return "the client cannot be located, and the constraint allows any"
    if isinstance(constraint, Hinted):
        tried = " or ".join(HINTED[key] for key in constraint.keys if key in HINTED)
        return f"no hint names the client's {tried}"
    if isinstance(constraint, FirstMatch | Narrowing) and any(step.matched for step in selection.steps if step.value):
        return f"too few are nearer (min-endpoints is {constraint.at_least}), and the constraint allows any"
    return AUTO_MODE if left_to_kubernetes(case) else ANY_WILL_DO


def left_to_kubernetes(case: Case) -> bool:
    """Whether ``trafficDistribution`` counts, and an annotation of Kubernetes switches it off."""
    declaration, service = case.decision.declaration, case.decision.service
    if declaration is None or service is None or declaration.source != TRAFFIC_DISTRIBUTION:
        return False
    return service.service.topology_mode in AUTO
