# SPDX-License-Identifier: Apache-2.0

"""Resolves the names under a Service: its own, and those of its ports, endpoints and topology zones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from dnsserver import names
from dnsserver.answers.decision import ADDRESS_SIZES, Decision, EndpointNames, Request
from dnsserver.message import wire
from dnsserver.message.records import Record, Srv
from dnsserver.names import endpoint_label
from locator.model import MAX_NAME, Location, Port
from locator.state.snapshot import CompiledService, ImportedService
from locator.topology.constraints import ZONAL_NAME, Declaration, in_effect
from locator.topology.selection import (
    NEAREST,
    UNMET,
    Constraint,
    LocatedEndpoint,
    NamedDomain,
    Narrowing,
    Selection,
    select,
)

MAX_WITH_ADDRESSES = 64  # SRV records at a name that anybody can make up; no datagram holds addresses beside so many
# SRV records of an answer: four times as many as 64 KiB hold, however short their targets are. Whoever may write a
# Service or its slices could ask for millions: each endpoint of a slice has all its ports.
MAX_TARGETS = 8192

WantedPort = Callable[[tuple[str, str]], bool]  # by name and protocol


def service(request: Request, compiled: CompiledService) -> Decision:
    """Answer the Service's own name."""
    alias = compiled.service.alias
    if alias is not None:
        return request.alias_decision(alias, compiled) if alias else request.decision(wire.NXDOMAIN, service=compiled)
    if compiled.service.headless:
        return _headless(request, compiled, any_port)
    if request.qtype == wire.SRV:
        return _virtual_ports(request, compiled, any_port)
    return request.decision(answers=request.addresses(compiled.service.cluster_ips), service=compiled)


def port(request: Request, compiled: CompiledService) -> Decision:
    """Answer the name of a port, ``_http._tcp.web.shop.svc``: it has only SRV records."""
    query_name = request.query_name

    def wanted(port: tuple[str, str]) -> bool:
        return port == (query_name.port, query_name.protocol)

    if not any(map(wanted, _named_ports(compiled))):
        return request.decision(wire.NXDOMAIN, service=compiled)
    if request.qtype != wire.SRV:
        return request.decision(service=compiled)
    return (_headless if compiled.service.headless else _virtual_ports)(request, compiled, wanted)


def protocol(request: Request, compiled: CompiledService) -> Decision:
    """Answer the name ``_tcp.web.shop.svc``: it has no records, and exists if a port has that protocol (RFC 8020)."""
    exists = any(protocol == request.query_name.protocol for _, protocol in _named_ports(compiled))
    return request.decision(wire.NOERROR if exists else wire.NXDOMAIN, service=compiled)


def endpoint(request: Request, compiled: CompiledService) -> Decision:
    """Answer the name of an endpoint. It is never narrowed: a client that uses it wants exactly this endpoint."""
    located_addresses = request.names_of(compiled).endpoints.get(request.query_name.endpoint_labels)
    if located_addresses is None:
        return request.decision(wire.NXDOMAIN, service=compiled)
    if request.qtype == wire.SRV:
        ports = dict.fromkeys(port.number for located, _ in located_addresses for port in located.endpoint.ports)
        return _srv(request, compiled, [(request.query_name.name, number) for number in ports],
                    [(request.query_name.name, address) for _, address in located_addresses])  # fmt: skip
    return request.decision(answers=request.addresses([address for _, address in located_addresses]), service=compiled)


def cluster(request: Request, compiled: CompiledService) -> Decision:
    """Answer the name of a cluster under a multi-cluster Service: it has no records, and exists if an endpoint's does.

    An endpoint whose slice does not say which cluster it is in has a name of this type, too.
    """
    labels = request.names_of(compiled).endpoints
    if request.query_name.endpoint_labels in labels:
        return endpoint(request, compiled)
    exists = any(label.partition(".")[2] == request.query_name.cluster for label in labels)
    return request.decision(wire.NOERROR if exists else wire.NXDOMAIN, service=compiled)


