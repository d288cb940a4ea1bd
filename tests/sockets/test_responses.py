# SPDX-License-Identifier: Apache-2.0

"""Responses over real connections: what topodns reads of them is what urllib3 reads of them."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import pytest
import urllib3

from locator.cluster.responses import Stream, Unreachable

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
BODY = b"5\r\nab\ncd\r\n3;x=y\r\nef\n\r\n0\r\n\r\n"
ZIPPED = gzip.compress(b"one\ntwo\n")


class Connections:
    """How many connections a server has accepted, and where it listens."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self.accepted = 0


@contextmanager
def serving(parts: Sequence[bytes], *, ends: bool = True) -> Iterator[Connections]:
    """Answer each request with *parts*, and end the connection then, if it *ends*."""

    def answer() -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                known.accepted += 1
                with connection:
                    while connection.recv(65536):
                        for part in parts:
                            connection.sendall(part)
                        if ends:
                            break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        known = Connections(listener.getsockname()[1])
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield known
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def requested(pool: urllib3.PoolManager, url: str) -> urllib3.BaseHTTPResponse:
    return pool.request("GET", url, preload_content=False, retries=False, timeout=5)


CASES = [
    ("whole", [HEAD, b"\r\n", BODY]),
    ("octet-by-octet", [HEAD + b"\r\n", *(BODY[at : at + 1] for at in range(len(BODY)))]),
    ("trailers", [HEAD + b"\r\n" + BODY[:-2] + b"Last: 1\r\n\r\n"]),
    ("empty", [HEAD + b"\r\n0\r\n\r\n"]),
    ("a-length-too", [HEAD + b"Content-Length: 4\r\n\r\n" + BODY]),
    ("after-100", [b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"\r\n" + BODY]),
    ("gzip", [HEAD + b"Content-Encoding: gzip\r\n\r\n%x\r\n" % len(ZIPPED) + ZIPPED + b"\r\n0\r\n\r\n"]),
    ("http-1.0", [b"HTTP/1.0 200 OK\r\n\r\none\ntwo\n"]),
    ("http-1.0-chunked", [b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY]),
    ("length", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\none\n"]),
    ("cut-in-a-chunk", [HEAD + b"\r\n5\r\nab"]),
    ("cut-behind-a-chunk", [HEAD + b"\r\n5\r\nab\ncd\r\n"]),
    ("cut-in-a-size", [HEAD + b"\r\n5\r\nab\ncd\r\n1"]),
    ("no-size", [HEAD + b"\r\nzz\r\nab"]),
]


@pytest.mark.parametrize("parts", [row[1] for row in CASES], ids=[row[0] for row in CASES])
def test_the_content_is_what_the_library_reads(parts: list[bytes]) -> None:
    """A body that is cut is an error for both."""
    with serving(parts) as server, closing(requested(urllib3.PoolManager(), server.url)) as response:
        try:
            expected = b"".join(response.stream(decode_content=True))
        except urllib3.exceptions.HTTPError:
            expected = b"cut"
    with serving(parts) as server:
        try:
            content = Stream(requested(urllib3.PoolManager(), server.url), "h", 5).read()
        except Unreachable as error:
            content = error.reason.encode()
    assert content == expected


def test_a_connection_serves_one_response_after_the_other() -> None:
    """A new one for each watch and each page would cost a TLS handshake."""
    with serving([HEAD + b"\r\n" + BODY], ends=False) as server, urllib3.PoolManager() as pool:
        for _ in range(3):
            assert Stream(requested(pool, server.url), "h", 5).read() == b"ab\ncdef\n"
    assert server.accepted == 1


def test_a_response_that_is_given_up_takes_its_connection_along() -> None:
    """What is left of it would be the beginning of the next one."""
    with serving([HEAD + b"\r\n5\r\nab\ncd\r\n"], ends=False) as server, urllib3.PoolManager() as pool:
        for _ in range(2):
            with Stream(requested(pool, server.url), "h", 5) as stream:
                assert next(iter(stream)) == [b"ab"]
    assert server.accepted == 2
