# SPDX-License-Identifier: Apache-2.0

"""The first page: what is wrong now, who asked from where and what they got, and what is known of the clusters."""

from __future__ import annotations

from starlette.requests import Request

from dnsserver.tools.console.causes import counted_causes
from dnsserver.tools.console.page import FOLLOWS_ALL, Page, PageContext
from dnsserver.tools.console.pages.gains import gains, money_shown, unconstrained
from dnsserver.tools.console.traffic import zone_curves
from dnsserver.tools.console.troubles.expected import expected_if_read
from dnsserver.tools.console.troubles.now import what_is_wrong
from dnsserver.tools.console.troubles.sources import broken_clusters
from dnsserver.tools.console.troubles.trouble import WORDS
from locator.model import SEVERITIES

MAX_ZONES = 100  # rows of the matrix
MAX_SOURCES = 10  # ranges of clients, or forwarders
MAX_CAUSES = 30


async def overview_page(context: PageContext, request: Request) -> Page:
    """Return the first page, even if nothing has been read."""
    money, status = money_shown(request)
    ages, health = context.ages(), context.health()
    objects = {
        name: publisher.snapshot.object_counts
        for name, publisher in context.inspected.clusters.items()
        if publisher.snapshot is not None
    }
    snapshot, without, gained = context.inspected.snapshot(), None, None
    if snapshot is not None:
        without = await unconstrained(context, snapshot)
        if without.all and without.services:
            gained = await gains(context, snapshot)
    expected = await expected_if_read(context)
    severities, causes = await counted_causes(context)
    now = what_is_wrong(context, expected, causes)
    return Page(
        "overview.html",
        now.title,
        {
            "now": now,
            "words": WORDS,
            "broken": broken_clusters(health, ages),
            "asked": None if context.recent is None else context.recent.asked(),
            "curves": zone_curves(context),
            "counted_by": context.live,
            "expected": expected,
            "ages": ages,
            "objects": objects,
            "checks": health,
            "ready": all(check.ok for check in health.values()),
            "severities": [(severity, severities[severity]) for severity in SEVERITIES if severities[severity]],
            "causes": causes,
            **money,
            "without": without,
            "gains": gained,
            "max_zones": MAX_ZONES,
            "max_sources": MAX_SOURCES,
            "max_causes": MAX_CAUSES,
        },
        FOLLOWS_ALL,
        status,
    )
