"""What is answered under the name of a Service: its addresses, ports, endpoints, zonal names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dnsserver import names
from dnsserver.answers.decision import ADDRESS_SIZES, Asked, Decision
from dnsserver.message import wire
from dnsserver.message.records import Srv
from dnsserver.names import endpoint_label
from locator.model import MAX_NAME
from locator.state.snapshot import CompiledService
from locator.topology.constraints import ANY, ZONAL_NAME, Constraint
from locator.topology.selection import (
    ALL,
    NEAREST,
    UNMET,
    LocatedEndpoint,
    Selection,
    Step,
    select,
    unconstrained,
)

WantedPort = Callable[[tuple[str, str]], bool]  # by name and protocol


def service(asked: Asked, compiled: CompiledService) -> Decision:
    """A Service's own name."""
    alias = compiled.service.alias
    if alias is not None:
        return asked.alias(alias, compiled) if alias else asked.decision(wire.NXDOMAIN, service=compiled)
    if compiled.service.headless:
        return _headless(asked, compiled, _any_port)
    if asked.qtype == wire.SRV:
        return _virtual_ports(asked, compiled, _any_port)
    return asked.decision(answers=asked.addresses(compiled.service.cluster_ips), service=compiled)


def port(asked: Asked, compiled: CompiledService) -> Decision:
    """A named port: such names have SRV alone."""
    meaning = asked.meaning

    def wanted(port: tuple[str, str]) -> bool:
        return port == (meaning.port, meaning.protocol)

    if not any(map(wanted, _named_ports(compiled))):
        return asked.decision(wire.NXDOMAIN, service=compiled)
    if asked.qtype != wire.SRV:
        return asked.decision(service=compiled)
    return (_headless if compiled.service.headless else _virtual_ports)(asked, compiled, wanted)


def protocol(asked: Asked, compiled: CompiledService) -> Decision:
    """No record stands here; the name exists if a port's name stands beneath it (RFC 8020)."""
    exists = any(protocol == asked.meaning.protocol for _, protocol in _named_ports(compiled))
    return asked.decision(wire.NOERROR if exists else wire.NXDOMAIN, service=compiled)


def endpoint(asked: Asked, compiled: CompiledService) -> Decision:
    """An endpoint's own name is never narrowed: who uses it wants that very one."""
    rows = _index(asked, compiled).rows.get(asked.meaning.endpoint)
    if rows is None:
        return asked.decision(wire.NXDOMAIN, service=compiled)
    if asked.qtype == wire.SRV:
        ports = dict.fromkeys(port.number for located, _ in rows for port in located.endpoint.ports)
        return _srv(asked, compiled, [(asked.meaning.name, number) for number in ports],
                    [(asked.meaning.name, address) for _, address in rows])  # fmt: skip
    return asked.decision(answers=asked.addresses([address for _, address in rows]), service=compiled)


def zonal(asked: Asked, compiled: CompiledService) -> Decision:
    """The endpoints in the zone that the name says; where the client is does not matter."""
    key, shape, value = asked.authority.zonal, asked.meaning.shape, asked.meaning.value
    if key is None or not compiled.service.headless or not compiled.endpoints:
        return asked.decision(wire.NXDOMAIN, service=compiled)
    if shape == names.ZONAL:
        return asked.decision(service=compiled)
    there = tuple(each for each in compiled.endpoints if (each.location.value(key) or "").lower() == value)
    keys, steps = [key], [Step(key, value, len(there))]
    if shape == names.PREFERRED:
        keys.append(ANY)
    if there:
        selection = Selection(there, NEAREST, tuple(steps), key)
    elif shape == names.PREFERRED:
        selection = Selection(compiled.endpoints, ALL, (*steps, Step(ANY, None, len(compiled.endpoints))), ANY)
    else:
        selection = Selection((), UNMET, tuple(steps))
    return replace(
        _records_of(asked, compiled, selection.endpoints, _any_port),
        constraint=Constraint(ZONAL_NAME, tuple(keys)),
        selection=selection,
        hangs_on=compiled if there else None,  # of names without such a zone there is no end
    )


def endpoint_names(asked: Asked, compiled: CompiledService, address: bytes, zone: names.Zone) -> Iterator[str]:
    """Yield the names that endpoints with *address* have in a zone, but for those that nobody can ask for."""
    base = _base(compiled, zone)
    for label in _index(asked, compiled).labels.get(address, ()):
        if len(label) + 1 + len(base) <= MAX_NAME:
            yield f"{label}.{base}"


def names_of_service(compiled: CompiledService, zone: names.Zone) -> Iterator[str]:
    """Yield a Service's own name in a zone, unless nobody can ask for it."""
    base = _base(compiled, zone)
    if len(base) <= MAX_NAME:
        yield base


def _base(compiled: CompiledService, zone: names.Zone) -> str:
    return f"{compiled.service.name}.{compiled.service.namespace}.svc.{zone.name}"


class _Index(Struct, frozen=True):
    """The endpoints of a Service by the first label of their names, and these labels by address."""

    rows: dict[str, list[tuple[LocatedEndpoint, bytes]]]
    labels: dict[bytes, list[str]]


