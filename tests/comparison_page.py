"""Prints ``docs/compared-with-coredns.md`` from the table of differences: ``make docs``."""

from __future__ import annotations

from tests.comparison.differences import DIFFERENCES
from tests.go_programs import COREDNS, KUBERNETES

HEAD = """\
# topodns beside CoreDNS

Unless a constraint asks for something else, topodns answers like the `kubernetes` plugin of CoreDNS. A test compares
them: it fills a real API server (Kubernetes {kubernetes}) with clusters, and asks CoreDNS {coredns} and topodns the
same tens of thousands of questions, with several settings. Header, sections, records and TTLs must be equal. The test
ignores only the serial of the SOA record, and the order of records within a section.

These differences are intended, and there are no others:

| what | CoreDNS | topodns | why |
| --- | --- | --- | --- |
"""
FOOT = """
<!-- Printed by "make docs"; the table is tests/comparison/differences.py. -->
"""


def document() -> str:
    """Return the page as Markdown."""
    rows = "".join(f"| {row.about} | {row.coredns} | {row.topodns} | {row.why} |\n" for row in DIFFERENCES)
    return HEAD.format(kubernetes=KUBERNETES.removeprefix("v"), coredns=COREDNS.removeprefix("v")) + rows + FOOT


if __name__ == "__main__":
    print(document(), end="")
