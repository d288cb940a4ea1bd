# SPDX-License-Identifier: Apache-2.0

"""Where a server listens when no flag says so, and the error when it cannot."""

from __future__ import annotations

import os
import socket

from dnsserver.settings.values import ListenAddress

V4_WILDCARD, V6_WILDCARD = bytes(4), bytes(16)
WILDCARDS = (V4_WILDCARD, V6_WILDCARD)


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