def zonal(request: Request, compiled: CompiledService) -> Decision:
    """Answer a zonal name with the endpoints in the topology zone that it gives, wherever the client is."""
    key, name_type, value = request.authority.zonal, request.query_name.name_type, request.query_name.value
    if key is None or not compiled.service.headless or not compiled.endpoints:
        return request.decision(wire.NXDOMAIN, service=compiled)
    if name_type == names.ZONAL:
        return request.decision(service=compiled)
    constraint = NamedDomain(key, value, or_all=name_type == names.PREFERRED)
    selection = select(constraint, request.location, compiled.endpoints, octets=ADDRESS_SIZES.get(request.qtype))
    decision = replace(
        _records_of(request, compiled, selection.endpoints, any_port, selection=selection),
        declaration=Declaration(ZONAL_NAME, constraint),
    )
    if selection.outcome == NEAREST:
        return decision
    # A client can write any topology zone: it can ask for any number of names without an endpoint. Without additional
    # records, the answers to all of them are the same octets, which are packed once.
    additional = decision.additional_records if len(decision.answers) <= MAX_WITH_ADDRESSES else ()
    return replace(decision, source_object=None, additional_records=additional)


def zones_of(compiled: CompiledService, key: str) -> frozenset[str]:
    """Return the topology zones that a Service has endpoints in, by a label key, in lower case as names are."""
    return frozenset((located.location.value(key) or "").lower() for located in compiled.endpoints)


def names_of_address(
    request: Request, compiled: CompiledService, address: bytes, zone: names.Zone
) -> Iterator[tuple[str, bool]]:
    """Yield the names of the endpoints with *address* in a DNS zone, and whether each is a host name.

    Those too long for a query are left out.
    """
    base, known = _base(compiled, zone), request.names_of(compiled)
    for label in known.labels.get(address, ()):
        if len(label) + 1 + len(base) <= MAX_NAME:
            is_host = any(located.endpoint.hostname and one == address for located, one in known.endpoints[label])
            yield f"{label}.{base}", is_host


def names_of_service(compiled: CompiledService, zone: names.Zone) -> Iterator[str]:
    """Yield the Service's own name in a DNS zone, unless it is too long for a query."""
    base = _base(compiled, zone)
    if len(base) <= MAX_NAME:
        yield base


def _base(compiled: CompiledService, zone: names.Zone) -> str:
    return f"{compiled.service.name}.{compiled.service.namespace}.svc.{zone.name}"


def endpoint_names(compiled: CompiledService, *, pod_names: bool) -> EndpointNames:
    """Return the names of the Service's endpoints; *pod_names* is ``--endpoint-pod-names``."""
    by_name = EndpointNames({}, {})
    for located in compiled.endpoints:
        for address in located.endpoint.addresses:
            label = _endpoint_label(compiled, located, address, pod_names=pod_names)
            by_name.endpoints.setdefault(label, []).append((located, address))
            by_name.labels.setdefault(address, []).append(label)
    return by_name


def _endpoint_label(compiled: CompiledService, located: LocatedEndpoint, address: bytes, *, pod_names: bool) -> str:
    """Return the labels of an endpoint's name before its Service's: one, and under a multi-cluster Service its cluster.

    An endpoint of such a Service whose slice names no cluster has one label, too.
    """
    label = endpoint_label(located.endpoint, address, pod_names=pod_names)
    cluster = located.endpoint.cluster if isinstance(compiled, ImportedService) else ""
    return f"{label}.{cluster}" if cluster else label


def any_port(port: tuple[str, str]) -> bool:
    """Whether a port is wanted where all are."""
    return True


def _named_ports(compiled: CompiledService) -> set[tuple[str, str]]:
    """Return name and protocol of every port with a name."""
    if compiled.service.headless:
        return named_ports(compiled.endpoints)
    return {(port.name, port.protocol) for port in compiled.service.ports if port.name}


def named_ports(endpoints: Iterable[LocatedEndpoint]) -> set[tuple[str, str]]:
    """Return name and protocol of every port with a name that an endpoint has."""
    lists = {id(located.endpoint.ports): located.endpoint.ports for located in endpoints}  # those of a slice share one
    return {(port.name, port.protocol) for ports in lists.values() for port in ports if port.name}


def _headless(request: Request, compiled: CompiledService, wanted: WantedPort) -> Decision:
    if not compiled.endpoints:
        return request.decision(wire.NXDOMAIN, service=compiled)  # schema 1.1.0: no ready endpoint, no name
    if request.qtype != wire.SRV and request.qtype not in ADDRESS_SIZES:
        return request.decision(service=compiled)  # no endpoint has records of this type, for any client
    authority = request.authority
    constraint = in_effect(authority.declaration(request.query_name.zone, compiled))
    selection = select(
        constraint,
        request.location,
        compiled.endpoints,
        unknown_gets_all=authority.unknown_gets_all,
        octets=ADDRESS_SIZES.get(request.qtype),
    )
    client_keys = constraint.client_keys
    if selection.outcome == UNMET:
        # Caches share negative answers among clients (RFC 7871, section 7.4), so they must not store this one.
        return replace(
            request.decision(service=compiled, selection=selection, client_keys=client_keys),
            authority_records=(request.soa(ttl=0),),
            extended_error=(wire.EDE_OTHER, unmet_text(selection, constraint, request.location)),
        )
    decision = _records_of(request, compiled, selection.endpoints, wanted, selection=selection, client_keys=client_keys)
    if decision.answers or not client_keys:
        return decision
    if _any_records(request, compiled, wanted, selection):
        return replace(decision, authority_records=(request.soa(ttl=0),))  # other clients do get records
    return replace(decision, client_keys=()) if constraint.soft else decision  # no client gets one, wherever it is


