# SPDX-License-Identifier: Apache-2.0

"""The least that a DNS server in Python does: ``recvfrom``, one look-up in a dictionary, ``sendto``.

``python -m bench.offered.python_loop`` serves the names of ``bench.cluster``, for each client the same records.
"""

from __future__ import annotations

import dns.message
import dns.rrset

from bench.cluster import SERVICES, TTL, ZONES, endpoint_address, service_name
from bench.loads import PLAIN
from bench.queries import query, question

SIZE = 1500  # octets


def replies() -> dict[bytes, bytes]:
    """Return all replies without their ids, by query without id."""
    known = {}
    for service in range(SERVICES):
        name = service_name(service)
        asked = query(0, question(name, "A"), PLAIN)
        reply = dns.message.make_response(dns.message.from_wire(asked))
        addresses = [endpoint_address(service, zone) for zone in range(ZONES)]
        reply.answer.append(dns.rrset.from_text(name, TTL, "IN", "A", *addresses))
        known[asked[2:]] = reply.to_wire()[2:]
    return known


def main() -> None:
    """Serve on a free port of loopback, for ever."""
    import socket

    sock, known = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), replies()
    sock.bind(("127.0.0.1", 0))
    print(f"listening udp 127.0.0.1:{sock.getsockname()[1]}", flush=True)
    while True:
        asked, client = sock.recvfrom(SIZE)
        sock.sendto(asked[:2] + known[asked[2:]], client)


if __name__ == "__main__":
    main()
