# SPDX-License-Identifier: Apache-2.0

"""What is wrong with Services by a simulation in which each pod asks once: who gets nothing and where, overloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlencode

from msgspec.structs import replace

from dnsserver.text import grouped
from dnsserver.tools.console.page import service_path
from dnsserver.tools.console.troubles.trouble import BAD, LOST, NAMED, OVERLOADED, UNMET, WARN, Trouble
from dnsserver.tools.simulation import MAX_OVERLOAD
from dnsserver.tools.simulation.as_if import annotating_command
from dnsserver.tools.simulation.service import Simulated, described, exceeds
from dnsserver.tools.simulation.text import balancing_command, constraint_text
from dnsserver.tools.simulation.unmet import LostZone, Unmet, by_zone, none_ready, unmet_in, where
from locator.model import ZONE, listed
from locator.printable import shell_words
from locator.state.snapshot import CompiledService, Snapshot
from locator.topology.annotations import TOPOLOGY_KEYS
from locator.topology.constraints import ANNOTATION, POLICY, in_effect
from locator.topology.selection import ANY_ENDPOINT

MAX_LOST = 3  # zones that one Service has lost and that are troubles of their own
MAX_TROUBLES = 200  # of Services that one look keeps; each takes a kilobyte
MAX_DATED = 20  # places of one Service that are dated each on its own


def service_troubles(simulated: Simulated, snapshot: Snapshot) -> Iterator[Trouble]:
    """Yield what is wrong with a Service that was simulated: first who gets nothing of it.

    One that has neither a constraint nor any endpoint may be meant to have none.
    """
    key = simulated.subject.key
    if simulated.unmet and (simulated.endpoints or simulated.declaration or key in snapshot.unready):
        places = unmet_in(simulated, snapshot)
        lost = [one for one in places if one.unready][:MAX_LOST]
        if not simulated.endpoints:
            yield _without_endpoints(simulated, snapshot)
        else:
            yield from (_unmet(simulated, one.place, [one]) for one in lost)
            if others := places[len(lost) :]:
                yield _unmet(simulated, "*", others)
    if exceeds(simulated, MAX_OVERLOAD):
        yield _overloaded(simulated)


def worst_trouble_first(trouble: Trouble) -> tuple[bool, bool, int]:
    """Return by what the troubles of Services are sorted: who lost what was there, then how many clients.

    All others stay in order.
    """
    if not trouble.service:
        return False, False, 0
    return trouble.tone != BAD, not trouble.lost, -(trouble.clients or 0)


def worse_if_new(trouble: Trouble) -> Trouble:
    """Return a trouble as it is once it is dated: a Service that had endpoints while somebody looked has lost them."""
    if trouble.kind == UNMET and trouble.tone == WARN and trouble.since is not None:
        return replace(trouble, tone=BAD, lost=True)
    return trouble


def lost_troubles(lost: Mapping[str, list[LostZone]]) -> Iterator[Trouble]:
    """Yield the zones that have lost all endpoints of Services, a trouble for each: that of most Services first."""
    for zone, services in sorted(lost.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        clients, one = max(found.clients for found in services), services[0]
        names = listed([found.service for found in services], NAMED)
        unmet = [found.service for found in services if found.unmet]
        effect = "The clients there get endpoints of other zones"
        if unmet:
            effect = "The clients there get nothing"
            if len(unmet) < len(services):
                effect += f" of {listed(unmet, NAMED)}, and endpoints of other zones of the rest"
        what = one.service if len(services) == 1 else grouped(len(services), "Service")
        number = grouped(sum(found.endpoints for found in services), "endpoint")
        yield Trouble(
            LOST, zone, WARN, f"Zone {zone} has no ready endpoint of {what}",
            f"None of its {number} there is ready. {effect}." if len(services) == 1
            else f"None of {number} there is ready, those of {names}. {effect}.",
            "Is the zone down? Look at its nodes, then at the pods on them:",
            f"kubectl get nodes -l {shell_words(f'{ZONE}={zone}')}",
            ((f"{zone} on the map", f"/map?{urlencode({'within': f'{ZONE}={zone}'})}"), *map(service_link, (
                found.service for found in services[:NAMED]))),
            clients,
        )  # fmt: skip


def _unmet(simulated: Simulated, key: str, places: Sequence[Unmet]) -> Trouble:
    """Return the trouble that clients in some places get nothing, although others get something."""
    service, first = simulated.subject.key, places[0]
    clients, constraint = sum(one.clients for one in places), in_effect(simulated.declaration)
    keys = ",".join(key for key in constraint.keys if key != ANY_ENDPOINT)
    who, get = grouped(clients, "client"), "gets" if clients == 1 else "get"
    if len(places) == 1:
        title = f"{who} {where(first.place)} {get} nothing of {service}"
    else:
        title = f"{who} {get} nothing of {service}: {listed(list(map(str, places)), NAMED)}"
    if constraint.soft:
        why, command = "None of its endpoints has an address of a family that they have.", ""
        fix = "Give the Service endpoints of both address families."
    else:
        why = f"Its constraint {keys} is hard: clients get the endpoints near them or none. "
        why += _lacking(simulated, places)
        fix, command = _fixing(
            simulated,
            bring_back=bool(first.unready),
            nowhere=by_zone(simulated) and not any(one.place for one in places),
        )
    return Trouble(
        UNMET, f"{service} {key}", BAD, title, why, fix, command,
        (service_link(service), *_why_link(simulated, first)), clients, service=service, lost=first.unready > 0,
        parts=tuple(f"{service} {one.place}" for one in places[:MAX_DATED]),
    )  # fmt: skip


def _lacking(simulated: Simulated, places: Sequence[Unmet]) -> str:
    """Return why clients in some places have no endpoint near them."""
    if unready := places[0].unready:
        return f"{none_ready(unready, 'there').capitalize()}."
    if by_zone(simulated) and not any(one.place for one in places):
        return f"Nothing says in which zone they are: their nodes have no label {ZONE}."
    there = {located.location.labels.get(ZONE) for located in simulated.endpoints}
    if by_zone(simulated) and not any(one.place in there for one in places):
        return "It has no endpoint there."
    return "No ready endpoint has the same labels as they."


def _without_endpoints(simulated: Simulated, snapshot: Snapshot) -> Trouble:
    """Return the trouble that nobody gets anything, since no endpoint is ready."""
    service = simulated.subject.key
    unready = 0
    if isinstance(simulated.service, CompiledService):
        unready = len(snapshot.unready.get(simulated.service.cache_key, ()))
    return Trouble(
        UNMET, f"{service} *", BAD if unready else WARN,
        f"{'No client' if simulated.unmet == 1 else f'None of {simulated.unmet:,} clients'} gets anything of {service}",
        f"{none_ready(unready).capitalize()}." if unready else "It has no endpoint at all.",
        "Look at its pods. If it is meant to have none, nothing has to be done:", slices_command(service),
        (service_link(service),), simulated.unmet, service=service, lost=unready > 0,
    )  # fmt: skip


def _fixing(simulated: Simulated, *, bring_back: bool, nowhere: bool) -> tuple[str, str]:
    """Return what to do for clients that a hard constraint leaves without an endpoint, and the command."""
    service, declaration = simulated.subject.key, simulated.declaration
    assert declaration is not None  # only a declaration is hard
    endpoints = "Bring its endpoints there back" if bring_back else "Run an endpoint there"
    if nowhere:
        endpoints = "Label the nodes of these clients"
    if declaration.source == ANNOTATION:
        keys = ",".join((*declaration.constraint.keys, ANY_ENDPOINT))
        return f"{endpoints}, or let clients use others until then:", annotating_command(service, {TOPOLOGY_KEYS: keys})
    if declaration.source == POLICY:
        policies = ", ".join(declaration.policies)
        return f"{endpoints}, or set the mode of ServicePolicy {policies} to Preferred.", slices_command(service)
    return f"{endpoints}:", slices_command(service)


def _overloaded(simulated: Simulated) -> Trouble:
    service = simulated.subject.key
    share, located = simulated.busiest
    command = balancing_command(simulated, MAX_OVERLOAD, {})
    bound = (
        f", or let each expect {MAX_OVERLOAD:g} even shares at most: the clients for which there is no room go farther"
    )
    return Trouble(
        OVERLOADED, service, WARN,
        f"{described(located)} gets {share * len(simulated.endpoints):.1f} times an even share of {service}",
        f"It is near {share * simulated.load:,.0f} of {grouped(round(simulated.load), 'client')}, and one of "
        f"{grouped(len(simulated.endpoints), 'endpoint')}. Clients get near ones ({constraint_text(simulated)}).",
        f"Run more endpoints near these clients{bound if command else ''}{':' if command else '.'}", command,
        (service_link(service),), round(share * simulated.load), service=service,
    )  # fmt: skip


def slices_command(service: str) -> str:
    """Return the command that shows the endpoints of a Service (``namespace/name``)."""
    namespace, _, name = service.partition("/")
    selector = shell_words(f"kubernetes.io/service-name={name}")
    return f"kubectl -n {shell_words(namespace)} get endpointslices -l {selector} -o yaml"


def service_link(service: str) -> tuple[str, str]:
    """Return the link to the page of a Service (``namespace/name``)."""
    return service, service_path(service)


def _why_link(simulated: Simulated, unmet: Unmet) -> Iterator[tuple[str, str]]:
    """Yield a link to the explanation for such a client, if its zone says what it gets."""
    if unmet.place and by_zone(simulated):
        namespace, _, name = simulated.subject.key.partition("/")
        yield "Why", f"/explain?{urlencode({'name': f'{name}.{namespace}', 'client': f'{ZONE}={unmet.place}'})}"