def _index(asked: Asked, compiled: CompiledService) -> _Index:
    """Return the index, made when the first endpoint is asked for by name."""
    key = _Index, asked.authority.endpoint_pod_names
    found: _Index | None = compiled.memory.get(key)
    if found is None:
        found = compiled.memory[key] = _Index({}, {})
        for located, label, address in _labelled(asked, compiled.endpoints):
            found.rows.setdefault(label, []).append((located, address))
            found.labels.setdefault(address, []).append(label)
    return found


def _any_port(port: tuple[str, str]) -> bool:
    return True


def _named_ports(compiled: CompiledService) -> set[tuple[str, str]]:
    """Return name and protocol of the ports that have names of their own."""
    if compiled.service.headless:
        ports = {port for located in compiled.endpoints for port in located.endpoint.ports}
    else:
        ports = set(compiled.service.ports)
    return {(port.name, port.protocol) for port in ports if port.name}


def _labelled(asked: Asked, endpoints: Sequence[LocatedEndpoint]) -> Iterator[tuple[LocatedEndpoint, str, bytes]]:
    """Yield each address of endpoints with the first label of its name."""
    pod_names = asked.authority.endpoint_pod_names
    for located in endpoints:
        for address in located.endpoint.addresses:
            yield located, endpoint_label(located.endpoint, address, pod_names=pod_names), address


def _headless(asked: Asked, compiled: CompiledService, wanted: WantedPort) -> Decision:
    if not compiled.endpoints:
        return asked.decision(wire.NXDOMAIN, service=compiled)  # schema 1.1.0: no ready endpoint, no name
    if asked.qtype != wire.SRV and asked.qtype not in ADDRESS_SIZES:
        return asked.decision(service=compiled)  # nobody has records of this type, wherever they are
    selection = _select(asked, compiled)
    if selection.outcome == UNMET:
        # Caches share negative answers among clients (RFC 7871, section 7.4), so this one must not stay.
        return replace(
            asked.decision(service=compiled),
            authority=(asked.soa(ttl=0),),
            selection=selection,
            terms=compiled.terms,
            extended_error=(wire.EDE_OTHER, _unmet_text(selection, compiled.constraint)),
        )
    decision, terms = _records_of(asked, compiled, selection.endpoints, wanted), compiled.terms
    if terms and not decision.answers:
        if _records_of(asked, compiled, compiled.endpoints, wanted).answers:
            decision = replace(decision, authority=(asked.soa(ttl=0),))  # others do get records of this type
        elif compiled.constraint is not None and compiled.constraint.soft:
            terms = ()  # nobody does, wherever they are
    return replace(decision, selection=selection, terms=terms)


def _select(asked: Asked, compiled: CompiledService) -> Selection:
    constraint, here = compiled.constraint, asked.location
    if constraint is None or not constraint.effective:
        return unconstrained(compiled.endpoints)
    selection = select(
        constraint.keys,
        here,
        compiled.endpoints,
        at_least=constraint.min_endpoints,
        required=constraint.required,
    )
    if selection.outcome == UNMET and asked.authority.unknown_gets_all and not here.known:
        return Selection(compiled.endpoints, ALL, selection.steps)
    return selection


def _unmet_text(selection: Selection, constraint: Constraint | None) -> str:
    together = constraint is not None and constraint.required is not None
    wanted = (" and " if together else ", ").join(
        f"{step.key}={step.value}" if step.value is not None else f"{step.key} (which the client lacks)"
        for step in selection.steps
    )
    return f"no ready endpoint has the client's {wanted}"


def _records_of(
    asked: Asked, compiled: CompiledService, endpoints: Sequence[LocatedEndpoint], wanted: WantedPort
) -> Decision:
    """Answer with what endpoints have of the question's type."""
    if asked.qtype != wire.SRV:
        packed = dict.fromkeys(address for located in endpoints for address in located.endpoint.addresses)
        return asked.decision(answers=asked.addresses(list(packed)), service=compiled)
    base = _base(compiled, asked.meaning.zone)
    targets: dict[tuple[str, int], None] = {}
    glue: dict[tuple[str, bytes], None] = {}
    for located, label, address in _labelled(asked, endpoints):
        numbers = [port.number for port in located.endpoint.ports if wanted((port.name, port.protocol))]
        name = f"{label}.{base}"
        if not numbers or len(name) > MAX_NAME:  # in a zone with a very long name: nobody can ask for it
            continue
        glue[name, address] = None
        targets.update(dict.fromkeys((name, number) for number in numbers))
    return _srv(asked, compiled, list(targets), list(glue))


def _virtual_ports(asked: Asked, compiled: CompiledService, wanted: WantedPort) -> Decision:
    service, name = compiled.service, _base(compiled, asked.meaning.zone)
    numbers = [port.number for port in service.ports if wanted((port.name, port.protocol))]
    targets = [(name, number) for number in dict.fromkeys(numbers)] if service.cluster_ips else []
    return _srv(asked, compiled, targets, [(name, address) for address in service.cluster_ips])


def _srv(
    asked: Asked, compiled: CompiledService, targets: Sequence[tuple[str, int]], glue: Sequence[tuple[str, bytes]]
) -> Decision:
    """Answer with an SRV record for each target and port, all of one weight, and their addresses."""
    weight = max(1, 100 // (len(targets) or 1))
    answers = [asked.record(wire.SRV, Srv(weight, port, target)) for target, port in targets]
    return asked.decision(answers=answers, additional=asked.glue(glue) if answers else (), service=compiled)
