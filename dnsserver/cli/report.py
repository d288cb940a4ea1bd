"""Findings as people and programs read them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from dnsserver.answers.explain import counted, severity_text
from dnsserver.cli.errors import DONE, FAILED
from dnsserver.cli.output import coloured, write
from locator.model import ERROR, Finding


def report(found: Sequence[Finding], output: str) -> int:
    """Print findings, errors first; return the exit status, which says whether there is an error.

    *output* is "text" or "json".
    """
    findings = sorted(found, key=lambda finding: finding.severity != ERROR)
    errors = sum(finding.severity == ERROR for finding in findings)
    if output == "json":
        lines = [json.dumps(msgspec.to_builtins(findings), indent=2)]
    else:
        colour = coloured()
        lines = [f"{severity_text(finding.severity, colour=colour)} {finding}" for finding in findings]
        lines.append(f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}")
    write("".join(f"{line}\n" for line in lines))
    return FAILED if errors else DONE