def unmet_text(selection: Selection, constraint: Constraint, client: Location) -> str:
    """Name the keys and values that no ready endpoint matches: ``Narrowing`` demands all, other types one of them."""
    joint = " and " if isinstance(constraint, Narrowing) else " or "
    absent = " or ".join(step.key for step in selection.steps if step.value is None)
    if not client.known:
        return f"the client cannot be located, so it has no label {absent}"
    present = joint.join(f"{step.key}={step.value}" for step in selection.steps if step.value is not None)
    texts = [f"no ready endpoint has the client's {present}"] if present else []
    return "; ".join(texts + ([f"the client has no label {absent}"] if absent else []))


def _records_of(
    request: Request,
    compiled: CompiledService,
    endpoints: Sequence[LocatedEndpoint],
    wanted: WantedPort,
    *,
    selection: Selection,
    client_keys: tuple[str, ...] = (),
) -> Decision:
    """Answer with the records of *endpoints* that have the question's type."""
    if request.qtype != wire.SRV:
        addresses = dict.fromkeys([address for located in endpoints for address in located.endpoint.addresses])
        answers = request.addresses(list(addresses))
        return request.decision(answers=answers, service=compiled, selection=selection, client_keys=client_keys)
    base, pod_names = _base(compiled, request.query_name.zone), request.authority.endpoint_pod_names
    targets: dict[tuple[str, int], None] = {}
    hosts: dict[tuple[str, bytes], None] = {}
    ports: Sequence[Port] = ()
    numbers: Sequence[int] = ()
    for located in endpoints:
        endpoint = located.endpoint
        if endpoint.ports is not ports:  # the endpoints of a slice share them
            ports = endpoint.ports
            numbers = [port.number for port in ports if wanted((port.name, port.protocol))][:MAX_TARGETS]
        for address in endpoint.addresses if numbers else ():
            name = f"{_endpoint_label(compiled, located, address, pod_names=pod_names)}.{base}"
            if len(name) <= MAX_NAME:  # else longer than a query can hold
                hosts[name, address] = None
                for number in numbers:
                    targets[name, number] = None
        if len(targets) >= MAX_TARGETS:
            break
    return _srv(request, compiled, list(targets), list(hosts), selection=selection, client_keys=client_keys)


def _any_records(request: Request, compiled: CompiledService, wanted: WantedPort, selection: Selection) -> bool:
    """Whether any of the Service's endpoints has a record of the question's type."""
    if request.qtype == wire.SRV:
        return bool(_records_of(request, compiled, compiled.endpoints, wanted, selection=selection).answers)
    size = ADDRESS_SIZES.get(request.qtype)
    return any(len(address) == size for located in compiled.endpoints for address in located.endpoint.addresses)


def _virtual_ports(request: Request, compiled: CompiledService, wanted: WantedPort) -> Decision:
    service, name = compiled.service, _base(compiled, request.query_name.zone)
    numbers = [port.number for port in service.ports if wanted((port.name, port.protocol))]
    targets = [(name, number) for number in dict.fromkeys(numbers)] if service.cluster_ips else []
    return _srv(request, compiled, targets, [(name, address) for address in service.cluster_ips])


def _srv(
    request: Request,
    compiled: CompiledService,
    targets: Sequence[tuple[str, int]],
    hosts: Sequence[tuple[str, bytes]],
    *,
    selection: Selection | None = None,
    client_keys: tuple[str, ...] = (),
) -> Decision:
    """Answer with an SRV record of equal weight for each target and port, and the addresses of *hosts* beside them."""
    targets = targets[:MAX_TARGETS]
    weight, name, ttl = max(1, 100 // (len(targets) or 1)), request.query_name.name, request.authority.ttl
    return request.decision(
        answers=[Record(name, wire.SRV, ttl, Srv(weight, port, target)) for target, port in targets],
        additional_records=request.address_records(hosts) if targets else (),
        service=compiled,
        selection=selection,
        client_keys=client_keys,
    )
