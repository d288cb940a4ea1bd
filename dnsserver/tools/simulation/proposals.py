# SPDX-License-Identifier: Apache-2.0

"""Proposes annotations under which no endpoint of a Service is overloaded, as mild a change as there is.

The mildest is the one that lets the least traffic cross zones. Every candidate is simulated as the Service itself was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from dnsserver.tools.simulation.as_if import Annotations, Changes, snapshot_as_if
from dnsserver.tools.simulation.groups import Groupings
from dnsserver.tools.simulation.results import Proposed
from dnsserver.tools.simulation.service import SLACK, Simulated, exceeds, simulate
from dnsserver.tools.simulation.world import World
from locator.model import REGION
from locator.state.snapshot import CompiledService
from locator.topology.annotations import MIN_ENDPOINTS, TOPOLOGY_KEYS
from locator.topology.constraints import ANNOTATION, comes_before, in_effect
from locator.topology.selection import ANY_ENDPOINT, NEAREST, Constraint, FirstMatch, Hinted, Narrowing

MAX_TRIED = 24  # constraints: each is a simulation, which takes up to a twentieth of a second
MAX_SIZES, MAX_LISTS = 8, 8  # of them values of min-endpoints alone, and lists of keys alone


def proposal(simulated: Simulated, world: World, max_overload: float, *, honor_kubernetes: bool) -> Proposed | None:
    """Return what keeps all endpoints at *max_overload* even shares at most; None if nothing has to, or nothing can.

    What differs from the cluster in the Service's annotations is a part of what is proposed. For *honor_kubernetes* see
    ``Store``.
    """
    compiled = simulated.subject.service(world.snapshot)
    if not exceeds(simulated, max_overload) or type(compiled) is not CompiledService:
        return None
    best: tuple[Simulated, Annotations] | None = None
    groupings = Groupings(world)  # of other keys, which nobody needs afterwards

    def simulated_with(wanted: Annotations) -> Simulated:
        changes = Changes({simulated.subject.key: wanted}, honor_kubernetes=honor_kubernetes)
        other = replace(world, snapshot=snapshot_as_if(world.snapshot, changes))
        return simulate(simulated.subject, other, groupings)

    for wanted in islice(_candidates(simulated, compiled, simulated_with), MAX_TRIED):
        tried = simulated_with(wanted)
        fits = not exceeds(tried, max_overload) and tried.unmet <= simulated.unmet
        if fits and (best is None or tried.crossing < best[0].crossing - SLACK):
            best = tried, wanted
    if best is None:
        return None
    tried, wanted = best
    annotations = {**_tried_already(simulated, world, compiled), **wanted}
    return Proposed(annotations, tried.max_overload, len(tried.idle), tried.unmet, tried.crossing)


def most_overloaded(services: Iterable[Simulated], max_overload: float) -> list[Simulated]:
    """Return the Services with an endpoint that gets more than *max_overload* even shares, the worst first."""
    skewed = (simulated for simulated in services if exceeds(simulated, max_overload))
    return sorted(skewed, key=lambda simulated: -simulated.max_overload)


def _tried_already(simulated: Simulated, world: World, compiled: CompiledService) -> Annotations:
    """Return the annotations that differ from those in the cluster: a proposal builds on them."""
    actual = world.actual.services[simulated.subject.key].service.annotations
    annotations = compiled.service.annotations
    keys = [key for key in {**actual, **annotations} if actual.get(key) != annotations.get(key)]
    return {key: annotations.get(key) for key in keys}


def _candidates(
    simulated: Simulated, compiled: CompiledService, simulated_with: Callable[[Annotations], Simulated]
) -> Iterator[Annotations]:
    """Yield annotations to try: those that change the least first.

    ``min-endpoints`` is not about hints. So what came by hints is proposed as the annotation that means the same, and
    from there on as if that were there already.
    """
    constraint = in_effect(simulated.declaration)
    if isinstance(constraint, Hinted):
        written = {TOPOLOGY_KEYS: ",".join(constraint.keys)}
        yield written
        yield from ({**written, **more} for more in _candidates(simulated_with(written), compiled, simulated_with))
        return
    sizes = list(islice(_sizes(simulated, constraint), MAX_SIZES))
    yield from ({MIN_ENDPOINTS: str(size)} for size in sizes)
    declaration = simulated.declaration
    if declaration is not None and comes_before(declaration.source, ANNOTATION, compiled.service):
        return  # no annotation with keys would decide
    lists = [",".join(keys) for keys in islice(_wider(constraint, compiled), MAX_LISTS)]
    yield from ({TOPOLOGY_KEYS: keys} for keys in lists)
    yield from ({TOPOLOGY_KEYS: keys, MIN_ENDPOINTS: str(size)} for keys in lists for size in sizes)


def _sizes(simulated: Simulated, constraint: Constraint) -> Iterator[int]:
    """Yield the values of min-endpoints that change what some clients get."""
    at_least = constraint.at_least if isinstance(constraint, FirstMatch | Narrowing) else 1
    chosen = {len(row.choice.endpoints) for row in simulated.domains() if row.choice.outcome == NEAREST}
    larger = sorted(size + 1 for size in chosen if at_least <= size < len(simulated.endpoints))
    yield from larger


def _wider(constraint: Constraint, compiled: CompiledService) -> Iterator[Sequence[str]]:
    """Yield lists of keys that are softer: with a final ``*``, with the region before it, without the nearest keys."""
    keys = [key for key in constraint.keys if key != ANY_ENDPOINT]
    regions = any(location.value(REGION) is not None for location in compiled.locations)
    with_region = [*keys, REGION] if keys and regions and REGION not in keys else None
    for start in range(len(keys) + 1):
        if with_region is not None and start < len(with_region):
            yield (*with_region[start:], ANY_ENDPOINT)
        if start or not constraint.soft:
            yield (*keys[start:], ANY_ENDPOINT)
