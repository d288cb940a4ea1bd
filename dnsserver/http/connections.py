"""Serves an ASGI application by hypercorn's protocols. Whatever a client sends, it harms its own connection only.

hypercorn's own ``serve`` lets the process end by an error in a connection, such as a WebSocket header that is not
ASCII. And it waits for ever for a client that reads no response.
"""

from __future__ import annotations

import logging
import math
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

log = logging.getLogger("topodns")

MAX_CONNECTIONS = 1000  # an idle one takes 50 kB with TLS; API servers, kubelets and Prometheus have some of each
LOG_SECONDS = 60.0  # between two logs of connections that an error has ended: who sends odd bytes may send many

Application = Callable[[Any, Any, Any], Awaitable[None]]  # of ASGI: a scope, and functions that receive and send


class Seldom(logging.Filter):
    """Lets one record a minute pass. hypercorn logs a traceback for each message that a closed WebSocket sends."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the last record that passed is a minute old."""
        if record.created - self._logged_at < LOG_SECONDS:
            return False
        self._logged_at = record.created
        return True


_SELDOM = Seldom()


class _Connections:
    """Converses over connections, and knows those that are open, the oldest first."""

    def __init__(self, app: Application, config: Config, failures: Counter[str], tls: ssl.SSLContext | None) -> None:
        self._failures = failures
        self._app = wrap_app(app, config.wsgi_max_body_size, "asgi")
        self._config = config
        self._tls = tls
        self._context = WorkerContext(None)
        self._open: dict[trio.SocketStream, None] = {}
        self._ended = trio.Event()
        self._logged_at = -math.inf

    async def converse(self, stream: trio.SocketStream) -> None:
        """Answer the requests of a connection until it ends. A new one closes the oldest if there are too many."""
        if len(self._open) >= MAX_CONNECTIONS:
            self._close(next(iter(self._open)))
        self._open[stream] = None
        tls = self._tls
        served = stream if tls is None else trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            await TCPServer(self._app, self._config, self._context, ConnectionState({}), served).run()  # type: ignore[arg-type]
        except* Exception as errors:  # boundary: one connection
            self._failures["http"] += 1
            if trio.current_time() - self._logged_at >= LOG_SECONDS:
                self._logged_at = trio.current_time()
                log.warning("an HTTP connection was closed: %r", _first(errors))
        finally:
            self._close(stream)
            self._ended.set()

    async def end(self) -> None:
        """Close idle connections now, and the others when their requests have ended or the grace period is over."""
        await self._context.terminated.set()
        with trio.move_on_after(self._config.graceful_timeout):
            while self._open:
                self._ended = trio.Event()
                await self._ended.wait()

    def close_all(self) -> None:
        """Close every connection, also one that waits for its client to read."""
        for stream in list(self._open):
            self._close(stream)

    def _close(self, stream: trio.SocketStream) -> None:
        self._open.pop(stream, None)
        stream.socket.close()


async def serve(
    sock: socket.socket,
    app: Application,
    config: Config,
    failures: Counter[str],
    *,
    tls: ssl.SSLContext | None = None,
    until: Callable[[], Awaitable[None]] = trio.sleep_forever,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve *app* at a bound socket until *until* returns or until cancelled; close the socket and all connections.

    *failures* counts the connections that an error has ended, as ``http``.
    """
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.errorlog.addFilter(_SELDOM)
    connections = _Connections(app, config, failures, tls)
    sock.listen(config.backlog)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    async with trio.open_nursery() as conversations:
        try:
            async with listener, trio.open_nursery() as accepting:
                accepting.start_soon(_accept, listener, connections, conversations)
                task_status.started()
                await until()
                accepting.cancel_scope.cancel()
            await connections.end()
        finally:
            connections.close_all()
            conversations.cancel_scope.cancel()


async def _accept(listener: trio.SocketListener, connections: _Connections, conversations: trio.Nursery) -> None:
    await trio.serve_listeners(connections.converse, [listener], handler_nursery=conversations)


def _first(error: BaseException) -> BaseException:
    """Return the first error in a group of groups."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
