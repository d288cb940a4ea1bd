# SPDX-License-Identifier: Apache-2.0

"""Resolves the names under a Service, in one cluster or in several: its own, and those of its ports and endpoints.

Names under a federated Service are answered likewise, with its entries as endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from dnsserver import names
from dnsserver.answers.choosing import choose, ttls_of, why_none
from dnsserver.answers.decision import ADDRESS_SIZES, AddressedEndpoint, Decision, EndpointChoice, Request
from dnsserver.answers.endpoint_names import labels_in, service_name
from dnsserver.message import wire
from dnsserver.message.records import Record, Srv
from locator.model import MAX_NAME, Port
from locator.state.snapshot import AnyService, CompiledService, FederatedService
from locator.topology.constraints import ZONAL_NAME, Declaration
from locator.topology.selection import NEAREST, LocatedEndpoint, NamedDomain, select

MAX_WITH_ADDRESSES = 64  # SRV records at a name that anybody can make up; no datagram holds addresses beside so many
# SRV records of an answer: four times as many as 64 KiB hold, however short their targets are. Whoever may write a
# Service or its slices could ask for millions: each endpoint of a slice has all its ports.
MAX_TARGETS = 8192
PRIORITY_STEP = 10  # between the SRV records of two spares

WantedPort = Callable[[tuple[str, str]], bool]  # by name and protocol
Target = tuple[str, int]  # of an SRV record: name and port


def service(request: Request, found: AnyService) -> Decision:
    """Answer the Service's own name."""
    if isinstance(found, CompiledService):
        alias = found.service.alias
        if alias is not None:
            return request.alias_decision(alias, found) if alias else request.decision(wire.NXDOMAIN, service=found)
        if not found.service.headless and request.qtype != wire.SRV:
            return request.decision(answers=request.addresses(found.service.cluster_ips), service=found)
    return _answer(request, found, _any_port)


def port(request: Request, found: AnyService) -> Decision:
    """Answer the name of a port, ``_http._tcp.web.shop.svc``: it has only SRV records."""
    query_name = request.query_name

    def wanted(port: tuple[str, str]) -> bool:
        return port == (query_name.port, query_name.protocol)

    if not any(map(wanted, _named_ports(found))):
        return request.decision(wire.NXDOMAIN, service=found)
    return _answer(request, found, wanted) if request.qtype == wire.SRV else request.decision(service=found)


def protocol(request: Request, found: AnyService) -> Decision:
    """Answer the name ``_tcp.web.shop.svc``: it has no records, and exists if a port has that protocol (RFC 8020)."""
    exists = any(protocol == request.query_name.protocol for _, protocol in _named_ports(found))
    return request.decision(wire.NOERROR if exists else wire.NXDOMAIN, service=found)


def endpoint(request: Request, found: AnyService) -> Decision:
    """Answer the name of an endpoint. It is never narrowed: a client that uses it wants exactly this endpoint."""
    named = request.names_of(found).endpoints.get(request.query_name.endpoint_labels)
    if named is None:
        return request.decision(wire.NXDOMAIN, service=found)
    addresses = dict.fromkeys([address for _, address in named])
    ttls = ttls_of([located for located, _ in named])
    if request.qtype == wire.SRV:
        numbers = [port.number for located, _ in named for port in located.endpoint.ports]
        return _srv(request, found, request.query_name.name, numbers, addresses, ttls)
    answers = request.addresses(addresses, request.shared_ttl(addresses, ttls))
    return request.decision(answers=answers, service=found)


def cluster(request: Request, found: AnyService) -> Decision:
    """Answer the name of a cluster under a Service: it has no records, and exists if an endpoint's does.

    An endpoint whose slice does not say which cluster it is in has a name of this type, too.
    """
    labels = request.names_of(found).endpoints
    if request.query_name.endpoint_labels in labels:
        return endpoint(request, found)
    exists = any(label.partition(".")[2] == request.query_name.cluster for label in labels)
    return request.decision(wire.NOERROR if exists else wire.NXDOMAIN, service=found)


