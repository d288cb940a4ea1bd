# SPDX-License-Identifier: Apache-2.0

"""Where a server listens: the default addresses, bound sockets, and how many connections its descriptors allow."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
from collections.abc import Callable, Sequence
from functools import partial

from dnsserver.settings.values import ListenAddress
from locator.ip import address_text

log = logging.getLogger("topodns")
announcements = logging.getLogger("topodns.announcements")
announcements.setLevel(logging.INFO)  # whatever the level of the log is

V4_WILDCARD, V6_WILDCARD = bytes(4), bytes(16)
WILDCARDS = (V4_WILDCARD, V6_WILDCARD)
_EXPECTED = {  # by what is wrong with an address and a port
    errno.EADDRINUSE: "a free address and port; 'ss -lntup' shows which program has it",
    errno.EACCES: "a port from 1024 on, or the capability CAP_NET_BIND_SERVICE",
    errno.EADDRNOTAVAIL: "an address of this machine, as 'ip address' shows them, or 0.0.0.0 or [::] for all",
}
SHARED_PORT_TRIES = 20  # to find a port that is free for UDP and TCP, if the settings ask for port 0


class CannotListen(Exception):
    """The server cannot listen on an address. The message names the flag that gave it, and the reason."""


def in_pod() -> bool:
    """Whether this process runs in a pod."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def default_listen(port: int) -> ListenAddress:
    """Return the default listen address: loopback, or in a pod all addresses."""
    if not in_pod():
        return ListenAddress(bytes((127, 0, 0, 1)), port)
    return ListenAddress(V6_WILDCARD if _has_ipv6() else V4_WILDCARD, port)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::", 0))
    except OSError:
        return False
    return True


def bound_pairs(addresses: Sequence[ListenAddress]) -> list[tuple[socket.socket, socket.socket]]:
    """Return for each address a bound UDP and a bound TCP socket with the same port. Raises CannotListen."""
    ipv4_ports = {address.port for address in addresses if len(address.address) == 4 and address.port != 0}
    # By default "::" also receives what is sent to IPv4 addresses. It must not if one of them has its port.
    return [_bound_pair(address, six_only=address.port in ipv4_ports) for address in addresses]


def _bound_pair(
    listen: ListenAddress, *, six_only: bool, tries: int = SHARED_PORT_TRIES
) -> tuple[socket.socket, socket.socket]:
    from dnsserver.net import tcp, udp  # which commands that bind nothing need not load

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
    """Return a bound TCP socket; *flag* is the flag for its address. Raises CannotListen."""
    from dnsserver.net import tcp

    return _bound(flag, listen, socket.SOCK_STREAM, tcp.prepare)


def _bound(
    flag: str,
    listen: ListenAddress,
    socket_type: socket.SocketKind,
    prepare: Callable[[socket.socket], None],
    *,
    six_only: bool = False,
) -> socket.socket:
    family = socket.AF_INET if len(listen.address) == 4 else socket.AF_INET6
    try:
        sock = socket.socket(family, socket_type)
        try:
            prepare(sock)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, six_only)
            sock.bind((address_text(listen.address), listen.port))
        except OSError:
            sock.close()
            raise
    except OSError as error:
        name = "udp" if socket_type == socket.SOCK_DGRAM else "tcp"
        reason = "port in use" if error.errno == errno.EADDRINUSE else error.strerror
        expected = _EXPECTED.get(error.errno or 0, "a free address and port")
        raise CannotListen(f"{flag} {listen}: {name}: {reason}, expected {expected}") from None
    return sock


def connection_limit(asked: int, *, others: int) -> int:
    """Return the limit of connections: *asked*, or fewer if the process may not have enough descriptors.

    *others* is the number of descriptors for everything else. Raises the soft limit if necessary.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and soft < asked + others:
        soft = hard if hard != resource.RLIM_INFINITY else asked + others
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = asked if soft == resource.RLIM_INFINITY else max(1, min(asked, soft - others))
    if possible < asked:
        log.warning("--max-connections: %d of %d, as many as 'ulimit -n' allows", possible, asked)
    return possible


def announce(protocol: str, name: tuple[str, int]) -> str:
    """Log a listen address on a line that stands alone, for programs that wait for it; return it."""
    address = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    log_alone(f"listening {protocol} {address}", protocol=protocol, address=address)
    return address


def log_alone(text: str, **fields: str) -> None:
    """Log a line for programs that wait for it. As text, it stands alone."""
    announcements.info(text, extra={"alone": text, "fields": fields})
