# SPDX-License-Identifier: Apache-2.0

"""What is wrong in the clusters, by its cause, with the commands that fix it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dnsserver.tools.console.page import PageContext, Part, part_of
from locator.findings import ClusterCode
from locator.model import SEVERITIES, Finding

SHOWN = 5  # findings of one cause on the first page
ROWS = 50
KEY_DIGITS = 16


class Cause(NamedTuple):
    """The findings with one code, and the greatest severity that any of them has."""

    code: str
    severity: str
    findings: Part[Finding]


def causes_of(findings: Sequence[Finding], *, code: str | None = None, number: int = 1) -> list[Cause]:
    """Return some findings of each cause, the most severe first; with *code* those of one cause, part *number*."""
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        if code in (None, finding.code):
            by_code.setdefault(finding.code, []).append(finding)
    causes = []
    for name, found in by_code.items():
        severity = min((finding.severity for finding in found), key=SEVERITIES.index)
        causes.append(Cause(name, severity, part_of(found, number, SHOWN if code is None else ROWS)))
    return sorted(causes, key=lambda cause: (SEVERITIES.index(cause.severity), cause.code))


async def counted_causes(context: PageContext) -> tuple[Counter[str], Sequence[Cause]]:
    """Return how many findings there are of each severity, and their causes."""
    findings = context.changes.findings

    async def compute() -> tuple[Counter[str], Sequence[Cause]]:
        return await context.turns.in_thread(
            lambda: (Counter(finding.severity for finding in findings), causes_of(findings))
        )

    return await context.cached("causes", (findings,), compute)


def cluster_code(name: str) -> ClusterCode | None:
    """Return a code by its name, None if it is not about clusters."""
    return ClusterCode.__members__.get(name)


def fixing_command(finding: Finding) -> str:
    """Return the command that fixes a finding, for a shell, with its object's names; "" if no command does."""
    code = cluster_code(finding.code)
    return "" if code is None else code.command_for(finding)


def finding_key(finding: Finding) -> str:
    """Return what tells a finding from all others, in few characters."""
    return hashlib.sha256(str(finding).encode(errors="replace")).hexdigest()[:KEY_DIGITS]
