# SPDX-License-Identifier: Apache-2.0

"""Sends queries to a server, as forwarders do: from their addresses on loopback, with the client that they name."""

from __future__ import annotations

import socket
from functools import cache

import dns.edns
import dns.message

from examples.demo.day import Query

TIMEOUT = 1.0  # seconds; then a reply counts as lost
MAX_REPLY = 4096  # octets: more than the 1232 that a server sends over UDP


class Asker:
    """Asks a server over UDP, one query after the other."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._sockets: dict[str, socket.socket] = {}
        self._sent = 0
        self.lost = 0

    def ask(self, query: Query) -> None:
        """Send a query and take its reply; count it in ``lost`` if none comes. Raises OSError if nobody listens."""
        sock = self._sockets.get(query.source) or self._bound(query.source)
        self._sent += 1
        identity = (self._sent % 65536).to_bytes(2, "big")
        sock.send(identity + _packet(query)[2:])
        try:
            while sock.recv(MAX_REPLY)[:2] != identity:  # the reply to an earlier query came late
                pass
        except TimeoutError:
            self.lost += 1

    def close(self) -> None:
        """Close all sockets."""
        for sock in self._sockets.values():
            sock.close()

    def _bound(self, source: str) -> socket.socket:
        sock = self._sockets[source] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(TIMEOUT)
        sock.bind((source, 0))
        sock.connect(self._server)
        return sock


@cache
def _packet(query: Query) -> bytes:
    """Return a query as bytes; its first two octets, the id, are anything."""
    options: list[dns.edns.Option] = [] if query.client is None else [dns.edns.ECSOption(query.client, 32)]
    return dns.message.make_query(query.name, query.type, use_edns=0, payload=1232, options=options).to_wire()
