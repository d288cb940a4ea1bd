# SPDX-License-Identifier: Apache-2.0

"""Resolves federated names: one Service in several clusters, the nearest entries first, then spares.

An entry is an endpoint, the cluster IPs of the Service in the client's cluster, or an address or host name of a load
balancer. Which entries there are depends on where the client is; of these, the constraint selects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from dnsserver.answers.decision import ADDRESS_SIZES, Decision, EndpointNames, Request
from dnsserver.answers.services import MAX_TARGETS, WantedPort, any_port, named_ports, unmet_text
from dnsserver.message import wire
from dnsserver.message.records import AddressData, Record, Srv
from dnsserver.names import dashed_label, endpoint_label
from locator.model import MAX_NAME, Location
from locator.state.snapshot import Entry, FederatedService
from locator.topology.constraints import Declaration
from locator.topology.selection import UNMET, LocatedEndpoint, Selection, select, tiers_after

PRIORITY_STEP = 10  # between the SRV records of two spares


class EntryChoice(Struct, frozen=True, eq=False):
    """What one client gets: the ``selection``, then the ``spares``, an entry with one of its addresses each."""

    selection: Selection
    spares: tuple[tuple[LocatedEndpoint, tuple[bytes, ...]], ...]


def choose(
    service: FederatedService, declaration: Declaration, client: Location, *, spares: int, unknown_gets_all: bool
) -> EntryChoice:
    """Choose entries for a client, and up to *spares* addresses of each family after them.

    Entries that most clusters vote against do not count, unless the client would get nothing without them.
    """
    constraint = declaration.constraint
    entries: Sequence[LocatedEndpoint] = service.entries(service.viewer(client))
    healthy = [entry for entry in entries if not (isinstance(entry, Entry) and entry.down)]
    selection = select(constraint, client, healthy, unknown_gets_all=unknown_gets_all)
    if not selection.endpoints and len(healthy) < len(entries):
        healthy = list(entries)
        selection = select(constraint, client, healthy, unknown_gets_all=unknown_gets_all)
    tiers = tiers_after(constraint, client, healthy, selection) if selection.endpoints else ()
    given = {address for located in selection.endpoints for address in located.endpoint.addresses}
    return EntryChoice(selection, tuple(_spares(tiers, given, spares)))


def _spares(
    tiers: Iterable[Sequence[LocatedEndpoint]], given: set[bytes], most: int
) -> Iterator[tuple[LocatedEndpoint, tuple[bytes, ...]]]:
    """Yield the addresses in some tiers that are not *given*, each with its entry, *most* of each family."""
    left = dict.fromkeys(ADDRESS_SIZES.values(), most)
    for tier in tiers:
        for _, address, located in sorted(_addresses(tier), key=itemgetter(0, 1)):
            if left[len(address)] and address not in given:
                left[len(address)] -= 1
                given.add(address)
                yield located, (address,)
        if not any(left.values()):
            return


def _addresses(tier: Iterable[LocatedEndpoint]) -> Iterator[tuple[str, bytes, LocatedEndpoint]]:
    """Yield the cluster and the address of each address of some entries, and the entry."""
    for located in tier:
        for address in located.endpoint.addresses:
            yield located.location.cluster, address, located


def service(request: Request, found: FederatedService) -> Decision:
    """Answer the name of a federated Service."""
    return _answer(request, found, any_port)


def port(request: Request, found: FederatedService) -> Decision:
    """Answer the name of a port, ``_http._tcp.web.shop``: it has only SRV records."""
    query_name = request.query_name

    def wanted(port: tuple[str, str]) -> bool:
        return port == (query_name.port, query_name.protocol)

    if not any(map(wanted, named_ports(found.endpoints))):
        return request.federated_decision(found, wire.NXDOMAIN)
    return _answer(request, found, wanted) if request.qtype == wire.SRV else request.federated_decision(found)


def protocol(request: Request, found: FederatedService) -> Decision:
    """Answer the name ``_tcp.web.shop``: it has no records, and exists if a port has that protocol (RFC 8020)."""
    exists = any(protocol == request.query_name.protocol for _, protocol in named_ports(found.endpoints))
    return request.federated_decision(found, wire.NOERROR if exists else wire.NXDOMAIN)


def cluster(request: Request, found: FederatedService) -> Decision:
    """Answer the name of a cluster under a Service: it has no records, and exists if the cluster has entries."""
    exists = any(located.location.cluster == request.query_name.cluster for located in found.endpoints)
    return request.federated_decision(found, wire.NOERROR if exists else wire.NXDOMAIN)


def entry(request: Request, found: FederatedService) -> Decision:
    """Answer the name of one entry, which SRV records point to. It is the same for all clients."""
    named = request.names_of(found).endpoints.get(request.query_name.endpoint_labels)
    if named is None:
        return request.federated_decision(found, wire.NXDOMAIN)
    name = request.query_name.name
    if request.qtype == wire.SRV:
        ports = list(dict.fromkeys(port.number for located, _ in named for port in located.endpoint.ports))[
            :MAX_TARGETS
        ]
        answers = [request.record(wire.SRV, Srv(max(1, 100 // len(ports)), number, name)) for number in ports]
        additional = _with_ttls(
            request, {(name, address): _ttl(request, located, address) for located, address in named}
        )
        return request.federated_decision(found, answers=answers, additional_records=additional if answers else ())
    return request.federated_decision(found, answers=_address_records(request, named))


def _answer(request: Request, found: FederatedService, wanted: WantedPort) -> Decision:
    if request.qtype != wire.SRV and request.qtype not in ADDRESS_SIZES:
        return request.federated_decision(found)
    authority, client = request.authority, request.location
    declaration = found.declaration(found.viewer(client))
    choice = choose(found, declaration, client, spares=authority.spares, unknown_gets_all=authority.unknown_gets_all)
    selection, client_keys = choice.selection, found.client_keys
    decision = replace(
        request.federated_decision(found), declaration=declaration, selection=selection, client_keys=client_keys
    )
    for_others = replace(decision, authority_records=(request.soa(ttl=0),))
    if not selection.endpoints:  # others do get entries
        if selection.outcome != UNMET or not found.entries(found.viewer(client)):
            text = "no address of the Service can be reached from where the client is"
        else:
            text = unmet_text(selection, declaration.constraint, client)
        return replace(for_others, extended_error=(wire.EDE_OTHER, text))
    chosen = [(located, located.endpoint.addresses) for located in selection.endpoints]
    if request.qtype == wire.SRV:
        answers, spares, additional = _srv(request, chosen, choice.spares, wanted, request.names_of(found))
    else:
        additional = ()
        answers, spares = (
            _address_records(request, [(located, address) for located, addresses in entries for address in addresses])
            for entries in (chosen, choice.spares)
        )
    if not answers:
        return for_others if _any_records(request, found, wanted) else decision
    ttl = min(record.ttl for record in (*answers, *spares))  # one for the whole RRset (RFC 2181, section 5.2)
    answers, spares = ([replace(record, ttl=ttl) for record in records] for records in (answers, spares))
    return replace(
        decision,
        answers=tuple(answers),
        spares=tuple(spares),
        spare_entries=tuple(dict.fromkeys(located for located, _ in choice.spares)),
        additional_records=additional,
        authority_records=(),
    )


def _any_records(request: Request, found: FederatedService, wanted: WantedPort) -> bool:
    """Whether some client gets a record of the question's type."""
    endpoints = [located.endpoint for located in found.endpoints]
    if request.qtype == wire.SRV:
        return any(wanted((port.name, port.protocol)) for endpoint in endpoints for port in endpoint.ports)
    size = ADDRESS_SIZES[request.qtype]
    return any(len(address) == size for endpoint in endpoints for address in endpoint.addresses)


