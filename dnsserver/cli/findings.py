"""What ``check`` and ``corefile --check`` found, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dnsserver.answers.explain import PLAIN, RED, YELLOW, counted
from locator.model import ERROR, INFO, SEVERITIES, WARNING, Finding

_COLOURS = {ERROR: RED, WARNING: YELLOW, INFO: PLAIN}


def gravest_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings by severity, and in their own order within one."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def as_json(findings: Sequence[Finding]) -> str:
    """Return findings as a JSON array."""
    return msgspec.json.format(msgspec.json.encode(findings), indent=2).decode()


def as_lines(findings: Sequence[Finding], *, colour: bool) -> list[str]:
    """Return a line for each finding, with ANSI colours if *colour*, and one that counts them.

    Infos are counted only where there are some.
    """
    lines = []
    for finding in findings:
        severity = f"{finding.severity:<8}"
        lines.append(f"{_COLOURS[finding.severity]}{severity}{PLAIN} {finding}" if colour else f"{severity} {finding}")
    numbers = {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}
    counts = [counted(number, severity) for severity, number in numbers.items() if number or severity != INFO]
    return [*lines, ", ".join(counts)]
