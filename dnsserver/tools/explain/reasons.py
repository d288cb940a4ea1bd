# SPDX-License-Identifier: Apache-2.0

"""Says in one phrase why an answer is what it is."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dnsserver import names
from dnsserver.answers.choosing import IN_SRV_ALONE
from dnsserver.answers.decision import ADDRESS_SIZES, Authority, Decision
from dnsserver.answers.endpoint_names import endpoint_names
from dnsserver.answers.resolution import MAX_ALIASES
from dnsserver.message.records import type_name
from dnsserver.message.wire import ANY, CNAME, NXDOMAIN, REFUSED, SERVFAIL, SRV
from dnsserver.names import DISABLED, QueryName, labels_of, pod_address, query_name_of
from dnsserver.spelling import listed, names_in, nearest_key, suggestion
from dnsserver.tools.explain.balance import HINTED, Room, common, room_for
from locator.ip import Network
from locator.model import EndpointSlice, Location, Node, Object, Service
from locator.state.snapshot import CompiledService, ImportedService, Snapshot, lacking
from locator.topology.annotations import has_mode_auto
from locator.topology.constraints import NOT_HEADLESS, SOURCE, TRAFFIC_DISTRIBUTION
from locator.topology.hints import FOR_KUBE_PROXY
from locator.topology.selection import (
    ALL,
    ANY_ENDPOINT,
    NEAREST,
    SPILLED,
    UNCONSTRAINED,
    UNMET,
    Constraint,
    FirstMatch,
    Hinted,
    NamedDomain,
    Narrowing,
    Selection,
)

ANY_WILL_DO = "is nearer, and the constraint allows any"
AUTO_MODE = "the Service's topology mode is Auto, which switches trafficDistribution off"
SAME_FOR_ALL = "the name is the same for all clients"
OWN_NAME = "an endpoint's own name is never narrowed"
NO_READY_ENDPOINT = "the Service has no ready endpoint"

# The types of names that have no records whatever there is.
WITHOUT_RECORDS = (
    *(names.EMPTY_NON_TERMINAL, names.NAMESPACE, names.POD_NAMESPACE, names.PROTOCOL, names.ZONAL),
    *(names.FEDERATED_NAMESPACE, names.FEDERATED_PROTOCOL, names.FEDERATED_CLUSTER),
)
OF_SERVICES = ("A", "AAAA", "SRV")
# Type of name -> the types of records that such names can have, if not those of Services.
RECORD_TYPES = {
    names.APEX: ("SOA", "NS"),
    names.NAME_SERVER: ("A", "AAAA"),
    names.VERSION: ("TXT",),
    names.POD: ("A", "AAAA"),
    names.REVERSE: ("PTR",),
    names.PORT: ("SRV",),
    names.FEDERATED_PORT: ("SRV",),
}


class ExplainedDecision(Struct, frozen=True, eq=False):
    """A Decision, and what it was made from; ``location`` is the client's.

    ``suggests``: the reason why a name does not exist says which one does, for 30 microseconds a Service.
    """

    decision: Decision
    location: Location
    snapshot: Snapshot
    authority: Authority
    suggests: bool = True

    @property
    def query_name(self) -> QueryName | None:
        """What the name means, or the name at the end of its aliases; None if that is outside the zones."""
        decision = self.decision
        if not decision.aliases:
            return decision.query_name
        return query_name_of(labels_of(str(decision.aliases[-1].data)), self.authority.zones)

    @property
    def compiled(self) -> CompiledService | None:
        """The Service that this name belongs to; None if it belongs to none, or to a federated one."""
        service, query_name = self.decision.service, self.query_name
        if service is None or query_name is None or service.service.key != query_name.service_key:
            return None
        is_import = query_name.zone.about == names.MULTICLUSTER
        return service if is_import == isinstance(service, ImportedService) else None

    @property
    def constraint(self) -> Constraint | None:
        """The constraint that chose the endpoints, or would have; None if there is none."""
        declaration = self.decision.declaration
        return None if declaration is None else declaration.constraint

    @property
    def room(self) -> Room | None:
        """What the client would get if all endpoints had room; None if it gets that, or no endpoint."""
        return room_for(self.location, self.decision, self.snapshot)


def reason(explained: ExplainedDecision) -> str:
    """Return in one phrase why the answer is what it is."""
    decision = explained.decision
    if decision.query_name is None:
        zones = ", ".join(zone.name for zone in explained.authority.zones if not zone.reverse)
        return f"the name is outside the served zones: {zones}"
    if decision.rcode == REFUSED:
        return "zone transfers are not served"
    if decision.rcode == SERVFAIL:
        return f"an alias that leads to {decision.outside_target}, outside the served zones, and the look-up failed"
    if where := _alias(decision, explained.authority):
        return where
    query_name = explained.query_name
    assert query_name is not None  # where aliases lead outside the zones, that is told
    if decision.rcode == NXDOMAIN:
        why = _no_such_name(explained, query_name)
        return f"an alias of a name that does not exist: {why}" if decision.aliases else why
    if not decision.answers:
        return _no_records(explained, query_name)
    if decision.qtype == ANY:
        return "a question of type ANY gets one small record (RFC 8482)"
    if decision.selection is not None and decision.outcome != UNCONSTRAINED:
        return _outcome(explained, decision.selection)
    return SAME_FOR_ALL if decision.federated is not None else unnarrowed(explained)


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
    return ""


def unnarrowed(explained: ExplainedDecision) -> str:
    """Return why all clients get the same records."""
    compiled, declaration, query_name = explained.compiled, explained.decision.declaration, explained.query_name
    if query_name is not None and query_name.name_type == names.REVERSE:
        return "a reverse name is never narrowed"
    if query_name is None or compiled is None:
        return "the name belongs to no Service"
    if query_name.name_type in names.ENDPOINTS_OWN:
        return OWN_NAME
    if not compiled.service.headless:
        asks = declaration is not None and not SOURCE[declaration.source].of_kubernetes
        near = f": near the client with {FOR_KUBE_PROXY}, else anywhere" if asks else ""
        return f"{NOT_HEADLESS}, so kube-proxy chooses{near}"
    if declaration is None:
        unmatched = [one.ignored for one in compiled.declarations if one.unmatched]
        return f"no constraint is in effect: {unmatched[0]}" if unmatched else "the Service has no constraint"
    if not declaration.valid:
        return "the constraint is invalid"
    return declaration.without_effect or f"none {ANY_WILL_DO}"


def _no_records(explained: ExplainedDecision, query_name: QueryName) -> str:
    """Return why a name that exists has no records of the type that was asked for."""
    compiled, found, selection = explained.compiled, explained.decision.federated, explained.decision.selection
    if selection is not None:
        return _none_chosen(explained, query_name, selection)
    if _is_between(explained, query_name):
        return "the name has no records of its own: it exists because names exist beneath it"
    if other_types := _other_types(explained, query_name):
        return other_types
    missing = _record_text(explained, query_name)
    if query_name.name_type == names.NAME_SERVER:
        return f"the name server has no {missing} (--ns-address)"
    if query_name.name_type == names.POD:
        return f"the address in the name is no {missing}"
    if found is not None:
        return f"the entry has no {missing}"
    if compiled is None or query_name.name_type in names.ENDPOINTS_OWN:
        return f"the endpoint has no {missing}"
    if compiled.service.virtual and not compiled.service.cluster_ips:
        is_import = isinstance(compiled, ImportedService)
        return f"no address is written in the {'ServiceImport (spec.ips)' if is_import else 'Service (spec.clusterIP)'}"
    return f"the Service has no {missing}"


def _other_types(explained: ExplainedDecision, query_name: QueryName) -> str:
    """Return which types of records such a name can have, "" if the one that was asked for is among them."""
    *others, last = RECORD_TYPES.get(query_name.name_type, OF_SERVICES)
    if type_name(explained.decision.qtype) in (*others, last):
        return ""
    return f"this name has records of type {', '.join(others)}{' and ' if others else ''}{last} alone"


def _record_text(explained: ExplainedDecision, query_name: QueryName) -> str:
    """Return what something lacks if it has no record of the type that was asked for."""
    size = ADDRESS_SIZES.get(explained.decision.qtype)
    if size is not None:
        return "IPv4 address" if size == 4 else "IPv6 address"
    return _port(query_name) if query_name.port else "port"


def _port(query_name: QueryName) -> str:
    return f"port {query_name.port} ({query_name.protocol.upper()})"


def _is_between(explained: ExplainedDecision, query_name: QueryName) -> bool:
    """Whether a name exists only because of the names beneath it (RFC 8020)."""
    if query_name.name_type in WITHOUT_RECORDS:
        return True
    if query_name.name_type == names.REVERSE and query_name.network is not None and not query_name.network.is_host:
        return True
    compiled = explained.compiled
    if compiled is not None or explained.decision.federated is not None:
        is_cluster = query_name.name_type == names.CLUSTER and compiled is not None
        return is_cluster and not is_own_name(explained)
    beneath = (zone.name.endswith(f".{query_name.name}") for zone in explained.authority.zones)
    return query_name.name_type != names.APEX and any(beneath)


def is_own_name(explained: ExplainedDecision) -> bool:
    """Whether the name is that of an endpoint, or has the form of one; a cluster's name under a Service is neither."""
    query_name, compiled = explained.query_name, explained.compiled
    if query_name is None or query_name.name_type != names.CLUSTER or compiled is None:
        return query_name is not None and query_name.name_type == names.ENDPOINT
    known = endpoint_names(compiled, pod_names=explained.authority.endpoint_pod_names)
    return query_name.endpoint_labels in known.endpoints


