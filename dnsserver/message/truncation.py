# SPDX-License-Identifier: Apache-2.0

"""Which records a truncated reply has: an arc of the ring that all records of the answer form.

Some clients take a truncated reply for the whole answer (HAProxy, musl before 1.2.4). So a client finds the same
records in each of its truncated replies, whichever replica sends it, until the answer changes. Where its arc starts
depends on the client and the question alone: other clients have other arcs, and together they use all endpoints evenly.

The native code computes the same (``native/src/answer.rs``).
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from dnsserver.message.records import Address, Record, Srv

SPREAD = 0x9E3779B1  # 2^32 divided by the golden ratio: spreads the checksums of neighbours (Knuth 1973, 6.4)


def ring(records: Iterable[Record]) -> list[Record]:
    """Return records in an order without a pattern, which depends on their data alone, not on the order they come in.

    The endpoints of one node have neighbouring addresses, but not neighbouring places: no arc consists of them alone. A
    record that comes or goes moves no other one, and the weights of SRV records do not count: they change with the
    number of records.
    """
    return sorted(records, key=_place)


def arc_start(client: bytes, question: bytes, records: int) -> int:
    """Return at which of *records* the arc of a client starts.

    *client* is its packed address, or the octets of its address block; *question* the question's octets in lower case.
    """
    number = crc32(question, crc32(client)) * SPREAD & 0xFFFFFFFF
    return number * records >> 32


def _place(record: Record) -> tuple[int, bytes]:
    data = record.data
    if isinstance(data, Address):
        target = data.packed
    else:
        target = (f"{data.target} {data.port}" if isinstance(data, Srv) else str(data)).encode()
    return crc32(target), target
