# SPDX-License-Identifier: Apache-2.0

"""An HTTP server in this process that takes the place of an API server or of topodns, and a kubeconfig for it."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.kit.kube import config_of
from tests.kit.waiting import PATIENCE


class Response(NamedTuple):
    status: int
    body: bytes
    media: str = "application/json"


@contextmanager
def other_server(respond: Callable[[], Response | None], *, tls: Path | None = None) -> Iterator[str]:
    """Yield HOST:PORT of a server that responds so to every GET, or hangs up at ``None``.

    *tls* is a file with a certificate and its key.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            response = respond()
            if response is None:
                return
            status, body, media = response
            self.send_response(status)
            self.send_header("Content-Type", media)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Print nothing: clients hang up."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(PATIENCE)


def kubeconfig(folder: Path, url: str) -> Path:
    """Return the file of a kubeconfig whose only context is for the cluster at *url*."""
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config_of(url, token="t")))
    return path
