"""What is decided about one query, from what, and the records that every decision is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from dnsserver import names
from dnsserver.message import wire
from dnsserver.message.records import Address, Data, Host, Record, Soa
from dnsserver.names import DISABLED, Meaning, Zone
from locator.model import ZONE, Location
from locator.state.snapshot import CompiledService, Snapshot
from locator.topology.constraints import Declaration
from locator.topology.selection import UNCONSTRAINED, LocatedEndpoint, Selection

ADDRESS_SIZES = {wire.A: 4, wire.AAAA: 16}
_TYPES = {size: rtype for rtype, size in ADDRESS_SIZES.items()}

NAPTR, SVCB, HTTPS = 35, 64, 65
# What is looked up elsewhere; there are 65,000 types, and asking for them all must not become as many look-ups.
LOOKED_UP = frozenset((wire.A, wire.AAAA, wire.SRV, wire.PTR, wire.TXT, wire.MX, wire.NS, wire.SOA, NAPTR, SVCB, HTTPS))


class Authority(Struct, frozen=True):
    """What is answered from beside the cluster: zones, and what the operator says.

    ``ttl`` in seconds, ``addresses`` of the name servers, packed. ``unknown_gets_all`` gives
    clients that cannot be located what a hard constraint denies. ``pods`` is how names of pods
    are answered, ``zonal`` the label behind zonal names, None for none. ``chases`` says that
    names elsewhere are looked up.
    """

    zones: tuple[Zone, ...]
    ttl: int
    addresses: tuple[bytes, ...] = ()
    unknown_gets_all: bool = False
    pods: str = DISABLED
    endpoint_pod_names: bool = False
    ignore_empty_service: bool = False
    zonal: str | None = ZONE
    chases: bool = False

    def looks_up(self, qtype: int) -> bool:
        """Whether records of this type are looked up under names elsewhere."""
        return self.chases and qtype in LOOKED_UP


class Decision(Struct, frozen=True, eq=False):
    """What one client is answered, and why.

    ``aliases`` are the CNAME records on the way to ``answers``; ``elsewhere`` is the name
    outside the zones that they lead to. ``service`` is the Service that the answers are of,
    ``declaration`` and ``selection`` how its endpoints were chosen, None where nothing was.
    ``terms`` are the label keys on whose values at the client the answer depends. ``hangs_on``
    is the value that holds all that the decision was made from, None for a name of which there
    is no end: one that does not exist, say.
    """

    meaning: Meaning | None
    qtype: int
    rcode: int
    answers: tuple[Record, ...] = ()
    aliases: tuple[Record, ...] = ()
    authority: tuple[Record, ...] = ()
    additional: tuple[Record, ...] = ()
    elsewhere: str | None = None
    service: CompiledService | None = None
    declaration: Declaration | None = None
    selection: Selection | None = None
    terms: tuple[str, ...] = ()
    hangs_on: CompiledService | Snapshot | None = None
    extended_error: tuple[int, str] | None = None

    @property
    def outcome(self) -> str:
        """How the endpoints were chosen, in a word."""
        return self.selection.outcome if self.selection is not None else UNCONSTRAINED


class EndpointNames(Struct, frozen=True):
    """The endpoints of a Service by the first label of their names, and these labels by address."""

    endpoints: dict[str, list[tuple[LocatedEndpoint, bytes]]]
    labels: dict[bytes, list[str]]


class Request(Struct, frozen=True):
    """Everything that a resolver may look at, and how it says what it found.

    ``names_of`` returns the names of a Service's endpoints; whoever asks often remembers them.
    """

    meaning: Meaning
    qtype: int
    snapshot: Snapshot
    location: Location
    authority: Authority
    names_of: Callable[[CompiledService], EndpointNames]

    def decision(
        self,
        rcode: int = wire.NOERROR,
        answers: Sequence[Record] = (),
        *,
        service: CompiledService | None = None,
        additional: Sequence[Record] = (),
    ) -> Decision:
        """Return a decision; without records it carries the zone's SOA.

        It hangs on the Service that it is made from, else on the snapshot; on nothing if the
        name does not exist, unless it is a Service's.
        """
        hangs_on: CompiledService | Snapshot | None = self.snapshot if service is None else service
        if rcode == wire.NXDOMAIN and (service is None or self.meaning.shape != names.SERVICE):
            hangs_on = None
        return Decision(
            meaning=self.meaning,
            qtype=self.qtype,
            rcode=rcode,
            answers=tuple(answers),
            authority=() if answers else (self.soa(),),
            additional=tuple(additional),
            service=service,
            declaration=service.declaration if service is not None else None,
            hangs_on=hangs_on,
        )

    def alias(self, target: str, service: CompiledService) -> Decision:
        """Return the decision that the name is another one's alias (RFC 1034, section 3.6.2)."""
        record = self.record(wire.CNAME, Host(target))
        return Decision(self.meaning, self.qtype, wire.NOERROR, aliases=(record,), service=service, hangs_on=service)

    def soa(self, *, ttl: int | None = None) -> Record:
        """Return the zone's SOA; *ttl* is that of the record and of negative answers (RFC 2308)."""
        zone, ttl = self.meaning.zone, self.authority.ttl if ttl is None else ttl
        data = Soa(f"ns.dns.{zone.name}", f"hostmaster.{zone.name}", self.snapshot.serial & 0xFFFFFFFF, ttl)
        return Record(zone.name, wire.SOA, ttl, data)

    def record(self, rtype: int, data: Data, name: str | None = None) -> Record:
        """Return a record of the question's name, or of another."""
        return Record(name or self.meaning.name, rtype, self.authority.ttl, data)

    def addresses(self, packed: Sequence[bytes]) -> list[Record]:
        """Return the records of the addresses that the question's type asks for."""
        return [self.record(self.qtype, Address(each)) for each in packed if len(each) == ADDRESS_SIZES.get(self.qtype)]

    def glue(self, rows: Sequence[tuple[str, bytes]]) -> tuple[Record, ...]:
        """Return the records of names and their addresses."""
        return tuple(self.record(_TYPES[len(address)], Address(address), name) for name, address in rows)
