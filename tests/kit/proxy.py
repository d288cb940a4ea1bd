# SPDX-License-Identifier: Apache-2.0

"""A TCP proxy on 127.0.0.1 that cuts and holds connections when a test asks for it."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType

from tests.kit.this_machine import free_port

CHUNK = 1 << 14


class Proxy:
    """Passes octets between its own ``port`` and another port, inside a ``with`` block."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.cuts = 0
        """How many connections were cut."""
        self.opened = 0
        """How many connections were begun."""
        self._target = target
        self._passing = threading.Event()
        self._passing.set()
        self._lock = threading.Lock()
        self._left: int | None = None  # octets that each connection may still pass to its client
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._passing.set()
        self._threads[0].join()  # who accepts: what it accepted last is to be cut, too
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Cut all connections now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for client, server in pairs:
            self._cut(client, server)

    def cut_after(self, octets: int | None) -> None:
        """Cut each connection, new ones too, after it has passed this many more octets to its client."""
        self._left = octets

    def hold(self) -> None:
        """Pass nothing on, but keep all connections open."""
        self._passing.clear()

    def go_on(self) -> None:
        """Pass octets on again."""
        self._passing.set()

    def _start(self, do: object, *arguments: object) -> None:
        thread = threading.Thread(target=do, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the end
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # nothing listens there
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            self.opened += 1
            self._start(self._pass_on, client, server, False)
            self._start(self._pass_on, server, client, True)

    def _pass_on(self, source: socket.socket, sink: socket.socket, to_client: bool) -> None:
        carried, begun_at = 0, self._left
        while True:
            try:
                data = source.recv(CHUNK)
                self._passing.wait()
                if self._left != begun_at:
                    carried, begun_at = 0, self._left
                if to_client and begun_at is not None and carried + len(data) >= begun_at:
                    sink.sendall(data[: begun_at - carried])
                    self._cut(sink, source)
                    return
                carried += len(data)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:  # cut by us or by one end: the other end must not wait for more
                for sock in (source, sink):
                    with suppress(OSError):  # closed already
                        sock.shutdown(socket.SHUT_RDWR)
                return

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        self.cuts += 1
        for sock in (client, server):
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed already
                pass
            sock.close()
