"""A server on a live cluster, and somebody who never stops asking it."""

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

from tests.topodns_process import Server
from tests.waiting import PATIENCE, until

RECOVERY = 90.0  # seconds: after many failures the next try is up to 30 s away
TRUSTED = "127.0.0.1/32"  # tests name their clients by EDNS client subnet


@contextmanager
def serving_live(
    folder: Path, kubeconfig: Path, *arguments: str, flags: Mapping[str, Any] | None = None, started: bool = True
) -> Iterator[Server]:
    """Run ``topodns serve`` on a live cluster until the block ends, and see it end with status 0."""
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
    server: Server, name: str, client: str, rtype: str = "A", *, timeout: float = PATIENCE
) -> dns.message.Message:
    """Ask as a trusted forwarder does for *client*."""
    subnet = dns.edns.ECSOption(client, 32 if "." in client else 128)
    query = dns.message.make_query(f"{name}.svc.cluster.local", rtype, use_edns=0, options=[subnet])
    return server.ask(query, timeout=timeout)


def answered(server: Server, name: str, client: str) -> set[str]:
    """Return the addresses that *client* gets; an rcode other than NOERROR stands for itself."""
    return addresses(asked(server, name, client))


def addresses(reply: dns.message.Message) -> set[str]:
    if reply.rcode() != dns.rcode.NOERROR:
        return {dns.rcode.to_text(reply.rcode())}
    return {row.to_text() for rrset in reply.answer for row in rrset}


def extended_errors(reply: dns.message.Message) -> set[int]:
    return {int(option.code) for option in reply.options if isinstance(option, dns.edns.EDEOption)}


class Asker:
    """Asks one name for several clients, again and again, until the block ends; remembers each different answer."""

    def __init__(self, server: Server, name: str, clients: Mapping[str, str]) -> None:
        self._server = server
        self._name = name
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
                    found = frozenset(addresses(asked(self._server, self._name, client)))
                except (dns.exception.DNSException, OSError) as error:
                    self.lost.append(f"{who}: {error}")
                    continue
                with self._lock:
                    self.asked += 1
                    if asked_in == self._round:  # else answered before the round began, and only now heard
                        self.seen[who].add(found)

    def until(
        self, expected: Mapping[str, set[str]], *, seen: Callable[[str], set[frozenset[str]]] | None = None
    ) -> None:
        """Wait until every client gets what is expected of it; from then on only that may be seen.

        What was seen meanwhile must be among what *seen* says of a client, if given.
        """

        def now() -> dict[str, set[str]]:
            return {who: answered(self._server, self._name, self._clients[who]) for who in expected}

        until(lambda: now() == expected, lambda: f"{expected}, but {now()}", within=RECOVERY)
        with self._lock:
            for who, each in self.seen.items():
                assert seen is None or each <= seen(who), f"{who}: {each}"
                each.clear()
            self._round += 1

    def saw(self) -> dict[str, set[frozenset[str]]]:
        """Return what each client has seen since ``until``, once everybody has asked again twice."""
        start = self.asked
        until(lambda: self.asked >= start + 2 * len(self._clients), "everybody asks again")
        with self._lock:
            return {who: set(each) for who, each in self.seen.items()}
