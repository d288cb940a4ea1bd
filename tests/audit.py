"""Asks whether a library of topodns has a known vulnerability: ``make audit``. The status is 1 if one has."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.requirements import REQUIREMENTS

COMMAND = (sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off",
           "--format", "json", "--requirement", str(REQUIREMENTS))  # fmt: skip


def main() -> int:
    """Print what pip-audit finds. Where it cannot ask, say so: that is no failure of the library."""
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    try:
        audited = json.loads(done.stdout)["dependencies"]
    except ValueError:  # a traceback: no network, say
        print(f"not audited: {done.stderr.strip().rpartition(chr(10))[2]}")
        return 0
    known = [library for library in audited if "vulns" in library]
    for library in known:
        for found in library["vulns"]:
            mended = ", ".join(found["fix_versions"]) or "no version"
            print(f"{library['name']} {library['version']}: {found['id']}, mended in {mended}: {found['description']}")
    print(f"{len(known)} of {len(audited)} libraries audited" + ("" if known else ": the database has none of them"))
    return 1 if any(library["vulns"] for library in known) else 0


if __name__ == "__main__":
    sys.exit(main())
