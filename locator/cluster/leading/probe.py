# SPDX-License-Identifier: Apache-2.0

"""One probe of one load balancer address: a TCP connection, or one HTTP or HTTPS request on it.

Whatever is on the other side may refuse, hang, or send garbage without end: a probe ends within ANSWER_SECONDS, and
reads no more than MAX_ANSWER.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
from collections.abc import Sequence
from functools import cache
from typing import Any

import h11
import trio

from locator.health.targets import ProbeTarget
from locator.ip import may_be_balancer, parse_address

ANSWER_SECONDS = 2.0  # for the look-up of a host name, the connection and the answer
MAX_ANSWER = 1 << 16  # bytes: no server takes a header of that size, and none needs to send one
READ_AT_ONCE = 1 << 12
HTTP_PORT, HTTPS_PORT = 80, 443
MAX_ADDRESSES = 8  # of one host name: a cloud's load balancer has one in each zone
MAX_REASON = 200  # characters of a failure, which a ServiceHealth repeats
LOOKUPS = 64  # threads that resolve host names, mostly for milliseconds
LOOKUPS_EACH = 8  # of them for one namespace, whose name servers may hang for many seconds

# Problems of this machine, which say nothing of the address: too few descriptors, ports or buffers.
OF_THIS_MACHINE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)

SocketAddress = tuple[int, tuple[Any, ...]]  # family, and what ``connect`` takes


class Lookups:
    """Resolves host names in threads of its own: a name server that hangs delays nothing else.

    A thread cannot be ended. So while one is still at the name of a target, no other one begins with it; and there are
    ``LOOKUPS`` at most, ``LOOKUPS_EACH`` for one namespace.
    """

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(math.inf)  # ``_busy`` is what bounds them
        self._busy: set[ProbeTarget] = set()

    async def addresses(self, target: ProbeTarget) -> Sequence[SocketAddress]:
        """Return the addresses of a target with a host name. Raises OSError, and UnicodeError for no host name.

        The OSError is one of ``OF_THIS_MACHINE`` if there is no thread for it.
        """
        if target in self._busy:
            raise socket.gaierror("the look-up of the host name hangs")
        of_namespace = [other for other in self._busy.copy() if other.namespace == target.namespace]
        if len(of_namespace) >= min(LOOKUPS_EACH, LOOKUPS - len(self._busy)):
            raise OSError(errno.ENOBUFS, "too many look-ups")
        await trio.lowlevel.checkpoint_if_cancelled()  # below, the thread begins in any case
        self._busy.add(target)
        found = await trio.to_thread.run_sync(self._look_up, target, limiter=self._threads, abandon_on_cancel=True)
        return [address for address in found if _may_be_probed(address)][:MAX_ADDRESSES]

    def _look_up(self, target: ProbeTarget) -> Sequence[SocketAddress]:
        try:
            found = socket.getaddrinfo(target.address, target.port, type=socket.SOCK_STREAM)
        except socket.gaierror:
            raise socket.gaierror("the host name cannot be resolved") from None
        finally:
            self._busy.discard(target)
        return [(family, address) for family, _, _, _, address in found]


def _may_be_probed(address: SocketAddress) -> bool:
    """Whether an address that a host name has can be a load balancer's: whoever owns the name chooses what it has."""
    return may_be_balancer(parse_address(address[1][0].partition("%")[0]))


async def failure_of(target: ProbeTarget, lookups: Lookups) -> str | None:
    """Probe *target*; return why it is not healthy, empty if it is. None if this machine could not find out.

    A host name is healthy if one of its addresses is.
    """
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            addresses = _of_ip(target) or await lookups.addresses(target)
        except (OSError, UnicodeError) as error:
            return None if getattr(error, "errno", None) in OF_THIS_MACHINE else _reason(error)
        return await _first_success(target, addresses)
    return f"no answer within {ANSWER_SECONDS:g} s"