def zonal(request: Request, found: AnyService) -> Decision:
    """Answer a zonal name with the endpoints in the topology zone that it gives, wherever the client is."""
    key, name_type, value = request.authority.zonal, request.query_name.name_type, request.query_name.value
    if key is None or isinstance(found, FederatedService) or not found.service.headless or not found.endpoints:
        return request.decision(wire.NXDOMAIN, service=found)
    if name_type == names.ZONAL:
        return request.decision(service=found)
    constraint = NamedDomain(key, value, or_all=name_type == names.PREFERRED)
    selection = select(constraint, request.location, found.endpoints, octets=ADDRESS_SIZES.get(request.qtype))
    declaration = Declaration(ZONAL_NAME, constraint)
    decision = _records_of(request, found, EndpointChoice(declaration, constraint, selection), _any_port)
    if selection.outcome == NEAREST:
        return decision
    # A client can write any topology zone: it can ask for any number of names without an endpoint. Without additional
    # records, the answers to all of them are the same octets, which are packed once.
    additional = decision.additional_records if len(decision.answers) <= MAX_WITH_ADDRESSES else ()
    return replace(decision, source_object=None, additional_records=additional)


def zones_of(compiled: CompiledService, key: str) -> frozenset[str]:
    """Return the topology zones that a Service has endpoints in, by a label key, in lower case as names are."""
    return frozenset((located.location.value(key) or "").lower() for located in compiled.endpoints)


def _any_port(port: tuple[str, str]) -> bool:
    """Whether a port is wanted where all are."""
    return True


def _named_ports(found: AnyService) -> set[tuple[str, str]]:
    """Return name and protocol of every port with a name."""
    if isinstance(found, FederatedService) or found.service.headless:
        return named_ports(found.endpoints)
    return {(port.name, port.protocol) for port in found.service.ports if port.name}


def named_ports(endpoints: Iterable[LocatedEndpoint]) -> set[tuple[str, str]]:
    """Return name and protocol of every port with a name that an endpoint has."""
    lists = {id(located.endpoint.ports): located.endpoint.ports for located in endpoints}  # those of a slice share one
    return {(port.name, port.protocol) for ports in lists.values() for port in ports if port.name}


def _answer(request: Request, found: AnyService, wanted: WantedPort) -> Decision:
    """Answer with the records of the endpoints that the client gets; of a Service with a cluster IP, by SRV."""
    if isinstance(found, CompiledService):
        if not found.service.headless:
            numbers = [port.number for port in found.service.ports if wanted((port.name, port.protocol))]
            return _srv(request, found, service_name(request), numbers, found.service.cluster_ips)
        if not found.endpoints:
            return request.decision(wire.NXDOMAIN, service=found)  # schema 1.1.0: no ready endpoint, no name
    if request.qtype != wire.SRV and request.qtype not in ADDRESS_SIZES:
        return request.decision(service=found)  # no endpoint has records of this type, for any client
    choice = choose(request, found)
    decision = _records_of(request, found, choice, wanted)
    if not choice.selection.endpoints:
        # Caches share negative answers among clients (RFC 7871, section 7.4), so they must not store this one.
        return replace(
            decision,
            authority_records=(request.soa(ttl=0),),
            extended_error=(wire.EDE_OTHER, why_none(request, found, choice)),
        )
    if decision.answers or not choice.client_keys:
        return decision
    if _any_records(request, found, wanted):
        return replace(decision, authority_records=(request.soa(ttl=0),))  # other clients do get records
    # Wherever a client is, it gets none. But of a hard constraint or several clusters, some get an error.
    is_same = choice.constraint.soft and isinstance(found, CompiledService)
    return replace(decision, client_keys=()) if is_same else decision


