# SPDX-License-Identifier: Apache-2.0

"""A server on a live cluster, and a client that asks it all the time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype
import yaml

from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until

RECOVERY = 90.0  # seconds; after many failures Kubernetes' own controllers wait up to 30 s before they try again
# Seconds until topodns has caught up with an API server that is back: 5, and three times as much on a busy machine.
CAUGHT_UP = 15.0
PLAIN = "svc.cluster.local"
TRUSTED = "127.0.0.1/32"  # tests name their clients by EDNS client subnet


@contextmanager
def serving_live(
    folder: Path, kubeconfig: Path, *arguments: str, flags: Mapping[str, Any] | None = None, started: bool = True
) -> Iterator[Server]:
    """Run ``topodns serve`` on a live cluster until the block ends; it must then end with status 0."""
    config = folder / "live.yaml"
    given = {"listen": ["127.0.0.1:0"], "http": "127.0.0.1:0", "trusted-forwarder": TRUSTED, "upstream": "off"}
    config.write_text(yaml.safe_dump({**given, **(flags or {})}))
    server = Server(["serve", "--config", str(config), "--kubeconfig", str(kubeconfig), *arguments])
    try:
        server.wait_for(r"^ready$" if started else r"^listening http ")
        yield server.bound()
        status = server.end()
    finally:
        server.process.kill()
        server.wait()
    assert status == 0, "\n".join(server.lines)


def asked(
    server: Server, name: str, client: str, rtype: str = "A", *, zone: str = PLAIN, timeout: float = PATIENCE
) -> dns.message.Message:
    """Ask for *name* in a zone as a trusted forwarder that names *client* by ECS; return the reply."""
    subnet = dns.edns.ECSOption(client, 32 if "." in client else 128)
    query = dns.message.make_query(f"{name}.{zone}", rtype, use_edns=0, options=[subnet])
    return server.ask(query, timeout=timeout)


def answered(server: Server, name: str, client: str, *, zone: str = PLAIN) -> set[str]:
    """Return the addresses that *client* gets, or the rcode's name if that is not NOERROR."""
    return addresses(asked(server, name, client, zone=zone))


def addresses(reply: dns.message.Message) -> set[str]:
    if reply.rcode() != dns.rcode.NOERROR:
        return {dns.rcode.to_text(reply.rcode())}
    return {row.to_text() for rrset in reply.answer for row in rrset}


def extended_errors(reply: dns.message.Message) -> set[int]:
    return {int(option.code) for option in reply.options if isinstance(option, dns.edns.EDEOption)}


class Asker:
    """Asks for one name as several clients, again and again, until the block ends; records each different answer."""

    def __init__(self, server: Server, name: str, clients: Mapping[str, str], *, zone: str = PLAIN) -> None:
        self._server = server
        self._name, self._zone = name, zone
        self._clients = clients
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._round = 0
        self.asked = 0
        self.lost: list[str] = []
        self.seen: dict[str, set[frozenset[str]]] = {who: set() for who in clients}

    def __enter__(self) -> Asker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(PATIENCE)

    def _ask(self) -> None:
        while not self._ended.is_set():
            for who, client in self._clients.items():
                asked_in = self._round
                try:
                    answer = frozenset(answered(self._server, self._name, client, zone=self._zone))
                except (dns.exception.DNSException, OSError) as error:
                    self.lost.append(f"{who}: {error}")
                    continue
                with self._lock:
                    self.asked += 1
                    if asked_in == self._round:  # otherwise the query was sent before this round began
                        self.seen[who].add(answer)

    def until(
        self, expected: Mapping[str, set[str]], *, seen: Callable[[str], set[frozenset[str]]] | None = None
    ) -> None:
        """Wait until each client gets the expected addresses, in time after an outage, and begin a new round.

        The answers of the last round must be among *seen* of the client, if given.
        """

        def now() -> dict[str, set[str]]:
            return {who: answered(self._server, self._name, self._clients[who], zone=self._zone) for who in expected}

        until(lambda: now() == expected, lambda: f"{expected}, but {now()}", within=CAUGHT_UP)
        with self._lock:
            for who, answers in self.seen.items():
                assert seen is None or answers <= seen(who), f"{who}: {answers}"
                answers.clear()
            self._round += 1

    def saw(self) -> dict[str, set[frozenset[str]]]:
        """Wait until each client has asked twice more; return the answers that each got since ``until``."""
        start = self.asked
        until(lambda: self.asked >= start + 2 * len(self._clients), "each client asks twice more")
        with self._lock:
            return {who: set(answers) for who, answers in self.seen.items()}
