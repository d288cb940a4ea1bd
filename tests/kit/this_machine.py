# SPDX-License-Identifier: Apache-2.0

"""What the machine offers to tests: the project's folder, installed programs, IPv6, free ports."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]  # of the project


def needs_tool(name: str) -> str:
    """Return the path of a program; if it is missing, skip the test, or fail it in CI."""
    path = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    return path or lacking(f"{name} is not installed here")


def has_ipv6() -> bool:
    """Whether this machine has IPv6, at least on loopback."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def lacking(reason: str) -> NoReturn:
    """Skip the test because the machine lacks something it needs; fail it in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI must run this test")
    pytest.skip(reason)


def free_port(*, address: str = "127.0.0.1") -> int:
    """Return a port that is free for UDP and TCP; the caller should bind it at once.

    The port is below 32768, where Linux begins to assign ports to clients, so no connection takes it meanwhile.
    """
    for port in _PORTS:
        try:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(_family(address), kind) as sock:
                    sock.bind((address, port))
        except OSError:
            continue
        return port
    raise OSError("no port is free for both UDP and TCP")


# A session returns each port once. The workers of pytest-xdist have separate ports; other sessions begin elsewhere.
_WORKERS = 8
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_PORTS = (20_000 + (os.getpid() * 97 + number) % 1_500 * _WORKERS + _WORKER for number in range(1_500))


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