def _none_chosen(explained: ExplainedDecision, query_name: QueryName, selection: Selection) -> str:
    """Return why the endpoints that a client gets, if any, have no record of the type that was asked for."""
    decision, found = explained.decision, explained.decision.federated
    if not selection.endpoints:
        if found is not None:
            viewer = found.viewer(explained.location)
            if not found.entries(viewer, with_ports=decision.qtype == SRV):
                by_srv = found.entries(viewer, with_ports=True)
                return IN_SRV_ALONE if by_srv else "nothing that the Service has can be reached by this client"
        return _outcome(explained, selection)
    if other_types := _other_types(explained, query_name):
        return other_types
    if decision.qtype == SRV and any(
        not query_name.port or (port.name, port.protocol) == (query_name.port, query_name.protocol)
        for located in selection.endpoints
        for port in located.endpoint.ports
    ):
        return "the names that the records would point to are longer than a name can be"
    missing = _record_text(explained, query_name)
    if selection.outcome in (NEAREST, SPILLED):
        return f"{_outcome(explained, selection)}: none of them has {_article(missing)} {missing}"
    return f"no {'ready endpoint' if found is None else 'entry for this client'} has {_article(missing)} {missing}"


def _article(thing: str) -> str:
    return "an" if thing.startswith("IP") else "the" if thing.startswith("port ") else "a"


