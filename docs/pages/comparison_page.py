# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/compared-with-coredns.md`` from the table of differences: ``make docs``."""

from __future__ import annotations

from tests.kit.go_programs import COREDNS, KUBERNETES
from tests.peers.comparison.differences import DIFFERENCES

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
## The size of replies

The comparison asks for answers that fit into every reply. Large answers differ:

- Over UDP, CoreDNS sends as many octets as the client accepts: 4 kB for 250 A records, in fragments. topodns sends
  at most 1232 octets (`--max-udp-size`, up to 4096), and 512 without EDNS. The rest comes over TCP.
- A truncated reply of topodns holds the same records for one client and question until the answer changes, and
  others for other clients. One of CoreDNS holds the first records, and its plugin `loadbalance` puts other A and
  AAAA records first in each reply.
- A message over TCP has at most 64 KiB: about 4090 A, 2330 AAAA or 1150 SRV records with short names. `topodns
  check` finds larger Services ([AnswerTooLarge](findings.md#answertoolarge)).
- Over TCP, topodns leaves out addresses beside SRV records that would begin behind octet 16383. Some programs
  cannot read them there, such as c-ares in Node.js 20 and systemd-resolved 252. Clients ask for the addresses that
  they need.

HAProxy uses a truncated SRV reply, refuses a truncated A or AAAA reply, and does not ask again over TCP. Where a
Service has more endpoints than fit, write the name server as `tcp@`, and set `accepted_payload_size 65535`: it
limits replies over TCP, too.

```
resolvers topodns
    nameserver topodns tcp@10.96.0.53:53
    accepted_payload_size 65535
```

<!-- Printed by "make docs"; the table is tests/peers/comparison/differences.py. -->
"""


def document() -> str:
    """Return the page as Markdown."""
    rows = "".join(f"| {row.about} | {row.coredns} | {row.topodns} | {row.why} |\n" for row in DIFFERENCES)
    return HEAD.format(kubernetes=KUBERNETES.removeprefix("v"), coredns=COREDNS.removeprefix("v")) + rows + FOOT


if __name__ == "__main__":
    print(document(), end="")
