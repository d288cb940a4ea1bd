# SPDX-License-Identifier: Apache-2.0

"""Sets side by side what becomes of Services with the constraints that most people choose among."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from dnsserver.tools.simulation.as_if import Annotations
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.service import Simulated, simulate
from dnsserver.tools.simulation.world import World
from locator.model import ZONE
from locator.topology.annotations import MAX_OVERLOAD, MIN_ENDPOINTS, TOPOLOGY_KEYS
from locator.topology.constraints import ANNOTATION, Declaration
from locator.topology.selection import ANY_ENDPOINT

NONE, AS_IT_IS = "none", "as it is"
BOUNDS = ("1.2", "1.5", "2")  # max-overload: close to an even load, with some room, only against the worst


def _choice(keys: str, bound: str | None = None) -> Annotations:
    return {TOPOLOGY_KEYS: keys, MAX_OVERLOAD: bound, MIN_ENDPOINTS: None}


# The annotations of each choice, by its name. ``*`` alone overrides all sources that come after the annotation.
CHOICES: Mapping[str, Annotations] = {
    NONE: _choice(ANY_ENDPOINT),
    AS_IT_IS: {},
    "zone": _choice(f"{ZONE},{ANY_ENDPOINT}"),
    **{f"zone, at most {bound}": _choice(f"{ZONE},{ANY_ENDPOINT}", bound) for bound in BOUNDS},
}


class Compared(Struct, frozen=True):
    """What becomes of a Service with one of the CHOICES, or with what decides in its place.

    ``overloaded`` is a number of endpoints. The others are those of ``Simulated``.
    """

    name: str
    declaration: Declaration | None
    cross_zone: float
    max_overload: float
    unmet_clients: int
    overloaded: int


def compare(
    services: Sequence[Simulated],
    as_if: Callable[[Annotations], World],
    max_overload: float,
    report: Callable[[int], None],
) -> list[list[Compared]]:
    """Return the CHOICES for each of some Services, which have been simulated as they are.

    *as_if* returns the world in which all of them have some annotations. An endpoint is overloaded with more than
    *max_overload* even shares. Calls *report* with how many choices are done.
    """
    compared: list[list[Compared]] = [[] for _ in services]
    groupings: Groupings | None = None
    for number, (name, tried) in enumerate(CHOICES.items()):
        report(number)
        found: Iterator[Simulated] = iter(services)
        if tried:
            world = as_if(tried)
            groupings = groupings or Groupings(world)  # the clients are the same in all of them
            found = (simulate(simulated.subject, world, groupings) for simulated in services)
        for rows, simulated in zip(compared, found, strict=True):
            rows.append(_compared(name, simulated, max_overload))
    return compared


def _compared(name: str, simulated: Simulated, max_overload: float) -> Compared:
    declaration = simulated.declaration
    if name == NONE and declaration is not None and declaration.source == ANNOTATION:
        declaration = None
    return Compared(
        name,
        declaration,
        simulated.crossing,
        simulated.max_overload,
        simulated.unmet,
        simulated.overloaded(max_overload),
    )
