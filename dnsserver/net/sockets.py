"""Sockets before they serve: where to listen, what to bind, how many descriptors there may be."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial

from dnsserver.net import tcp, udp
from dnsserver.settings.values import ListenAddress
from locator.ip import address_text

log = logging.getLogger("topodns")

SHARED_PORT_TRIES = 20  # a port that UDP gave may be taken for TCP
V4_WILDCARD, V6_WILDCARD = bytes(4), bytes(16)
WILDCARDS = (V4_WILDCARD, V6_WILDCARD)


class CannotListen(Exception):
    """An address that cannot be listened on: which, and why."""


def in_pod() -> bool:
    """Whether this runs inside a pod."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def default_listen(port: int) -> ListenAddress:
    """Return where to listen when nothing is said: loopback, or in a pod everywhere."""
    if not in_pod():
        return ListenAddress(bytes((127, 0, 0, 1)), port)
    return ListenAddress(V6_WILDCARD if _has_ipv6() else V4_WILDCARD, port)


def bound_pairs(addresses: Sequence[ListenAddress]) -> list[tuple[socket.socket, socket.socket]]:
    """Return a bound UDP and a bound TCP socket for each address, which share a port. Raises CannotListen."""
    return [_bound_pair(each, addresses) for each in addresses]


def _bound_pair(listen: ListenAddress, beside: Sequence[ListenAddress]) -> tuple[socket.socket, socket.socket]:
    alone = any(each.port == listen.port != 0 and len(each.address) == 4 for each in beside)
    for attempt in range(SHARED_PORT_TRIES):
        prepare = partial(udp.prepare, wildcard=listen.address in WILDCARDS)
        datagrams = _bound("--listen", listen, socket.SOCK_DGRAM, prepare, six_only=alone)
        port = datagrams.getsockname()[1]
        try:
            same = listen._replace(port=port)
            return datagrams, _bound("--listen", same, socket.SOCK_STREAM, tcp.prepare, six_only=alone)
        except CannotListen:
            datagrams.close()
            if listen.port != 0 or attempt == SHARED_PORT_TRIES - 1:
                raise
    raise AssertionError("the last try returns or raises")


def bound_stream(flag: str, listen: ListenAddress) -> socket.socket:
    """Return a bound TCP socket; *flag* is who asks for it. Raises CannotListen."""
    return _bound(flag, listen, socket.SOCK_STREAM, tcp.prepare)


def _bound(
    flag: str,
    listen: ListenAddress,
    kind: socket.SocketKind,
    prepare: Callable[[socket.socket], None],
    *,
    six_only: bool = False,
) -> socket.socket:
    family = socket.AF_INET if len(listen.address) == 4 else socket.AF_INET6
    try:
        sock = socket.socket(family, kind)
        try:
            prepare(sock)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, six_only)
            sock.bind((address_text(listen.address), listen.port))
        except OSError:
            sock.close()
            raise
    except OSError as error:
        name = "udp" if kind == socket.SOCK_DGRAM else "tcp"
        reason = "port in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise CannotListen(f"{flag} {listen}: {name}: {reason}, expected an address and port that are free") from None
    return sock


def connection_limit(asked: int, *, others: int) -> int:
    """Return how many connections there may be: as many as asked for, if there can be so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and soft < asked + others:
        soft = hard if hard != resource.RLIM_INFINITY else asked + others
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = asked if soft == resource.RLIM_INFINITY else max(1, min(asked, soft - others))
    if possible < asked:
        log.warning("--max-connections: %d of %d, as many as 'ulimit -n' allows", possible, asked)
    return possible


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::", 0))
    except OSError:
        return False
    return True


def announce(proto: str, name: tuple[str, int]) -> None:
    """Print where we listen, alone on a line: programs wait for it."""
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    print(f"listening {proto} {host}:{name[1]}", file=sys.stderr, flush=True)
