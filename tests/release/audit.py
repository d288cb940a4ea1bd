# SPDX-License-Identifier: Apache-2.0

"""Asks whether a library or a crate of topodns has a known vulnerability: ``make audit``.

The status is 0 if none has any, 1 if one has, and EX_UNAVAILABLE (69) if that could not be asked of all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import urllib3

from tests.kit.requirements import REQUIREMENTS, crates, pins

PIP_AUDIT = (sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off",
             "--format", "json", "--requirement", str(REQUIREMENTS))  # fmt: skip
# Has RustSec's advisories, and those of others, too (https://google.github.io/osv.dev/post-v1-querybatch/).
OSV = "https://api.osv.dev/v1/querybatch"
PATIENCE = urllib3.Timeout(30.0)  # seconds


class Audit(NamedTuple):
    """What is known of ``total`` things: of each one that was ``asked`` about, the vulnerabilities in ``found``."""

    things: str
    total: int
    asked: int = 0
    found: Sequence[str] = ()
    reason: str = ""
    """Why not all could be asked about."""


def main() -> int:
    """Print what is found, and what could not be asked; return the status."""
    audits = (libraries(), locked_crates())
    for audit in audits:
        for line in audit.found:
            print(line)
        print(f"{audit.asked} of {audit.total} {audit.things} audited" + (f": {audit.reason}" if audit.reason else ""))
    if any(audit.found for audit in audits):
        return 1
    if all(audit.asked == audit.total for audit in audits):
        return 0
    print("Nothing is known of the others. Audit again where the databases answer, before you release.")
    return os.EX_UNAVAILABLE


def libraries() -> Audit:
    """Ask about the Python libraries."""
    done = subprocess.run(PIP_AUDIT, capture_output=True, text=True, check=False)
    try:
        audited = json.loads(done.stdout)["dependencies"]
    except ValueError:  # a traceback: no network, say
        return Audit("libraries", len(pins(REQUIREMENTS)), reason=done.stderr.strip().rpartition("\n")[2])
    found = [
        f"{library['name']} {library['version']}: {vulnerability['id']}, "
        f"fixed in {', '.join(vulnerability['fix_versions']) or 'no version'}: {vulnerability['description']}"
        for library in audited
        for vulnerability in library.get("vulns", ())
    ]
    skipped = [library["skip_reason"] for library in audited if "vulns" not in library]
    return Audit("libraries", len(audited), len(audited) - len(skipped), found, next(iter(skipped), ""))


def locked_crates() -> Audit:
    """Ask about the crates of the native code."""
    locked = crates()
    queries = [
        {"package": {"ecosystem": "crates.io", "name": crate.name}, "version": crate.version} for crate in locked
    ]
    try:
        answer = urllib3.request("POST", OSV, json={"queries": queries}, timeout=PATIENCE)
        results = answer.json()["results"]
        found = [
            f"{crate.name} {crate.version}: {vulnerability['id']}: https://osv.dev/{vulnerability['id']}"
            for crate, result in zip(locked, results, strict=True)
            for vulnerability in result.get("vulns", ())
        ]
    except (urllib3.exceptions.HTTPError, ValueError, KeyError) as error:  # no network, or no answer to the question
        return Audit("crates", len(locked), reason=f"{type(error).__name__}: {error}")
    return Audit("crates", len(locked), len(locked), found)


if __name__ == "__main__":
    sys.exit(main())
