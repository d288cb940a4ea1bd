# SPDX-License-Identifier: Apache-2.0

"""The HTTP client of all commands, but for what they ask an API server; and a running server, asked by its HTTP API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError, ReadTimeoutError

from dnsserver.cli.errors import Failed, WrongInput
from dnsserver.http.problems import PROBLEM_JSON
from dnsserver.tools.api.operations import EVENT_STREAM, JSON, Operation
from locator.printable import cut

CONNECT_SECONDS = 5.0
# A server may have several requests to compute first; on a quiet stream there is a comment every 15 s.
READ_SECONDS = 45.0
PART = 1 << 16  # octets that are read at once, if so many have come
MAX_BODY = 64 << 20  # octets of a response, far more than an explanation of 10,000 endpoints has
BODY_SECONDS = 120.0  # for all of a response
MAX_EVENT = 8 << 20  # octets of a line of a stream
MAX_SHOWN = 200  # characters of a problem that another program sent

SERVERS = "a running topodns, at an address of its --http"

T = TypeVar("T")

RUNNING = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
_POOL = urllib3.PoolManager(retries=False)


class NoResponse(Exception):
    """Nothing has responded, or the response broke off. The text says why in a few words."""


@contextmanager
def requested(
    url: str, *, accept: str, fields: Mapping[str, str] | None = None, timeout: float | urllib3.Timeout = RUNNING
) -> Iterator[urllib3.BaseHTTPResponse]:
    """Give the response to a GET, which is not read yet, whatever its status. Raises NoResponse, also in the block.

    *timeout* is in seconds, for the connection and between any two octets.
    """
    # No page of a site asks, so the server need not mind by which name it is reached.
    headers = {"Accept": accept, "Sec-Fetch-Site": "none"}
    try:
        # Without decoding: none was asked for, and it may become a thousand times as much.
        response = _POOL.request(
            "GET", url, fields=fields, headers=headers, timeout=timeout, preload_content=False, decode_content=False
        )
        try:
            yield response
        finally:
            response.close()
    except (HTTPError, OSError) as error:
        raise NoResponse(_reason(error)) from None


class RemoteServer:
    """A running server at *url*. *arguments* says what messages call each parameter."""

    def __init__(self, url: str, arguments: Mapping[str, str]) -> None:
        self._url, self._arguments = url, arguments

    def get(self, operation: Operation, parameters: Mapping[str, str | None]) -> bytes:
        """Return the JSON that an operation returns. Raises CommandError."""
        with self._requested(operation, parameters) as response:
            return body_of(response, f"--server {self._url}")

    def get_as(self, decoder: msgspec.json.Decoder[T], operation: Operation, parameters: Mapping[str, str | None]) -> T:
        """Return what ``get`` does, decoded. Raises CommandError."""
        try:
            return decoder.decode(self.get(operation, parameters))
        except msgspec.MsgspecError as error:
            raise Failed(f"--server {self._url}: {error}, expected a topodns of this version") from None

    def events(self, operation: Operation, parameters: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
        """Yield the name and the data of each event of a stream, until the server ends it. Raises CommandError."""
        with self._requested(operation, parameters) as response:
            name, data = "message", ""
            for line in self._lines(response):
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    data = value
                elif not line and data:
                    yield name, data
                    name, data = "message", ""

    def _lines(self, response: urllib3.BaseHTTPResponse) -> Iterator[str]:
        rest = b""
        try:
            while part := response.read1(PART):
                *lines, rest = (rest + part).split(b"\n")
                if len(rest) > MAX_EVENT:
                    raise Failed(f"--server {self._url}: a line of more than {MAX_EVENT >> 20} MiB, expected {SERVERS}")
                yield from (line.decode(errors="replace") for line in lines)
        except ReadTimeoutError:
            raise Failed(f"--server {self._url}: the server has said nothing for {READ_SECONDS:.0f} s") from None
        except (HTTPError, OSError):
            raise Failed(f"--server {self._url}: the server has ended") from None

    @contextmanager
    def _requested(
        self, operation: Operation, parameters: Mapping[str, str | None]
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Give the response to a request if it is what the operation returns. Raises CommandError."""
        given = {name: text for name, text in parameters.items() if text is not None}
        accept = f"{operation.media_type}, {PROBLEM_JSON}"
        try:
            with requested(self._url + operation.path, accept=accept, fields=given) as response:
                self._check(response, operation)
                yield response
        except NoResponse as error:
            raise Failed(f"--server {self._url}: {error}, expected {SERVERS}") from None

    def _check(self, response: urllib3.BaseHTTPResponse, operation: Operation) -> None:
        media_type = response.headers.get("content-type", "").partition(";")[0]
        if response.status == 200 and media_type == operation.media_type:
            return
        if media_type != PROBLEM_JSON:
            found = f"HTTP status {response.status}" if response.status != 200 else media_type or "no media type"
            wanted = "JSON" if operation.media_type == JSON else EVENT_STREAM
            raise Failed(
                f"--server {self._url}: {found} found at {operation.path}, expected {wanted}: it is no topodns, or an "
                "older one"
            )
        if response.status == 404:
            raise Failed(
                f"--server {self._url}: the server is topodns, but its HTTP API is off: start it with --console"
            )
        detail, parameter = _problem(body_of(response, f"--server {self._url}"))
        argument = self._arguments.get(parameter)
        if response.status == 400 and argument is not None:
            raise WrongInput(f"{argument}: {detail.removeprefix(f'{parameter}: ')}")
        raise Failed(f"--server {self._url}: {detail}")


def body_of(response: urllib3.BaseHTTPResponse, about: str) -> bytes:
    """Return the body of a response. Raises Failed if it is endless."""
    found, end = bytearray(), time.monotonic() + BODY_SECONDS
    while part := response.read1(PART):
        found += part
        if len(found) > MAX_BODY:
            raise Failed(f"{about}: more than {MAX_BODY >> 20} MiB in a response, expected {SERVERS}")
        if time.monotonic() > end:
            raise Failed(f"{about}: a response that takes longer than {BODY_SECONDS:.0f} s, expected {SERVERS}")
    return bytes(found)


def _problem(body: bytes) -> tuple[str, str]:
    """Return the detail and the parameter of a problem, as far as it has them."""
    try:
        said: Any = json.loads(body)
        return cut(str(said["detail"]), MAX_SHOWN), str(said.get("parameter", ""))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return cut(body.decode(errors="replace"), MAX_SHOWN), ""


def _reason(error: Exception) -> str:
    """Return in a few words why a request failed."""
    if isinstance(error, MaxRetryError) and error.reason is not None:
        return _reason(error.reason)
    cause = error.__cause__ if isinstance(error, NewConnectionError) else None
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    text = str(error)
    return text.rpartition(": ")[2] or type(error).__name__
