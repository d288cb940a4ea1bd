# SPDX-License-Identifier: Apache-2.0

"""What Services without a constraint would gain, in rows and lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dnsserver.text import grouped, percent
from dnsserver.tools.simulation.as_if import annotating_command
from dnsserver.tools.simulation.cost import Price
from dnsserver.tools.simulation.gains import OWN_ZONE, Gain, bounded
from dnsserver.tools.simulation.world import Subject
from locator.topology.annotations import MAX_OVERLOAD, TOPOLOGY_KEYS

PRICE_HINT = "--price 0.02 --traffic 1000 says what that is in money: what a GB costs, how many a Service has a month"

Row = tuple[str, ...]


def gain_rows(ranking: Iterable[Gain], price: Price | None, max_overload: float) -> list[Row]:
    """Return a table of those who would gain something, in the order of the *ranking*, below a header."""
    money = () if price is None else ("saved a month",)
    bound = f"with max-overload {bounded(max_overload)[MAX_OVERLOAD]}"
    what = "kept in zone", "of clients", "endpoints", "cross-zone", "after", "overload", "overloaded", bound
    return [("service", *money, *what), *(_row(gain, price) for gain in ranking)]


def _row(gain: Gain, price: Price | None) -> Row:
    money = () if price is None else (f"{price.of(gain.fall):,.2f}",)
    cross, balanced = gain.cross_zone, gain.balanced
    return (
        gain.key, *money, f"{gain.kept:,.1f}", f"{gain.clients:,}", f"{gain.endpoints:,}",
        percent(cross.before), percent(cross.after), f"{gain.max_overload:.2f} x", f"{gain.overloaded:,}",
        "" if balanced is None else f"{percent(balanced.cross_zone)}, {balanced.max_overload:.2f} x",
    )  # fmt: skip


def nothing_lines(gains: Iterable[Gain]) -> list[str]:
    """Return how many Services would gain nothing, and why; nothing if all would gain."""
    reasons = Counter(gain.reason for gain in gains if gain.reason)
    if not reasons:
        return []
    words = [
        f"{reason}: {number:,}" for reason, number in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return [f"{grouped(reasons.total(), 'Service')} would gain nothing ({', '.join(words)})"]


def gain_heading(ranking: Iterable[Gain], max_overload: float) -> str:
    """Return what the commands for some Services do."""
    heading = f"These commands set {OWN_ZONE[TOPOLOGY_KEYS]}"
    if any(gain.balanced for gain in ranking):
        bound = bounded(max_overload)[MAX_OVERLOAD]
        heading += f", with max-overload {bound} where an endpoint would get more than {max_overload:g} even shares"
    return f"{heading}:"


def gain_commands(ranking: Sequence[Gain]) -> list[str]:
    """Return the command to paste for each of some Services that would gain something."""
    return [annotating_command(gain.key, gain.annotations) for gain in ranking]


def others_line(found: Sequence[Subject]) -> str:
    """Return a line about Services without a constraint in several zones, the largest first; "" without any."""
    if not found:
        return ""
    them = f"{grouped(len(found), 'headless Service')} {'has' if len(found) == 1 else 'have'}"
    shows = f"--service {found[0].key} --compare shows what {'it' if len(found) == 1 else 'the largest'} would gain"
    return f"{them} endpoints in several zones, and no constraint: {shows}\n"
