# SPDX-License-Identifier: Apache-2.0

"""A real CoreDNS on this machine."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import dns.exception
import dns.message
import dns.query
import dns.rcode

from tests.kit import go_programs
from tests.kit.programs import Daemon
from tests.kit.this_machine import free_port


class CoreDNS(NamedTuple):
    """A running CoreDNS at ``127.0.0.1``, for both UDP and TCP."""

    port: int
    daemon: Daemon


@contextmanager
def running_coredns(folder: Path, block: str, *, name: str = "coredns", others: str = "") -> Iterator[CoreDNS]:
    """Run CoreDNS with the plugins of *block* on the wildcard address until the block ends; wait until it is ready.

    *others* are further server blocks, whose zones have ``:53`` in place of the port.
    Raises ``waiting.NotReadyError``, with the last lines of output, if it does not become ready.
    """
    program = go_programs.coredns()
    port, ready = free_port(address="0.0.0.0"), free_port()
    corefile = folder / f"{name}.Corefile"
    corefile.write_text(
        f".:{port} {{\nerrors\nready 127.0.0.1:{ready}\n{block}\n}}\n{others.replace(':53 ', f':{port} ')}"
    )
    daemon = Daemon.start([str(program), "-conf", str(corefile)], folder, name=name)
    try:
        daemon.until(lambda: is_ready("127.0.0.1", ready) and answers("127.0.0.1", port))
        yield CoreDNS(port, daemon)
    finally:
        daemon.end()


def kubernetes_block(kubeconfig: Path, *options: str, zones: Sequence[str]) -> str:
    """Return the block of the plugin ``kubernetes`` for *zones*, with these options."""
    lines = [f"kubeconfig {kubeconfig}", *options]
    return f"kubernetes {' '.join(zones)} {{\n" + "\n".join(lines) + "\n}"


def answers(host: str, port: int) -> bool:
    """Whether CoreDNS answers at a port: it may report that it is ready a moment before it does."""
    try:
        dns.query.udp(dns.message.make_query(".", "NS"), host, timeout=1, port=port)
    except (dns.exception.DNSException, OSError):
        return False
    return True


def is_ready(address: str, port: int) -> bool:
    connection = http.client.HTTPConnection(address, port, timeout=1)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