def _records_of(request: Request, found: AnyService, choice: EndpointChoice, wanted: WantedPort) -> Decision:
    """Answer with the records that the chosen endpoints have of the question's type, and after them the spares."""
    endpoints, ttl = choice.selection.endpoints, request.authority.ttl
    if request.qtype != wire.SRV:
        chosen = dict.fromkeys([address for located in endpoints for address in located.endpoint.addresses])
        after = [address for _, address in choice.spares]
        if choice.ttls:
            ttl = request.shared_ttl([*chosen, *after], choice.ttls)
        answers, spares = request.addresses(chosen, ttl), request.addresses(after, ttl)
        return request.decision(answers=answers, service=found, choice=choice, spares=spares)
    rows = [(located, address) for located in endpoints for address in located.endpoint.addresses]
    targets, hosts = _targets(request, found, rows, choice.spares, wanted)
    if choice.ttls:
        ttl = request.shared_ttl([address for _, address in hosts], choice.ttls)
    records = _srv_records(request, targets, ttl)
    count = sum(not priority for priority in targets.values()) if choice.spares else len(records)
    return request.decision(
        answers=records[:count],
        service=found,
        additional_records=request.address_records(hosts, choice.ttls),
        choice=choice,
        spares=records[count:],
    )


def _targets(
    request: Request,
    found: AnyService,
    chosen: Sequence[AddressedEndpoint],
    spares: Sequence[AddressedEndpoint],
    wanted: WantedPort,
) -> tuple[dict[Target, int], dict[tuple[str, bytes], None]]:
    """Return the targets of SRV records with their priorities, and the addresses of each target's name."""
    base, labels_of = service_name(request), labels_in(request, found)
    targets: dict[Target, int] = {}
    hosts: dict[tuple[str, bytes], None] = {}
    priorities: dict[str, int] = {}  # of the spares, by name
    ports: Sequence[Port] = ()
    numbers: Sequence[int] = ()
    for rows in (chosen, spares):
        for located, address in rows:
            if located.endpoint.ports is not ports:  # the endpoints of a slice share them
                ports = located.endpoint.ports
                numbers = [port.number for port in ports if wanted((port.name, port.protocol))][:MAX_TARGETS]
            labels = labels_of(located, address) if numbers else ""
            name = f"{labels}.{base}"
            if not labels or len(name) > MAX_NAME:
                continue  # it has no name, or one that is longer than a query can hold
            if len(targets) >= MAX_TARGETS:
                break
            hosts[name, address] = None
            priority = priorities.setdefault(name, PRIORITY_STEP * (len(priorities) + 1)) if rows is spares else 0
            for number in numbers:
                targets[name, number] = priority
    return targets, hosts


def _any_records(request: Request, found: AnyService, wanted: WantedPort) -> bool:
    """Whether any of the Service's endpoints has a record of the question's type."""
    rows = [(located, address) for located in found.endpoints for address in located.endpoint.addresses]
    if request.qtype == wire.SRV:
        targets, _ = _targets(request, found, rows, (), wanted)
        return bool(targets)
    size = ADDRESS_SIZES.get(request.qtype)
    return any(len(address) == size for _, address in rows)


def _srv(
    request: Request,
    found: AnyService,
    target: str,
    numbers: Iterable[int],
    addresses: Collection[bytes],
    ttls: Mapping[bytes, int] = {},
) -> Decision:
    """Answer with an SRV record for each of the ports at one target, and its addresses beside them."""
    targets = dict.fromkeys([(target, number) for number in numbers], 0) if addresses else {}
    answers = _srv_records(request, targets, request.authority.ttl)
    hosts = [(target, address) for address in addresses]
    return request.decision(answers=answers, service=found, additional_records=request.address_records(hosts, ttls))


def _srv_records(request: Request, targets: Mapping[Target, int], ttl: int) -> list[Record]:
    """Return an SRV record for each target, with its priority; all have equal weight."""
    name, weight = request.query_name.name, max(1, 100 // max(1, len(targets)))
    return [
        Record(name, wire.SRV, ttl, Srv(weight, port, target, priority))
        for (target, port), priority in islice(targets.items(), MAX_TARGETS)
    ]
