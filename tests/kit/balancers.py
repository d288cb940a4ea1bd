# SPDX-License-Identifier: Apache-2.0

"""Load balancers on loopback addresses, which a test switches on and off."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Balancer:
    """A listener at a loopback address; it answers HTTP with ``status``, from its beginning on, or HTTPS by ``tls``."""

    def __init__(self, host: str, port: int = 0) -> None:
        self.host, self.port, self.status = host, port, 200
        self.tls: ssl.SSLContext | None = None
        self._server: ThreadingHTTPServer | None = None
        self.start()

    def start(self) -> None:
        """Listen, again at the same port."""
        balancer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(balancer.status)
                self.send_header("Location", "http://192.0.2.1/")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((self.host, self.port), Handler)
        self.port = self._server.server_address[1]
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
