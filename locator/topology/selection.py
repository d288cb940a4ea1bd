"""Which endpoints a client gets, and why: the heart of topodns, and all of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from locator.model import Endpoint, Location
from locator.topology.constraints import ANY

NEAREST = "nearest"
ALL = "all"
UNCONSTRAINED = "unconstrained"
UNMET = "unmet"


class LocatedEndpoint(Struct, frozen=True, eq=False):
    """A ready endpoint and where it is."""

    endpoint: Endpoint
    location: Location


class Step(Struct, frozen=True):
    """One key that was looked at: the client's value of it, and how many of the endpoints left share it."""

    key: str
    value: str | None
    matched: int


class Selection(Struct, frozen=True, eq=False):
    """The endpoints given to one client, with the reason.

    ``key`` is the topology key that decided, None where none did; ``steps`` are the keys in
    the order they were looked at.
    """

    endpoints: tuple[LocatedEndpoint, ...]
    outcome: str
    steps: tuple[Step, ...] = ()
    key: str | None = None


def unconstrained(endpoints: Sequence[LocatedEndpoint]) -> Selection:
    """Return the selection of a Service that asks for nothing: every endpoint."""
    return Selection(tuple(endpoints), UNCONSTRAINED)


def select(
    keys: Sequence[str],
    here: Location,
    endpoints: Sequence[LocatedEndpoint],
    *,
    at_least: int = 1,
    required: Collection[str] | None = None,
) -> Selection:
    """Pick the endpoints that share the client's value of the first useful key.

    The first tier with *at_least* endpoints decides; ``*`` takes all. If the keys run out, the
    first tier that had any. None had: that is an answer, not an error. Without a final ``*``
    the constraint is hard, and the selection is empty (KEP-536). A client or endpoint without
    a label never matches its key.

    Where some of the keys are *required*, or none of them (but not None), no key decides alone:
    each narrows what those before it left, a required one to nothing if it must, any other only
    where *at_least* endpoints stay.
    """
    if required is not None:
        return _narrowed(keys, here, endpoints, at_least, required)
    steps: list[Step] = []
    fallback: Selection | None = None
    for key in keys:
        if key == ANY:
            steps.append(Step(ANY, None, len(endpoints)))
            return Selection(tuple(endpoints), ALL, tuple(steps), ANY)
        tier = _tier(key, here, endpoints, steps)
        if len(tier) >= at_least:
            return Selection(tier, NEAREST, tuple(steps), key)
        if tier and fallback is None:
            fallback = Selection(tier, NEAREST, key=key)
    if fallback is not None:
        return Selection(fallback.endpoints, NEAREST, tuple(steps), fallback.key)
    return Selection((), UNMET, tuple(steps))


def _narrowed(
    keys: Sequence[str],
    here: Location,
    endpoints: Sequence[LocatedEndpoint],
    at_least: int,
    required: Collection[str],
) -> Selection:
    """Narrow by each key in turn; ``key`` is the last that did."""
    steps: list[Step] = []
    left, narrowing = tuple(endpoints), ANY
    for key in keys:
        tier = _tier(key, here, left, steps)
        if key in required and not tier:
            return Selection((), UNMET, tuple(steps))
        if key in required or len(tier) >= at_least:
            left, narrowing = tier, key
    return Selection(left, ALL if narrowing == ANY else NEAREST, tuple(steps), narrowing)


def _tier(
    key: str, here: Location, endpoints: Sequence[LocatedEndpoint], steps: list[Step]
) -> tuple[LocatedEndpoint, ...]:
    """Return the endpoints that share the client's value of a key, and note the step."""
    value = here.value(key)
    tier = () if value is None else tuple(each for each in endpoints if each.location.value(key) == value)
    steps.append(Step(key, value, len(tier)))
    return tier
