"""Prints ``docs/compared-with-coredns.md``: ``python -m tests.comparison > docs/compared-with-coredns.md``."""

from __future__ import annotations

from tests.comparison.differences import DIFFERENCES
from tests.go_programs import COREDNS, KUBERNETES
from tests.this_machine import ROOT

DOCUMENT = ROOT / "docs" / "compared-with-coredns.md"

HEAD = """\
# topodns beside CoreDNS

Where no constraint asks for something else, topodns answers as the `kubernetes` plugin of CoreDNS does. A test holds
that: it fills a real API server (Kubernetes {kubernetes}) with clusters, and asks CoreDNS {coredns} and topodns the
same tens of thousands of questions, with several settings. Header, sections, records and TTLs are equal; only the
serial of the SOA record is left out, and the order of records within a section.

What differs on purpose is this, and nothing else:

| what | CoreDNS | topodns | why |
| --- | --- | --- | --- |
"""
FOOT = """
<!-- Printed by "python -m tests.comparison"; the table is tests/comparison/differences.py. -->
"""


def document() -> str:
    """Return the page as Markdown."""
    rows = "".join(f"| {row.about} | {row.coredns} | {row.topodns} | {row.why} |\n" for row in DIFFERENCES)
    return HEAD.format(kubernetes=KUBERNETES.removeprefix("v"), coredns=COREDNS.removeprefix("v")) + rows + FOOT


if __name__ == "__main__":
    print(document(), end="")
