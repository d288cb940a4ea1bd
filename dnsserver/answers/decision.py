# SPDX-License-Identifier: Apache-2.0

"""A Decision, the Request that it answers, and the Authority that a server answers with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from dnsserver import names
from dnsserver.message import wire
from dnsserver.message.records import AddressData, Data, Host, Record, Soa
from dnsserver.names import DISABLED, QueryName, Zone
from locator.model import ZONE, Location
from locator.state.snapshot import AnyService, CompiledService, FederatedService, Snapshot
from locator.topology.constraints import Declaration, zone_default
from locator.topology.selection import UNCONSTRAINED, Constraint, LocatedEndpoint, Selection

ADDRESS_SIZES = {wire.A: 4, wire.AAAA: 16}
MAX_SOAS = 64  # every negative answer needs one: a few for each served DNS zone and snapshot
_TYPES = {size: rtype for rtype, size in ADDRESS_SIZES.items()}

NAPTR, SVCB, HTTPS = 35, 64, 65
LIKE_HTTPS = HTTPS | 0x20  # not assigned; the answer cache folds the case of a question's octets, its type included
# The types that topodns asks an upstream for. Without this list, a client that asks for all 65,000 types would
# cause as many look-ups.
UPSTREAM_TYPES = frozenset(
    (wire.A, wire.AAAA, wire.SRV, wire.PTR, wire.TXT, wire.MX, wire.NS, wire.SOA, NAPTR, SVCB, HTTPS, LIKE_HTTPS)
)


class Authority(Struct, frozen=True, gc=False):
    """The served DNS zones, and what the settings say about their answers.

    ``ttl`` is in seconds. ``addresses`` are those of the name server, packed. With ``unknown_gets_all``, a client
    without a location gets every endpoint. ``pods`` is the ``--pods`` mode. With ``endpoint_pod_names``, an endpoint
    without a hostname is named after its pod, else after its address. With ``ignore_empty_service``, the names of a
    Service that has a cluster IP but no ready endpoint do not exist. ``zonal`` is the label key of zonal names, None
    if they are off. With ``has_upstream``, an upstream is asked for the targets of aliases outside the zones.
    ``spares`` are the addresses of each family that follow the nearest ones of a federated name. ``default_keys`` are
    the topology keys of Services that declare no constraint, by the name of the DNS zone that is asked.
    ``tells_clusters``: an explanation says which cluster a client is in.
    """

    zones: tuple[Zone, ...]
    ttl: int
    addresses: tuple[bytes, ...] = ()
    unknown_gets_all: bool = False
    spares: int = 0
    pods: str = DISABLED
    endpoint_pod_names: bool = False
    ignore_empty_service: bool = False
    zonal: str | None = ZONE
    has_upstream: bool = False
    default_keys: Mapping[str, tuple[str, ...]] = {}
    tells_clusters: bool = False

    def asks_upstream_for(self, qtype: int) -> bool:
        """Whether an upstream is asked for records of this type."""
        return self.has_upstream and qtype in UPSTREAM_TYPES

    def zone_default(self, zone: Zone, service: CompiledService) -> Declaration | None:
        """Return what the default keys of a DNS zone declare for a headless Service, None if there are none."""
        keys = self.default_keys.get(zone.name)
        return zone_default(service.service, keys) if keys is not None and service.service.headless else None

    def declaration(self, zone: Zone, service: CompiledService) -> Declaration | None:
        """Return what decides for a Service's names in a DNS zone: what the Service declares, else the zone's default.

        None if neither declares a constraint.
        """
        return service.declaration or self.zone_default(zone, service)


class UpstreamAnswer(Struct, frozen=True, eq=False, gc=False):
    """What an upstream says about a name outside the zones and one type.

    ``aliases`` are the CNAME records from that name on, in order, and ``records`` those of the type at their end;
    ``soa`` is the record that comes with a negative answer, if one came. ``rcode`` is NOERROR, NXDOMAIN, or SERVFAIL
    if the look-up failed; then ``extended_error`` says why, and there are no records.
    """

    rcode: int = wire.NOERROR
    aliases: tuple[Record, ...] = ()
    records: tuple[Record, ...] = ()
    soa: tuple[Record, ...] = ()
    extended_error: tuple[int, str] | None = None

    @property
    def failed(self) -> bool:
        """Whether the look-up failed."""
        return self.rcode == wire.SERVFAIL

    @property
    def complete(self) -> bool:
        """Whether it says what lies at the end of the ``aliases``; if not, the upstream has to be asked for that."""
        return bool(self.records or self.soa or not self.aliases) or self.rcode != wire.NOERROR


class Decision(Struct, frozen=True, eq=False, gc=False):
    """The answer for one client, and why it is that.

    ``spares`` follow the ``answers``, and never come first; they are the records of ``spare_entries``. ``aliases`` are
    the CNAME records on the way to ``answers``; ``outside_target`` is the name outside the zones where they end, None
    if they end inside. ``upstream`` is what the upstream says about that name, None if it was not asked.
    ``authority_records`` and ``additional_records`` are those of the sections of that name: an SOA if there are no
    answers, and addresses of names in the answers. ``service`` is the Service that the answers belong to, or
    ``federated`` is. ``declaration`` is its constraint and ``selection`` the chosen endpoints, None if no endpoints
    were chosen. ``client_keys`` are ``Constraint.client_keys`` if the answer depends on the client.

    ``source_object`` is the object that the decision was computed from: the decision is true as long as the current
    snapshot is, or contains, this very object. It is None if clients can ask for any number of such names, for example
    names that do not exist.
    """

    query_name: QueryName | None
    qtype: int
    rcode: int
    answers: tuple[Record, ...] = ()
    spares: tuple[Record, ...] = ()
    aliases: tuple[Record, ...] = ()
    authority_records: tuple[Record, ...] = ()
    additional_records: tuple[Record, ...] = ()
    outside_target: str | None = None
    upstream: UpstreamAnswer | None = None
    service: CompiledService | None = None
    federated: FederatedService | None = None
    declaration: Declaration | None = None
    selection: Selection | None = None
    spare_entries: tuple[LocatedEndpoint, ...] = ()
    client_keys: tuple[str, ...] = ()
    source_object: AnyService | Snapshot | None = None
    extended_error: tuple[int, str] | None = None

    @property
    def outcome(self) -> str:
        """How the endpoints were chosen: ``nearest``, ``all``, ``spilled``, ``unconstrained`` or ``unmet``."""
        return self.selection.outcome if self.selection is not None else UNCONSTRAINED

    @property
    def unready(self) -> bool:
        """Whether a client asks for the endpoints of a headless Service, and none of these is ready.

        Its own name asks for them, and that of a port that it has. Any other name below it may be misspelled.
        """
        found, name = self.service, self.query_name
        if self.rcode != wire.NXDOMAIN or found is None or name is None or not found.empty:
            return False
        if not found.service.headless or (self.qtype != wire.SRV and self.qtype not in ADDRESS_SIZES):
            return False
        ports = {(port.name, port.protocol) for port in found.service.ports}
        return name.name_type == names.SERVICE or (
            name.name_type == names.PORT and self.qtype == wire.SRV and (name.port, name.protocol) in ports
        )


AddressedEndpoint = tuple[LocatedEndpoint, bytes]  # with one of its addresses


class EndpointChoice(Struct, frozen=True, eq=False, gc=False):
    """What one client gets of a Service: the ``selection``, then the ``spares``.

    ``constraint`` chose, by the ``declaration``, and ``client_keys`` decided about the client. ``ttls`` has the TTLs of
    those addresses that have their own.
    """

    declaration: Declaration | None
    constraint: Constraint
    selection: Selection
    client_keys: tuple[str, ...] = ()
    spares: tuple[AddressedEndpoint, ...] = ()
    ttls: Mapping[bytes, int] = {}

    @property
    def spare_entries(self) -> tuple[LocatedEndpoint, ...]:
        """The entries of the spares, each once."""
        return tuple(dict.fromkeys([located for located, _ in self.spares])) if self.spares else ()


class EndpointNames(Struct, frozen=True, gc=False):
    """The endpoints of a Service, or the entries of a federated one, by the labels before its name; and the labels.

    ``endpoints`` has them with one address each, by ``QueryName.endpoint_labels``, and ``labels`` these by address.
    """

    endpoints: dict[str, list[AddressedEndpoint]]
    labels: dict[bytes, list[str]]


class Request(Struct, frozen=True, gc=False):
    """Everything that a resolver may read, and the methods with which it builds its Decision.

    ``names_of`` returns the names of a Service's endpoints. A caller with many requests passes
    one that remembers them. ``outside`` returns what an upstream says about a name outside the zones, None if that is
    not known.
    """

    query_name: QueryName
    qtype: int
    snapshot: Snapshot
    location: Location
    authority: Authority
    names_of: Callable[[AnyService], EndpointNames]
    outside: Callable[[str], UpstreamAnswer | None]

    def decision(
        self,
        rcode: int = wire.NOERROR,
        answers: Sequence[Record] = (),
        *,
        service: AnyService | None = None,
        additional_records: Sequence[Record] = (),
        choice: EndpointChoice | None = None,
        spares: Sequence[Record] = (),
    ) -> Decision:
        """Return a decision; without *answers* it carries the zone's SOA instead of any other record.

        Its source object is *service*, or else the snapshot; but None if the name does not exist and is
        not that of a Service. *choice* is what the records were made from, None if no endpoints were chosen.
        """
        source_object: AnyService | Snapshot | None = self.snapshot if service is None else service
        if rcode == wire.NXDOMAIN and (service is None or self.query_name.name_type != names.SERVICE):
            source_object = None
        compiled, federated = (None, service) if isinstance(service, FederatedService) else (service, None)
        declaration, selection = None, None
        entries: tuple[LocatedEndpoint, ...] = ()
        client_keys: tuple[str, ...] = ()
        if choice is not None:
            declaration, selection, client_keys = choice.declaration, choice.selection, choice.client_keys
            entries = choice.spare_entries if answers else ()
        elif compiled is not None:
            declaration = self.authority.declaration(self.query_name.zone, compiled)
        return Decision(
            query_name=self.query_name,
            qtype=self.qtype,
            rcode=rcode,
            answers=tuple(answers),
            spares=tuple(spares) if answers else (),
            authority_records=() if answers else (self.soa(),),
            additional_records=tuple(additional_records) if answers else (),
            service=compiled,
            federated=federated,
            declaration=declaration,
            selection=selection,
            spare_entries=entries,
            client_keys=client_keys,
            source_object=source_object,
        )

    def alias_decision(self, target: str, service: CompiledService) -> Decision:
        """Return the decision that the name is an alias of *target* (RFC 1034, section 3.6.2)."""
        record = self.record(wire.CNAME, Host(target))
        return Decision(
            self.query_name, self.qtype, wire.NOERROR, aliases=(record,), service=service, source_object=service
        )

    def soa(self, *, ttl: int | None = None) -> Record:
        """Return the DNS zone's SOA; *ttl* is its own TTL and that of negative answers (RFC 2308)."""
        ttl = self.authority.ttl if ttl is None else ttl
        return _soa(self.query_name.zone.name, self.snapshot.serial & 0xFFFFFFFF, ttl)

    def record(self, rtype: int, data: Data) -> Record:
        """Return a record of the question's name with the TTL of the zone."""
        return Record(self.query_name.name, rtype, self.authority.ttl, data)

    def addresses(self, packed: Iterable[bytes], ttl: int | None = None) -> list[Record]:
        """Return an A or AAAA record for each packed address of the question's type, by default with the zone's TTL."""
        name, rtype, ttl = self.query_name.name, self.qtype, self.authority.ttl if ttl is None else ttl
        size = ADDRESS_SIZES.get(rtype)
        return [Record(name, rtype, ttl, AddressData(address)) for address in packed if len(address) == size]

    def shared_ttl(self, addresses: Iterable[bytes], ttls: Mapping[bytes, int]) -> int:
        """Return the TTL of records in one RRset about some addresses (RFC 2181, section 5.2).

        *ttls* has the TTLs of those that have their own.
        """
        own, size = self.authority.ttl, ADDRESS_SIZES.get(self.qtype)
        if size is None:
            return min([own, *(ttls.get(address, own) for address in addresses)])
        return min([ttls.get(address, own) for address in addresses if len(address) == size], default=own)

    def address_records(self, hosts: Iterable[tuple[str, bytes]], ttls: Mapping[bytes, int] = {}) -> tuple[Record, ...]:
        """Return an A or AAAA record for each name and packed address, with a TTL of *ttls* or else the zone's."""
        ttl = self.authority.ttl
        return tuple(
            [Record(name, _TYPES[len(packed)], ttls.get(packed, ttl), AddressData(packed)) for name, packed in hosts]
        )


@lru_cache(MAX_SOAS)
def _soa(zone: str, serial: int, ttl: int) -> Record:
    data = Soa(f"ns.dns.{zone}", f"hostmaster.{zone}", serial, ttl)
    return Record(zone, wire.SOA, ttl, data)