def _no_such_name(explained: ExplainedDecision, query_name: QueryName) -> str:
    """Return why a name does not exist."""
    compiled, snapshot = explained.compiled, explained.snapshot
    if explained.decision.federated is not None:
        return _no_such_federated_name(query_name)
    if compiled is not None:
        return _not_of_service(explained, query_name, compiled)
    if query_name.name_type == names.IMPOSSIBLE:
        form = f"no name in the zone {query_name.zone.name} has this form"
        return "the name stands for no address" if query_name.zone.reverse else form
    if query_name.network is not None:
        return f"{_no_such_address(explained, query_name.network)}{_lacking(explained, Service, EndpointSlice)}"
    if query_name.name_type in (names.POD, names.POD_NAMESPACE) and explained.authority.pods == DISABLED:
        return "pods have no names (--pods disabled)"
    if query_name.zone.about == names.FEDERATION:
        return f"{_not_exported(explained, query_name)}{_lacking(explained, Service, EndpointSlice)}"
    if query_name.namespace not in snapshot.namespaces:
        hint = suggestion(query_name.namespace, snapshot.namespaces) if explained.suggests else ""
        return f"topodns serves no namespace {query_name.namespace}{hint}"
    if query_name.name_type == names.POD:
        if pod_address(query_name.pod) is None:
            return f"{query_name.pod} is no address with dashes"
        return f"no running pod in namespace {query_name.namespace} has this address (--pods verified)"
    is_import = query_name.zone.about == names.MULTICLUSTER
    if not is_import and (why := lacking(snapshot, Service)):
        return why
    known, kind = (snapshot.imported, "ServiceImport") if is_import else (snapshot.services, "Service")
    return f"topodns serves no {kind} {query_name.service_key}{_hint(query_name, known) if explained.suggests else ''}"


