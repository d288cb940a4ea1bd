# SPDX-License-Identifier: Apache-2.0

"""What pages show of live traffic: rates, curves of the last hour, who asks, and which server has counted that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from msgspec import Struct

from dnsserver.tools.api.operations import Clients
from dnsserver.tools.console.page import PageContext
from dnsserver.tools.live import history
from dnsserver.tools.live.history import MINUTES, TENS, Answered, History
from dnsserver.tools.simulation.as_if import annotating_command

HOUR, DAY = MINUTES - 1, TENS - 1  # columns that are over, at most
WIDTH, HEIGHT = 120, 24  # of a curve, in its own units
MAX_CURVES = 20  # zones with curves: a page stays small
MEASURES = {  # as curves are called
    "answers": history.ANSWERS,
    "crossing zones": history.CROSSING,
    "unmet": history.UNMET,
    "spilled": history.SPILLED,
}
COUNTED = history.ANSWERS, history.UNMET  # what is answered at all
NOTHING = Answered()


class Traffic(Struct, frozen=True):
    """What was answered about all Services in the last ``seconds``, by ``namespace/name``."""

    services: Mapping[str, Answered]
    seconds: float
    history: History

    def of(self, key: str) -> Answered:
        """Return what was answered about a Service."""
        return self.services.get(key, NOTHING)

    def curve(self, key: str) -> Sequence[float]:
        """Return the answers a second about a Service, in the minutes of the last hour."""
        return self.history.hour(history.SERVICE, key, history.ANSWERS)


class Curves(Struct, frozen=True):
    """Answers a second: by minutes in the last ``hour`` and by ten minutes in the last ``day``, the oldest first."""

    hour: Sequence[float]
    day: Sequence[float]


class ServiceTraffic(Struct, frozen=True):
    """What was ``answered`` about one Service in the last ``seconds``, its ``curves`` by name, and who asked.

    ``command`` writes the proposal into the cluster, "" without one.
    """

    answered: Answered
    seconds: float
    curves: Mapping[str, Curves]
    clients: Clients
    command: str


def traffic(context: PageContext) -> Traffic | None:
    """Return what was answered, None where no DNS is answered, or before the first look."""
    recent = context.recent
    asked = recent.asked() if recent is not None else None
    if recent is None or recent.history is None or asked is None:
        return None
    return Traffic(asked.services, asked.service_seconds, recent.history)


async def service_traffic(context: PageContext, key: str) -> ServiceTraffic | None:
    """Return what was answered about a Service (``namespace/name``), None where ``traffic`` is."""
    found = traffic(context)
    if found is None or context.live is None:
        return None
    clients = await context.live.clients.of_service(key, context.inspected)
    curves = curves_of(found.history, history.SERVICE, key)
    name, _, value = (clients["proposal"] or "").partition(": ")
    command = annotating_command(key, {name: value}) if value else ""
    return ServiceTraffic(found.of(key), found.seconds, curves, clients, command)


def zone_curves(context: PageContext) -> Mapping[str, Mapping[str, Curves]]:
    """Return what ``zone_curves_in`` does of what this server has counted: nothing before the first look."""
    found = None if context.recent is None else context.recent.history
    return {} if found is None else zone_curves_in(found)


def zone_curves_in(found: History) -> Mapping[str, Mapping[str, Curves]]:
    """Return the curves of the zones of clients ("" is an unknown one), by name, those with the most answers first.

    They begin when the first minute is over.
    """
    asked = {
        zone: sum(sum(read(history.ZONE, zone, measure)) for read in (found.hour, found.day) for measure in COUNTED)
        for zone in found.names(history.ZONE)
    }
    busiest = sorted((zone for zone in asked if asked[zone]), key=lambda zone: (-asked[zone], zone))
    return {zone: curves_of(found, history.ZONE, zone) for zone in busiest[:MAX_CURVES]}


def curves_of(found: History, sort: str, name: str) -> Mapping[str, Curves]:
    """Return the curves of a zone or a Service (*sort*)."""
    return {
        title: Curves(found.hour(sort, name, measure), found.day(sort, name, measure))
        for title, measure in MEASURES.items()
    }


def curve_points(values: Sequence[float], columns: int) -> Markup:
    """Return the points of a curve, as SVG has them: the last of so many *columns*, each with a value, at the right."""
    most, step = max(values, default=0.0) or 1.0, WIDTH / max(1, columns - 1)
    first = columns - len(values)
    return Markup(
        " ".join(
            f"{(first + number) * step:.1f},{HEIGHT - 1 - (HEIGHT - 2) * value / most:.1f}"
            for number, value in enumerate(values)
        )
    )


def rate(number: float, seconds: float = 1.0) -> str:
    """Return how often something is a second, as people read it."""
    often = number / seconds if seconds else 0.0
    if 0 < often < 0.1:
        return "< 0.1"
    return f"{often:,.0f}" if often >= 9.95 or not often else f"{often:.1f}"
