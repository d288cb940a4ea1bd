"""What ``check`` and ``corefile --check`` found, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from dnsserver.answers.explain import PLAIN, RED, YELLOW, counted
from dnsserver.cli.errors import DONE, FAILED
from dnsserver.cli.output import coloured, write
from locator.model import ERROR, INFO, SEVERITIES, WARNING, Finding

_COLOURS = {ERROR: RED, WARNING: YELLOW, INFO: PLAIN}


def report(found: Sequence[Finding], output: str) -> int:
    """Print findings, the gravest first; return the exit status, which says whether there is an error.

    *output* is "text" or "json".
    """
    findings = sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
    if output == "json":
        write(f"{json.dumps(msgspec.to_builtins(findings), indent=2)}\n")
    else:
        write("".join(f"{line}\n" for line in as_lines(findings, colour=coloured())))
    return FAILED if any(finding.severity == ERROR for finding in findings) else DONE


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
