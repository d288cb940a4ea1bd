# SPDX-License-Identifier: Apache-2.0

"""One HTTP/1.1 connection: h11 reads requests, and an ASGI application answers one after the other.

HTTP/2 is refused, and offers to change to it or to WebSocket are passed over. Whatever a client sends or does not read,
a connection holds a bounded number of octets, and each wait for the client ends.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message

from dnsserver.net.bounds import HeldOctets

READ_SIZE = 16384  # octets, as many as a TLS record has
PIECE = 65536  # octets of a response that are sent at once
PIECE_SECONDS = 10.0  # for the client to take a piece
HEAD_SECONDS = 5.0  # for a request line and its headers to be complete, once they have begun
MAX_HEAD = 16384  # octets of request line and headers: room for the cookies that browsers keep for localhost
MAX_HEADERS = 100  # reading one takes some microseconds
# For a client to read the last response while it still sends: closing at once would reset the connection, and the
# client might never see the response.
LINGER_SECONDS = 1.0
LINGER_READS = 64
VERSIONS = (b"1.1", b"1.0")
CLIENT_GONE = (trio.BrokenResourceError, OSError)  # what sending and receiving raise when the client has gone

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Secure = Callable[[trio.SocketStream], Awaitable[Stream | None]]


class Limits(NamedTuple):
    """What connections may hold and take.

    ``held`` knows what all connections of the process hold. ``may_take_all`` says whether a source, a packed address,
    may have all connections. A connection ends after ``idle_seconds`` without a request. When the server ends, requests
    that have begun have ``grace_seconds``.
    """

    held: HeldOctets
    idle_seconds: float
    grace_seconds: float
    may_take_all: Callable[[bytes], bool] = lambda source: False


class Conversation:
    """Answers the requests that come from *source*, a packed address, over one connection.

    ``idle`` is whether no request has begun. Once ``ending`` is true, the connection ends after the next response.
    *failed* is called with what *app* raises.
    """

    def __init__(
        self,
        app: ASGIApp,
        stream: trio.SocketStream,
        source: bytes,
        limits: Limits,
        failed: Callable[[Exception], None],
    ) -> None:
        self.source = source
        self.idle, self.ending = True, False
        self._app, self._limits, self._failed = app, limits, failed
        self._transport = stream
        self._stream: Stream = stream
        self._scope = trio.CancelScope()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD + READ_SIZE)
        self._method = b""
        self._body = 0  # octets of the request's body that the application has
        self._body_ended = False  # and whether it knows that these are all
        self._head = b""  # of the response, until its body begins
        self._is_whole = False  # whether the application has given the whole response

    def close(self) -> None:
        """End the conversation at once; what the application does for it is cancelled."""
        self._scope.cancel()

    async def run(self, secure: Secure | None) -> None:
        """Converse until either side ends it, and close the connection.

        *secure* returns the connection with TLS, None if that takes too long.
        """
        try:
            with self._scope, suppress(*CLIENT_GONE):
                stream = self._transport if secure is None else await secure(self._transport)
                if stream is not None:
                    self._stream = stream
                    await self._converse()
                    await self._end()
        finally:
            self._limits.held.forget(self)
            self._transport.socket.close()

    async def _converse(self) -> None:
        try:
            while (request := await self._next_request()) is not None:
                await self._respond(request)
                if not self._next_cycle():
                    break
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)

    async def _next_request(self) -> h11.Request | None:
        """Return the next request, None if the client has gone or is too slow. Raises RemoteProtocolError."""
        http = self._http
        self.idle = True
        with trio.move_on_after(self._limits.idle_seconds) as patience:
            while True:
                received = http.trailing_data[0]
                if received and self.idle:
                    self.idle = False
                    patience.deadline = trio.current_time() + HEAD_SECONDS
                head = received.partition(b"\r\n\r\n")[0]
                if len(head) > MAX_HEAD or head.count(b"\n") > MAX_HEADERS:
                    raise h11.RemoteProtocolError("too large a head", error_status_hint=431)
                event = http.next_event()
                if event is not h11.NEED_DATA:
                    return event if isinstance(event, h11.Request) else None
                await self._read()
        return None

    async def _respond(self, request: h11.Request) -> None:
        """Let the application answer a request. Without a body to come, the end of the client is noticed meanwhile."""
        http, self._method = self._http, request.method
        self._body_ended = self._is_whole = False
        if request.http_version not in VERSIONS:
            await self._refuse(505)
        elif request.method not in (b"GET", b"HEAD"):
            await self._answer(request)
        elif not isinstance(http.next_event(), h11.EndOfMessage):
            await self._refuse(400)  # a GET request with a body means nothing (RFC 9110, section 9.3.1)
        elif http.trailing_data[0]:  # the next request is here: the end, which comes after it, cannot be seen
            await self._answer(request)
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                await self._answer(request)
                nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        """End the conversation if the client ends the connection: what it has asked for is worth nothing any more.

        But it may end its own side alone, and read on. Once the response is whole, that costs nothing more.
        """
        with suppress(*CLIENT_GONE):
            if await self._read() or self._is_whole:
                return
        self.close()

    async def _answer(self, request: h11.Request) -> None:
        target, _, query = request.target.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http" if self._stream is self._transport else "https",
            "path": unquote(target.decode()),
            "raw_path": target,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
        }
        try:
            await self._app(scope, self._receive, self._send)
        except Exception as error:  # boundary: one HTTP request
            self._failed(error)
        await self._refuse(500)  # unless there was a response

    async def _receive(self) -> Message:
        """Return the next part of the request. After the last one, wait until cancelled, as by ``_watch``."""
        http = self._http
        if self._body_ended:
            await trio.sleep_forever()
        if http.their_state is h11.SEND_BODY:
            if http.they_are_waiting_for_100_continue:
                await self._send_all(http.send(h11.InformationalResponse(status_code=100, headers=[])))
            try:
                while (event := http.next_event()) is h11.NEED_DATA:
                    await self._read()
            except (h11.RemoteProtocolError, *CLIENT_GONE):
                return {"type": "http.disconnect"}
            if isinstance(event, h11.Data):
                self._body += len(event.data)
                return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        self._body_ended = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Message) -> None:
        """Send a part of the response, in pieces. Whoever does not take one in time is closed, and so who has gone."""
        http = self._http
        if message["type"] == "http.response.start":
            headers = [*message["headers"], (b"date", formatdate(usegmt=True).encode())]
            if self.ending:
                headers.append((b"connection", b"close"))
            self._head = http.send(h11.Response(status_code=message["status"], headers=headers)) or b""
            return
        body: bytes = b"" if self._method == b"HEAD" else message.get("body", b"")
        self._is_whole = not message.get("more_body", False)
        for begin in range(0, max(1, len(body)), PIECE):
            piece, is_last = body[begin : begin + PIECE], begin + PIECE >= len(body)
            octets, self._head = self._head, b""
            if piece:
                octets += http.send(h11.Data(data=piece)) or b""
            if is_last and self._is_whole:
                octets += http.send(h11.EndOfMessage()) or b""
            self._note_held(unsent=len(body) - begin)
            await self._send_all(octets)

    async def _send_all(self, octets: bytes | None) -> None:
        with trio.move_on_after(PIECE_SECONDS), suppress(*CLIENT_GONE):
            await self._stream.send_all(octets or b"")
            return
        self.close()
        await trio.lowlevel.checkpoint()

    async def _refuse(self, status: int) -> None:
        """Send a response without a body, after which the connection ends, if none has begun."""
        http = self._http
        if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-length", "0"), ("connection", "close"), ("date", formatdate(usegmt=True))]
            octets = http.send(h11.Response(status_code=status, headers=headers)) or b""
            await self._send_all(octets + (http.send(h11.EndOfMessage()) or b""))

    def _next_cycle(self) -> bool:
        """Get ready for another request; return whether there can be one. Raises RemoteProtocolError."""
        http = self._http
        if http.their_state is h11.SEND_BODY:
            http.next_event()  # the end, if the application did not look for a body
        if not http.our_state is http.their_state is h11.DONE:
            return False
        http.start_next_cycle()
        self._body = 0
        self._note_held()
        return True

    async def _end(self) -> None:
        """Close the connection so that the client can still read the last response."""
        with trio.move_on_after(LINGER_SECONDS):
            if self._http.their_state not in (h11.SEND_BODY, h11.ERROR):
                await self._stream.aclose()
                return
            self._transport.socket.shutdown(socket.SHUT_WR)
            for _ in range(LINGER_READS):
                if not await self._transport.receive_some(READ_SIZE):
                    break

    async def _read(self) -> bool:
        """Give h11 the next octets; return whether there are any, False at the end of what the client sends."""
        received = bytes(await self._stream.receive_some(READ_SIZE))
        self._http.receive_data(received)
        self._note_held()
        return bool(received)

    def _note_held(self, *, unsent: int = 0) -> None:
        self._limits.held.note(self, self._body + len(self._http.trailing_data[0]) + unsent, self.close)