def _not_exported(explained: ExplainedDecision, query_name: QueryName) -> str:
    if not query_name.service:
        hint = suggestion(query_name.namespace, explained.snapshot.federated_namespaces) if explained.suggests else ""
        return f"no cluster exports a Service in namespace {query_name.namespace} that has an address for anybody{hint}"
    hint, federated = "", explained.snapshot.federated
    if explained.suggests:
        closest = nearest_key(query_name.namespace, query_name.service, federated)
        hint = f", did you mean {closest}?" if closest else listed(federated)
    what = f"a Service {query_name.service_key} that has a ready endpoint and an address for anybody"
    return f"no cluster exports {what}{hint}"


def _no_such_address(explained: ExplainedDecision, network: Network) -> str:
    if not network.is_host:
        return "no Service and no endpoint has an address that begins so"
    if explained.snapshot.service_addresses.get(network.address):
        return "the names of this address are longer than a name can be"
    return "no Service and no endpoint has this address"


def _not_of_service(explained: ExplainedDecision, query_name: QueryName, compiled: CompiledService) -> str:
    """Return why a name under a Service that exists, or its own, does not exist."""
    authority, service, name_type = explained.authority, compiled.service, query_name.name_type
    ignored = authority.ignore_empty_service and service.virtual and compiled.empty
    if ignored and not lacking(explained.snapshot, EndpointSlice):
        return f"{NO_READY_ENDPOINT} (--ignore-empty-service)"
    if name_type == names.SERVICE and service.alias == "":
        return "the Service's externalName is not a domain name"
    if name_type in (names.ZONAL, names.PINNED, names.PREFERRED):
        if authority.zonal is None:
            return "there are no zonal names (--zonal off)"
        if not service.headless:
            return f"only headless Services have zonal names, and {NOT_HEADLESS}"
    if service.alias is not None and name_type in names.ENDPOINTS_OWN:
        return "the Service is an alias, and has no endpoints with names"
    by_endpoints = ignored or service.headless or name_type in names.ENDPOINTS_OWN
    if by_endpoints and not compiled.endpoints:
        if why := lacking(explained.snapshot, EndpointSlice):
            return f"{why}, so the Service's endpoints are not known"
        return NO_READY_ENDPOINT if compiled.empty else "endpoints have no records (--no-endpoints)"
    if name_type == names.PORT:
        return f"the Service has no {_port(query_name)}"
    if name_type == names.PROTOCOL:
        return f"the Service has no port with a name and the protocol {query_name.protocol.upper()}"
    if name_type == names.CLUSTER:
        return "no ready endpoint of the Service has this name, or is in a cluster of this name"
    unready = explained.snapshot.unready.get(compiled.cache_key, ())
    labels = (
        names.endpoint_label(located.endpoint, address, pod_names=authority.endpoint_pod_names)
        for located in unready
        if located.endpoint.cluster in (None, query_name.cluster)
        for address in located.endpoint.addresses
    )
    if query_name.endpoint in labels:
        return "the endpoint of this name is not ready"
    return "no ready endpoint of the Service has this name"


def _no_such_federated_name(query_name: QueryName) -> str:
    if query_name.name_type == names.FEDERATED_PORT:
        return f"no entry of the Service has a {_port(query_name)}"
    if query_name.name_type == names.FEDERATED_PROTOCOL:
        return f"no entry of the Service has a port with a name and the protocol {query_name.protocol.upper()}"
    if query_name.name_type == names.FEDERATED_CLUSTER:
        return f"no entry of the Service is in a cluster {query_name.cluster}"
    return "no entry of the Service has this name"


def _hint(query_name: QueryName, known: Mapping[str, CompiledService]) -> str:
    closest = nearest_key(query_name.namespace, query_name.service, known)
    if closest is None:
        return listed(names_in(query_name.namespace, known))
    return f", did you mean {closest.removeprefix(f'{query_name.namespace}/')}?"


