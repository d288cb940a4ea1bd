# SPDX-License-Identifier: Apache-2.0

"""Resolves a query: from a name, a type, a snapshot and the client's location to a Decision.

``RESOLVERS`` has one row for each type of name. This module, ``services.py`` and ``choosing.py`` alone decide
answers. They never see a message as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial

from msgspec.structs import replace

from dnsserver import names
from dnsserver.answers import services
from dnsserver.answers.decision import Authority, Decision, EndpointNames, Request, UpstreamAnswer
from dnsserver.answers.endpoint_names import endpoint_names, names_of_address, names_of_service
from dnsserver.message import wire
from dnsserver.message.records import Host, HostInfo, Record, Text
from dnsserver.names import DISABLED, VERIFIED, QueryName, labels_of, pod_address, query_name_of
from locator.ip import Network, is_within
from locator.model import Location
from locator.places.address_map import keys_at
from locator.state.snapshot import AnyService, CompiledService, Snapshot

SCHEMA_VERSION = Text("1.1.0")
VERSION_TTL = 28800  # seconds, as in CoreDNS: the version changes only with the server
IPV4, MAPPED = Network(bytes(4), 0), Network(bytes(10) + b"\xff\xff" + bytes(4), 96)  # and the same as IPv6
# Followed in one answer, so that loops and look-ups end; those that an upstream brings count, too, but for a whole
# answer of its own, which needs no further look-up.
MAX_ALIASES = 8


def nothing_outside(_: str) -> None:
    """Know nothing about names outside the zones."""


def resolve(
    query_name: QueryName | None,
    qtype: int,
    snapshot: Snapshot,
    location: Location,
    authority: Authority,
    *,
    names_of: Callable[[AnyService], EndpointNames] | None = None,
    outside: Callable[[str], UpstreamAnswer | None] = nothing_outside,
) -> Decision:
    """Return the decision for a client at *location*; *query_name* is None for a name outside the zones.

    *names_of* may replace ``endpoint_names`` by a function that remembers its results. *outside* returns what an
    upstream says about a name outside the zones, None if that is not known. Then the decision ends at that name, its
    ``outside_target``: whoever asks the upstream for it (``Authority.asks_upstream_for``) resolves once more.
    """
    if query_name is None or qtype in (wire.AXFR, wire.IXFR):
        return Decision(query_name, qtype, wire.REFUSED)
    if names_of is None:
        names_of = partial(endpoint_names, pod_names=authority.endpoint_pod_names)
    request = Request(query_name, qtype, snapshot, location, authority, names_of, outside)
    decision = _decided(request)
    if decision.aliases:
        return decision if qtype in (wire.CNAME, wire.ANY) else _followed(request, decision)
    if qtype == wire.ANY and decision.rcode == wire.NOERROR:
        # RFC 8482, section 4.2: ANY gets one small record that says why.
        answer = request.record(wire.HINFO, HostInfo("RFC8482", ""))
        return replace(decision, answers=(answer,), authority_records=(), additional_records=())
    return decision


def _decided(request: Request) -> Decision:
    """Return the decision on the name itself, without following aliases.

    If another served zone lies below the name, the name exists even if it has no records (RFC 8020).
    """
    decision = RESOLVERS[request.query_name.name_type](request)
    if decision.rcode == wire.NXDOMAIN:
        name = f".{request.query_name.name}"
        for zone in request.authority.zones:
            if zone.name.endswith(name):
                return request.decision()
    return decision


def _followed(request: Request, decision: Decision) -> Decision:
    """Return the decision on the last alias's target, with all aliases in front (RFC 1034, section 4.3.2).

    An alias that an upstream brings may lead back into the zones. What the upstream says about names there does not
    count.
    """
    authority, aliases = request.authority, list(decision.aliases)
    while len(aliases) <= MAX_ALIASES:
        target = _target(aliases[-1])
        if _is_owner(target, aliases):
            break
        query_name = query_name_of(labels_of(target), authority.zones)
        if query_name is not None:
            end = _decided(replace(request, query_name=query_name))
            if not end.aliases:
                service = end.service or decision.service
                return replace(
                    end,
                    query_name=request.query_name,
                    aliases=tuple(aliases),
                    service=service,
                    source_object=request.snapshot,
                )
            aliases += end.aliases
            continue
        said = request.outside(target) if authority.asks_upstream_for(request.qtype) else None
        source_object = decision.source_object if len(aliases) == 1 else request.snapshot
        end = replace(
            decision, aliases=tuple(aliases), outside_target=target, upstream=said, source_object=source_object
        )
        if said is None:
            return end
        if said.failed:  # without aliases: nobody must take them for the whole answer
            return replace(end, rcode=wire.SERVFAIL, aliases=(), extended_error=said.extended_error)
        further, leads_back = _followed_outside(said, aliases, authority)
        if said.complete and not leads_back:  # the upstream has followed them all: whole, however many they are
            return replace(
                end,
                rcode=said.rcode,
                aliases=(*aliases, *further),
                answers=said.records,
                authority_records=said.soa,
                outside_target=_target(further[-1]) if further else target,
            )
        aliases += further[: MAX_ALIASES + 1 - len(aliases)]
    return replace(decision, aliases=tuple(aliases), source_object=request.snapshot)


def _followed_outside(
    said: UpstreamAnswer, aliases: Sequence[Record], authority: Authority
) -> tuple[list[Record], bool]:
    """Return the aliases of *said* up to the first that leads back, and whether there is one.

    Those lead back whose target is in a served zone, or has an alias already, also among *aliases*.
    """
    further: list[Record] = []
    for alias in said.aliases:
        further.append(alias)
        target = _target(alias)
        if _is_owner(target, [*aliases, *further]) or query_name_of(labels_of(target), authority.zones) is not None:
            return further, True
    return further, False


def _is_owner(name: str, aliases: Sequence[Record]) -> bool:
    """Whether one of *aliases* is that of *name*, so that another one to it closes a circle."""
    return any(alias.name == name for alias in aliases)


def _target(alias: Record) -> str:
    assert isinstance(alias.data, Host)
    return alias.data.name


def _apex(request: Request) -> Decision:
    authority = request.authority
    if request.qtype == wire.SOA:
        return request.decision(answers=[request.soa()])
    if request.qtype == wire.NS:
        host = f"ns.dns.{request.query_name.zone.name}"
        additional = request.address_records([(host, address) for address in authority.addresses])
        return request.decision(answers=[request.record(wire.NS, Host(host))], additional_records=additional)
    return request.decision()


def _name_server(request: Request) -> Decision:
    return request.decision(answers=request.addresses(request.authority.addresses))


def _version(request: Request) -> Decision:
    record = Record(request.query_name.name, wire.TXT, VERSION_TTL, SCHEMA_VERSION)
    return request.decision(answers=[record] if request.qtype == wire.TXT else ())


def _empty_non_terminal(request: Request) -> Decision:
    """Answer a name that exists because names beneath it do."""
    return request.decision()


def _impossible(request: Request) -> Decision:
    return request.decision(wire.NXDOMAIN)


def _namespace(request: Request) -> Decision:
    return request.decision(
        wire.NOERROR if request.query_name.namespace in request.snapshot.namespaces else wire.NXDOMAIN
    )


def _pod_namespace(request: Request) -> Decision:
    return request.decision(wire.NXDOMAIN) if request.authority.pods == DISABLED else _namespace(request)


def _pod(request: Request) -> Decision:
    """Answer a name like ``10-0-0-1.shop.pod``. In mode verified it exists while a pod there has that address."""
    namespace, address = request.query_name.namespace, pod_address(request.query_name.pod)
    mode, snapshot = request.authority.pods, request.snapshot
    if address is None or mode == DISABLED or namespace not in snapshot.namespaces:
        return request.decision(wire.NXDOMAIN)
    if mode == VERIFIED:
        exists = namespace in (snapshot.pod_namespaces.get(address) or ())
        return request.decision(answers=request.addresses((address,))) if exists else request.decision(wire.NXDOMAIN)
    # Every address has such a name: clients can ask for any number of them.
    return replace(request.decision(answers=request.addresses((address,))), source_object=None)


def _reverse(request: Request) -> Decision:
    """Answer a reverse name by PTR. A part of an address exists if an address beneath it does (RFC 8020)."""
    network, zone = (
        request.query_name.network,
        next((zone for zone in request.authority.zones if not zone.reverse), None),
    )
    if network is None or zone is None:
        return request.decision(wire.NXDOMAIN)
    if network.length < 8 * len(network.address):
        addresses = request.snapshot.service_addresses
        exists = addresses.any_within(network) or (is_within(MAPPED, network) and addresses.any_within(IPV4))
        return request.decision(wire.NOERROR if exists else wire.NXDOMAIN)
    owners = dict.fromkeys(name for _, name in sorted(_names_of(request, network.address, zone)))
    if not owners:
        return request.decision(wire.NXDOMAIN)
    answers = [request.record(wire.PTR, Host(name)) for name in owners] if request.qtype == wire.PTR else ()
    return request.decision(answers=answers)


class _NameRank(IntEnum):
    """The names of an address, in the order in which they are answered: most programs take the first."""

    SERVICE = 0  # the Service that has it as a cluster IP
    HOST = 1  # the host name of an endpoint under a headless Service
    OTHER = 2


def _names_of(request: Request, address: bytes, zone: names.Zone) -> Iterator[tuple[_NameRank, str]]:
    """Yield the names of the Services and endpoints that have *address*."""
    for key in keys_at(request.snapshot.service_addresses, address):
        compiled = request.snapshot.services[key]
        if address in compiled.service.cluster_ips:
            for name in names_of_service(compiled, zone):
                yield _NameRank.SERVICE, name
        for name, is_host in names_of_address(request, compiled, address, zone):
            yield _NameRank.HOST if is_host and compiled.service.headless else _NameRank.OTHER, name


def _federated_namespace(request: Request) -> Decision:
    """Answer the name of a namespace: it exists if a federated Service in it does (RFC 8020)."""
    exists = request.query_name.namespace in request.snapshot.federated_namespaces
    return request.decision(wire.NOERROR if exists else wire.NXDOMAIN)


def _of_service(resolver: Callable[[Request, AnyService], Decision]) -> Callable[[Request], Decision]:
    """Wrap a resolver for names that exist only if their Service does."""

    def resolve_for_service(request: Request) -> Decision:
        about, key, snapshot = request.query_name.zone.about, request.query_name.service_key, request.snapshot
        found: AnyService | None
        if about == names.FEDERATION:
            found = snapshot.federated.get(key)
        else:
            found = (snapshot.imported if about == names.MULTICLUSTER else snapshot.services).get(key)
        if found is None:
            return request.decision(wire.NXDOMAIN)
        if request.authority.ignore_empty_service and _is_empty_virtual(found):
            return request.decision(wire.NXDOMAIN, service=found)
        return resolver(request, found)

    return resolve_for_service


def _is_empty_virtual(found: AnyService) -> bool:
    """Whether a Service has a cluster IP, but no ready endpoint."""
    return isinstance(found, CompiledService) and found.service.virtual and found.empty


# Type of name -> its resolver.
RESOLVERS: dict[str, Callable[[Request], Decision]] = {
    names.APEX: _apex,
    names.EMPTY_NON_TERMINAL: _empty_non_terminal,
    names.NAME_SERVER: _name_server,
    names.VERSION: _version,
    names.POD_NAMESPACE: _pod_namespace,
    names.POD: _pod,
    names.NAMESPACE: _namespace,
    names.SERVICE: _of_service(services.service),
    names.ZONAL: _of_service(services.zonal),
    names.PINNED: _of_service(services.zonal),
    names.PREFERRED: _of_service(services.zonal),
    names.PROTOCOL: _of_service(services.protocol),
    names.PORT: _of_service(services.port),
    names.ENDPOINT: _of_service(services.endpoint),
    names.CLUSTER: _of_service(services.cluster),
    names.FEDERATED_NAMESPACE: _federated_namespace,
    names.FEDERATED_SERVICE: _of_service(services.service),
    names.FEDERATED_PROTOCOL: _of_service(services.protocol),
    names.FEDERATED_PORT: _of_service(services.port),
    names.FEDERATED_CLUSTER: _of_service(services.cluster),
    names.FEDERATED_ENTRY: _of_service(services.endpoint),
    names.REVERSE: _reverse,
    names.IMPOSSIBLE: _impossible,
}
