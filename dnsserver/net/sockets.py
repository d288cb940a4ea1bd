"""Bind sockets before they serve: where to listen by default, and how many connections there may be."""

from __future__ import annotations

import errno
import logging
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial

from dnsserver.net import tcp, udp
from dnsserver.net.listening import WILDCARDS, CannotListen
from dnsserver.settings.values import ListenAddress
from locator.ip import address_text

log = logging.getLogger("topodns")

SHARED_PORT_TRIES = 20  # for one that is free by UDP and by TCP, where any port will do


def bound_pairs(addresses: Sequence[ListenAddress]) -> list[tuple[socket.socket, socket.socket]]:
    """Return a bound UDP and a bound TCP socket for each address, which share a port. Raises CannotListen."""
    ipv4_ports = {address.port for address in addresses if len(address.address) == 4 and address.port != 0}
    # By default "::" takes what is sent to IPv4 addresses, too. Where one of these has the port, it must not.
    return [_bound_pair(address, six_only=address.port in ipv4_ports) for address in addresses]


def _bound_pair(
    listen: ListenAddress, *, six_only: bool, tries: int = SHARED_PORT_TRIES
) -> tuple[socket.socket, socket.socket]:
    prepare = partial(udp.prepare, wildcard=listen.address in WILDCARDS)
    datagrams = _bound("--listen", listen, socket.SOCK_DGRAM, prepare, six_only=six_only)
    same_port = listen._replace(port=datagrams.getsockname()[1])
    try:
        return datagrams, _bound("--listen", same_port, socket.SOCK_STREAM, tcp.prepare, six_only=six_only)
    except CannotListen:
        datagrams.close()
        if listen.port != 0 or tries == 1:
            raise
    return _bound_pair(listen, six_only=six_only, tries=tries - 1)


def bound_stream(flag: str, listen: ListenAddress) -> socket.socket:
    """Return a bound TCP socket; *flag* is the one that gave the address. Raises CannotListen."""
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
    """Return how many connections there may be: *asked*, or fewer if the process may not have enough descriptors.

    *others* is how many descriptors the process needs for anything else.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and soft < asked + others:
        soft = hard if hard != resource.RLIM_INFINITY else asked + others
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = asked if soft == resource.RLIM_INFINITY else max(1, min(asked, soft - others))
    if possible < asked:
        log.warning("--max-connections: %d of %d, as many as 'ulimit -n' allows", possible, asked)
    return possible


def announce(proto: str, name: tuple[str, int]) -> None:
    """Print where the server listens, on a line of its own: programs wait for it."""
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    print(f"listening {proto} {host}:{name[1]}", file=sys.stderr, flush=True)