def _outcome(explained: ExplainedDecision, selection: Selection) -> str:
    """Return how the endpoints of a selection were chosen."""
    keys = () if explained.constraint is None else explained.constraint.keys
    values = [explained.location.value(key) for key in keys if key != ANY_ENDPOINT]
    nowhere = selection.outcome in (ALL, UNMET) and (not explained.location.known or None in values)
    return f"{_choice(explained, selection)}{_lacking(explained, Node) if nowhere else ''}"


def _lacking(explained: ExplainedDecision, *kinds: type[Object]) -> str:
    """Return what may be the reason instead: which of the *kinds* the dump lacks, "" if it lacks none."""
    return "".join(f"; {why}" for kind in kinds if (why := lacking(explained.snapshot, kind)))


def _choice(explained: ExplainedDecision, selection: Selection) -> str:
    """Return which endpoints a constraint leaves, and of a balanced Service those with room."""
    room = explained.room
    if selection.outcome == SPILLED and room is not None:
        what = (
            f"the endpoints {common(explained.constraint, selection)}" if selection.narrowed else "every ready endpoint"
        )
        choice = f"passed on to {what}: {room.why_passed_on}"
    else:
        choice = _nearest(explained, selection)
    return f"{choice}; {room.exception}" if room is not None and room.exception else choice


def _nearest(explained: ExplainedDecision, selection: Selection) -> str:
    constraint, outcome, of_family = explained.constraint, selection.outcome, _of_family(explained, selection)
    federated = explained.decision.federated is not None
    if outcome == ALL:
        what = "every entry" if federated else "every ready endpoint"
        return f"{what}{of_family}: {why_all(explained, selection)}"
    if isinstance(constraint, NamedDomain):
        verb = "prefers" if constraint.or_all else "demands"
        domain = f"{constraint.key}={constraint.value}, which the name {verb}"
        return f"the endpoints with {domain}" if outcome == NEAREST else f"no ready endpoint has {domain}"
    if isinstance(constraint, Hinted):
        key, value = next((step.key, step.value) for step in selection.steps if step.key == selection.key)
        return f"the endpoints{of_family} whose hints name the client's {HINTED[key]} {value}"
    if outcome == UNMET:
        return f"no {'entry' if federated else 'ready endpoint'} is as near as the constraint demands"
    return f"the {'entries' if federated else 'endpoints'}{of_family} nearest to the client"


def _of_family(explained: ExplainedDecision, selection: Selection) -> str:
    """Return which endpoints alone the choice was among, because those chosen at first had none; "" if among all."""
    return "" if selection.octets is None else f" with an {type_name(explained.decision.qtype)} record"


def why_all(explained: ExplainedDecision, selection: Selection) -> str:
    """Return why a constraint leaves every ready endpoint, or every one of the family that is asked."""
    constraint, of_family = explained.constraint, _of_family(explained, selection)
    none, no_hint = "none", "no hint"
    if of_family:
        none, no_hint = f"no endpoint{of_family}", f"no hint of an endpoint{of_family}"
    if selection.key is None:
        return "the client is unknown, and --unknown-client is all"
    if isinstance(constraint, NamedDomain):
        return f"{none} has {constraint.key}={constraint.value}, which the name prefers"
    if constraint is not None and constraint.client_keys and not explained.location.known:
        return "the client cannot be located, and the constraint allows any"
    if isinstance(constraint, Hinted):
        tried = " or ".join(HINTED[key] for key in constraint.keys if key in HINTED)
        return f"{no_hint} names the client's {tried}"
    if isinstance(constraint, FirstMatch | Narrowing) and any(step.matched for step in selection.steps if step.value):
        return f"too few{of_family} are nearer (min-endpoints is {constraint.at_least}), and the constraint allows any"
    return AUTO_MODE if left_to_kubernetes(explained) else f"{none} {ANY_WILL_DO}"


def left_to_kubernetes(explained: ExplainedDecision) -> bool:
    """Whether ``trafficDistribution`` counts, and an annotation of Kubernetes switches it off."""
    declaration, service = explained.decision.declaration, explained.decision.service
    if declaration is None or service is None or declaration.source != TRAFFIC_DISTRIBUTION:
        return False
    return has_mode_auto(service.service)
