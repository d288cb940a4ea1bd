# SPDX-License-Identifier: Apache-2.0

"""The first page: who asked from where and what they got, what is known of the clusters, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dnsserver.tools.corefile.stub_blocks import ECS_RULE
from dnsserver.tools.pages import window
from dnsserver.tools.pages.findings import Cause, causes_of
from dnsserver.tools.pages.matrix import Expected, ZoneRow, zone_rows
from dnsserver.tools.pages.window import Key, Window
from locator.model import SEVERITIES, Finding, Health
from locator.topology.selection import UNMET

MAX_ZONES = 100  # rows of the matrix
MAX_SOURCES = 10  # ranges of clients, or forwarders
MAX_CAUSES = 30


class SourceCount(Struct, frozen=True):
    """How often something was seen of one source, a range of clients or a forwarder; and the command that fixes it."""

    source: str
    times: int
    about: str = ""
    command: str = ""


class RecentAnswers(Struct, frozen=True):
    """What was asked in the last ``seconds``. ``more_zones`` are those beyond the rows of ``zones``.

    ``unmet`` are the answers that a hard constraint left empty. ``unlocated`` are ranges of clients that nothing
    locates, ``unnamed`` forwarders that name nobody, ``untrusted`` sources that name clients and are not trusted; of
    each the most frequent ones, and before them how often that was in all.
    """

    seconds: int
    answers: int
    zones: tuple[ZoneRow, ...]
    more_zones: int
    unmet: int
    unlocated: tuple[int, tuple[SourceCount, ...]]
    unnamed: tuple[int, tuple[SourceCount, ...]]
    untrusted: tuple[int, tuple[SourceCount, ...]]


class ClusterRow(Struct, frozen=True):
    """A cluster, and for how many seconds it has been out of reach."""

    name: str
    age: int
    objects: tuple[tuple[str, int], ...]


class ReadinessCheck(Struct, frozen=True):
    """A check of readiness, and what it says."""

    name: str
    ok: bool
    text: str


class Overview(Struct, frozen=True):
    """The first page. ``asked`` is None if no DNS is answered here; then ``expected`` is what clients would get.

    ``severities`` has how many findings there are of each; ``causes`` are some of them, ``more_causes`` says how many
    causes are left out.
    """

    asked: RecentAnswers | None
    expected: Expected | None
    clusters: tuple[ClusterRow, ...]
    checks: tuple[ReadinessCheck, ...]
    severities: tuple[tuple[str, int], ...]
    causes: tuple[Cause, ...]
    more_causes: int

    @property
    def ready(self) -> bool:
        """Whether all checks pass."""
        return all(check.ok for check in self.checks)


class ClusterReport(Struct, frozen=True):
    """What is known of the clusters: ``ages`` in seconds and ``objects`` of each, checks of readiness, findings."""

    ages: Mapping[str, float]
    objects: Mapping[str, Mapping[str, int]]
    health: Mapping[str, Health]
    findings: Sequence[Finding]


def overview(known: ClusterReport, asked: RecentAnswers | None, expected: Expected | None) -> Overview:
    """Return the first page."""
    causes = causes_of(known.findings)
    severities = Counter(finding.severity for finding in known.findings)
    return Overview(
        asked=asked,
        expected=expected,
        clusters=tuple(
            ClusterRow(name, round(age), tuple(sorted(known.objects.get(name, {}).items())))
            for name, age in known.ages.items()
        ),
        checks=tuple(ReadinessCheck(name, health.ok, health.text) for name, health in known.health.items()),
        severities=tuple((severity, severities[severity]) for severity in SEVERITIES if severities[severity]),
        causes=causes[:MAX_CAUSES],
        more_causes=max(0, len(causes) - MAX_CAUSES),
    )


def asked_in(seen: Window, now: float, suspects: Sequence[str]) -> RecentAnswers:
    """Return what was asked in a window that ends *now*. *suspects* are sources that are probably forwarders."""
    counted = seen.counted(now)
    zones = zone_rows({(zone, relation): n for (zone, relation), n in _counted(counted, window.ZONES).items()})
    untrusted = _counted(counted, window.IGNORED)
    return RecentAnswers(
        seconds=round(seen.covered(now)),
        answers=sum(row.answers for row in zones),
        zones=zones[:MAX_ZONES],
        more_zones=max(0, len(zones) - MAX_ZONES),
        unmet=counted[window.OUTCOMES, UNMET],
        unlocated=_most(
            [
                SourceCount(where, times, reason)
                for (reason, where), times in _counted(counted, window.UNLOCATED).items()
            ]
        ),
        unnamed=_most(
            [SourceCount(who, times, "", ECS_RULE) for (who,), times in _counted(counted, window.UNNAMED).items()]
        ),
        untrusted=_most(
            [
                SourceCount(who, times, "names several clients" if who in suspects else "", _trusting(who))
                for (who,), times in untrusted.items()
            ]
        ),
    )


def _trusting(source: str) -> str:
    """Return the flag that trusts a source; "" for sources that are counted together."""
    if "." not in source and ":" not in source:
        return ""
    return f"--trusted-forwarder {source}/{128 if ':' in source else 32}"


def _counted(counted: Mapping[Key, int], what: str) -> dict[Key, int]:
    return {key[1:]: times for key, times in counted.items() if key[0] == what and times}


def _most(found: list[SourceCount]) -> tuple[int, tuple[SourceCount, ...]]:
    found.sort(key=lambda row: (-row.times, row.source, row.about))
    return sum(row.times for row in found), tuple(found[:MAX_SOURCES])