def _address_records(request: Request, entries: Sequence[tuple[LocatedEndpoint, bytes]]) -> list[Record]:
    """Return an A or AAAA record for each address of the question's type, each address once."""
    size = ADDRESS_SIZES.get(request.qtype)
    ttls = {address: _ttl(request, located, address) for located, address in entries if len(address) == size}
    return [Record(request.query_name.name, request.qtype, ttl, AddressData(address)) for address, ttl in ttls.items()]


def _ttl(request: Request, located: LocatedEndpoint, address: bytes) -> int:
    own = request.authority.ttl
    return located.ttls.get(len(address), own) if isinstance(located, Entry) else own


Rows = Sequence[tuple[LocatedEndpoint, Sequence[bytes]]]


def _srv(
    request: Request, chosen: Rows, spares: Rows, wanted: WantedPort, known: EndpointNames
) -> tuple[list[Record], list[Record], tuple[Record, ...]]:
    """Return the SRV records of the chosen entries, those of the spares, and the addresses of their targets.

    *known* are the names of all entries.
    """
    targets: dict[tuple[str, int], int] = {}  # name and port -> priority
    ttls: dict[str, int] = {}
    hosts: dict[tuple[str, bytes], int] = {}  # the TTL of each
    priorities: dict[str, int] = {}  # of the spares, by name
    for entries, is_spare in ((chosen, False), (spares, True)):
        for located, addresses in entries:
            endpoint = located.endpoint
            numbers = dict.fromkeys(port.number for port in endpoint.ports if wanted((port.name, port.protocol)))
            for address in addresses if numbers else ():
                cluster = located.location.cluster
                label = endpoint_label(endpoint, address, pod_names=request.authority.endpoint_pod_names)
                if all(one is not located for one, _ in known.endpoints.get(f"{label}.{cluster}", ())):
                    label = dashed_label(address)
                name = f"{label}.{cluster}.{_base(request)}"
                if not cluster or len(name) > MAX_NAME:
                    continue  # it has no name, or one that is longer than a query can hold
                fresh = [number for number in numbers if (name, number) not in targets][: MAX_TARGETS - len(targets)]
                priority = priorities.setdefault(name, PRIORITY_STEP * (len(priorities) + 1)) if is_spare else 0
                hosts[name, address] = ttl = _ttl(request, located, address)
                ttls[name] = min(ttls.get(name, request.authority.ttl), ttl)
                targets |= dict.fromkeys([(name, number) for number in fresh], priority)
    weight = max(1, 100 // (len(targets) or 1))
    records = [
        Record(request.query_name.name, wire.SRV, ttls[name], Srv(weight, number, name, priority))
        for (name, number), priority in targets.items()
    ]
    split = sum(not priority for priority in targets.values())
    return records[:split], records[split:], _with_ttls(request, hosts)


def _with_ttls(request: Request, ttls: Mapping[tuple[str, bytes], int]) -> tuple[Record, ...]:
    """Return an A or AAAA record for each name and address, with its TTL."""
    return tuple(
        replace(record, ttl=ttl) for record, ttl in zip(request.address_records(list(ttls)), ttls.values(), strict=True)
    )


def _base(request: Request) -> str:
    query_name = request.query_name
    return f"{query_name.service}.{query_name.namespace}.{query_name.zone.name}"


def entry_names(found: FederatedService, *, pod_names: bool) -> EndpointNames:
    """Return the names of the entries; *pod_names* is ``--endpoint-pod-names``.

    Each name is that of one entry. Pods of a Deployment may have one hostname, which can also be what stands for the
    address of another endpoint, with dashes. Such a label names none, so the address does.
    """
    labelled = [
        (located, address, cluster, endpoint_label(located.endpoint, address, pod_names=pod_names))
        for located in found.endpoints
        if (cluster := located.location.cluster)
        for address in located.endpoint.addresses
    ]
    owners: dict[tuple[str, str], LocatedEndpoint] = {}
    shared = set[tuple[str, str]]()
    for located, address, cluster, label in labelled:
        for key in {(cluster, label), (cluster, dashed_label(address))}:
            if owners.setdefault(key, located) is not located:
                shared.add(key)
    by_name = EndpointNames({}, {})
    for located, address, cluster, label in labelled:
        own = dashed_label(address) if (cluster, label) in shared else label
        by_name.endpoints.setdefault(f"{own}.{cluster}", []).append((located, address))
    return by_name