def _of_ip(target: ProbeTarget) -> Sequence[SocketAddress]:
    """Return the only address of a target that is an IP address, nothing for a host name."""
    for family, rest in ((socket.AF_INET, ()), (socket.AF_INET6, (0, 0))):
        try:
            socket.inet_pton(family, target.address)
        except OSError:
            continue
        return [(family, (target.address, target.port, *rest))]
    return []


async def _first_success(target: ProbeTarget, addresses: Sequence[SocketAddress]) -> str | None:
    """Probe all addresses at once; return as ``failure_of`` what the first success, or else the first failure, says."""
    failures: list[str | None] = []
    async with trio.open_nursery() as nursery:

        async def attempt(address: SocketAddress) -> None:
            failure = await _failure_at(target, address)
            failures.append(failure)
            if failure == "":
                nursery.cancel_scope.cancel()

        for address in addresses:
            nursery.start_soon(attempt, address)
    return "" if "" in failures else failures[0] if failures else "the host name has no address that is probed"


async def _failure_at(target: ProbeTarget, address: SocketAddress) -> str | None:
    try:
        with trio.socket.socket(address[0], socket.SOCK_STREAM) as connection:
            await connection.connect(address[1])
            if target.path is None:
                return ""
            stream: trio.abc.Stream = trio.SocketStream(connection)
            if target.tls:
                # A certificate is for a name, so only a name is sent (RFC 6066, section 3).
                name = None if _of_ip(target) else target.address
                stream = trio.SSLStream(stream, _any_certificate(), server_hostname=name, https_compatible=True)
            return await _http_failure(stream, _authority(target), target.path)
    except OSError as error:
        return None if error.errno in OF_THIS_MACHINE else _reason(error)
    except trio.BrokenResourceError as error:  # of a stream, from an OSError
        return _reason(error.__cause__ or error)


@cache
def _any_certificate() -> ssl.SSLContext:
    """Return what accepts every certificate: expired, of nobody, for another name, with a short key.

    A probe asks whether a load balancer works. Whom it may be taken for is the business of its clients.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _authority(target: ProbeTarget) -> str:
    """Return address and port as in a URL, which a request repeats as its Host (RFC 9110, section 7.2)."""
    address = f"[{target.address}]" if ":" in target.address else target.address
    return address if target.port == (HTTPS_PORT if target.tls else HTTP_PORT) else f"{address}:{target.port}"


async def _http_failure(stream: trio.abc.Stream, host: str, path: str) -> str:
    """Send a GET request, and read the answer as far as its status."""
    connection = h11.Connection(h11.CLIENT)
    request = h11.Request(
        method="GET", target=path, headers=[("Host", host), ("User-Agent", "topodns"), ("Connection", "close")]
    )
    await stream.send_all(connection.send(request) + connection.send(h11.EndOfMessage()))
    read = 0
    try:
        while read < MAX_ANSWER:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                # A redirect is an answer, and not followed: what it leads to may be anywhere.
                return "" if 200 <= event.status_code < 400 else f"HTTP status {event.status_code}"
            if event is h11.NEED_DATA:
                received = await stream.receive_some(READ_AT_ONCE)
                if not received:
                    return "the connection was closed without an answer"
                read += len(received)
                connection.receive_data(bytes(received))
    except h11.RemoteProtocolError:
        return "the answer is no HTTP"
    return f"no answer within {MAX_ANSWER >> 10} KiB"


def _reason(error: BaseException) -> str:
    """Return the text of an error without the address and numbers, which say nothing to a reader of ServiceHealths."""
    if isinstance(error, ssl.SSLError):  # its number is that of a table in OpenSSL
        return f"TLS: {(error.reason or 'the handshake failed').replace('_', ' ').lower()}"[:MAX_REASON]
    number = getattr(error, "errno", None)
    if isinstance(error, socket.gaierror) or not isinstance(number, int):
        return " ".join(str(error).split())[:MAX_REASON]
    return os.strerror(number)
