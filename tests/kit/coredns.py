# SPDX-License-Identifier: Apache-2.0

"""A real CoreDNS: on a real API server, to compare with topodns; or in front of topodns, on its own machine."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import dns.exception
import dns.message
import dns.query
import dns.rcode

from tests.kit import go_programs
from tests.kit.live_server import addresses
from tests.kit.network_namespaces import Machine
from tests.kit.programs import Daemon
from tests.kit.this_machine import free_port
from tests.kit.waiting import until

FORWARDED_BY_UDP, FORWARDED_BY_TCP = 53, 5353  # ports of a CoreDNS that forwards
LAME_DUCK = "1h"  # after SIGTERM it goes on until the test ends it
ROUNDS = 4  # how often each client asks between two steps of a test
LOST = 5.0  # seconds after which a query is lost


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
        daemon.until(lambda: _is_ready("127.0.0.1", ready) and _answers("127.0.0.1", port))
        yield CoreDNS(port, daemon)
    finally:
        daemon.end()


@contextmanager
def forwarding_coredns(folder: Path, machine: Machine, to: str) -> Iterator[Daemon]:
    """Run CoreDNS on its own machine with a stub block for *to*, an address with a port; wait until it is ready.

    It names its clients by EDNS client subnet. It forwards queries to one of its ports over UDP, and those to the other
    over TCP. The end of the block kills it.
    """
    program, address = go_programs.coredns(), machine.address
    own = f"ready {address}:8181\nhealth {address}:8080 {{\nlameduck {LAME_DUCK}\n}}"
    stub = f"errors\nrewrite edns0 subnet set 32 128 revert\nforward . {to}"
    corefile = folder / f"coredns-{address}.Corefile"
    corefile.write_text(
        f".:{FORWARDED_BY_UDP} {{\n{own}\n{stub}\n}}\n.:{FORWARDED_BY_TCP} {{\n{stub} {{\nforce_tcp\n}}\n}}\n"
    )
    daemon = Daemon.start([*machine.there, str(program), "-conf", str(corefile)], folder, name=f"coredns-{address}")
    try:
        daemon.until(
            lambda: (
                _is_ready(address, 8181) and _answers(address, FORWARDED_BY_UDP) and _answers(address, FORWARDED_BY_TCP)
            )
        )
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


class Load:
    """Asks a forwarding CoreDNS for one name from several clients, again and again, forwarded over UDP and over TCP.

    *clients* and *expected* have the same keys: the address that a client asks from, and the address that it must get.
    ``wrong`` lists other answers, ``lost`` queries without an answer. After ``leave`` CoreDNS may end at any time: the
    first lost query then ends the load, and does not count.
    """

    def __init__(self, via: str, name: str, clients: Mapping[str, str], expected: Mapping[str, str]) -> None:
        self._via, self._name, self._clients, self._expected = via, name, clients, expected
        self._leaving, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._rounds = 0
        self.answered = 0
        self.wrong: list[str] = []
        self.lost: list[str] = []
        self._thread.start()

    def leave(self) -> None:
        self._leaving.set()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(2 * LOST)

    def asks_on(self) -> None:
        """Wait until each client has asked some times more, unless CoreDNS may end."""
        enough = self._rounds + 1 + ROUNDS
        until(lambda: self._rounds >= enough or self._leaving.is_set() or self.wrong or self.lost, f"load {self._via}")

    def _ask(self) -> None:
        every = list(itertools.product(self._clients, (FORWARDED_BY_UDP, FORWARDED_BY_TCP)))
        while not self._ended.is_set():
            if not all(self._goes_on(who, port) for who, port in every):
                return
            self._rounds += 1

    def _goes_on(self, who: str, port: int) -> bool:
        """Ask once; return false if CoreDNS has ended."""
        query, what = dns.message.make_query(self._name, "A"), f"{who} by way of {self._via}:{port}"
        try:
            reply = dns.query.udp(query, self._via, port=port, source=self._clients[who], timeout=LOST)
        except (dns.exception.DNSException, OSError) as error:
            if self._leaving.is_set():
                return False
            self.lost.append(f"{what}: {error!r}")
            return True
        self.answered += 1
        if (found := addresses(reply)) != {self._expected[who]}:
            (self.lost if reply.rcode() == dns.rcode.SERVFAIL else self.wrong).append(f"{what}: {found}")
        return True


def kubernetes_block(kubeconfig: Path, *options: str, zones: Sequence[str]) -> str:
    """Return the block of the plugin ``kubernetes`` for *zones*, with these options."""
    lines = [f"kubeconfig {kubeconfig}", *options]
    return f"kubernetes {' '.join(zones)} {{\n" + "\n".join(lines) + "\n}"


def _answers(host: str, port: int) -> bool:
    """Whether CoreDNS answers at a port: it may report that it is ready a moment before it does."""
    try:
        dns.query.udp(dns.message.make_query(".", "NS"), host, timeout=1, port=port)
    except (dns.exception.DNSException, OSError):
        return False
    return True


def _is_ready(address: str, port: int) -> bool:
    connection = http.client.HTTPConnection(address, port, timeout=1)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def starts(folder: Path, text: str) -> bool:
    """Whether CoreDNS starts with a Corefile: if not, it ends at once; if so, it prints its version.

    Keys without a port must have a free one.
    """
    path = folder / "Corefile"
    path.write_text(text)
    ports = ["-dns.port", str(free_port())]
    daemon = Daemon.start([str(go_programs.coredns()), *ports, "-conf", str(path)], folder, name="coredns")
    try:
        until(lambda: daemon.process.poll() is not None or "\nCoreDNS-" in daemon.last_lines(), daemon.last_lines)
        return daemon.process.poll() is None
    finally:
        daemon.end()
