"""What tests share: a cluster in memory, a real server process, and tools that may be missing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import dns.message
import dns.query
import dns.rcode
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dnsserver.app import authority_of, store_of
from dnsserver.metrics.counters import Counts
from dnsserver.responder.responder import PendingReply, Responder
from dnsserver.settings.fields import Settings, read_settings
from locator.api.deltas import replacements
from locator.cluster import dump_files
from locator.ip import parse_address
from locator.model import Object
from locator.state.snapshot import Snapshot
from locator.state.store import Store

COMMAND = (sys.executable, "-m", "dnsserver")
PATIENCE = 20.0  # seconds until a test gives up on a line, a reply or an end; never slept
NOW = 1_700_000_000  # the serial of snapshots made in memory

Cluster = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
Flags = Mapping[str, Any]


def cluster_text(cluster: Cluster) -> str:
    """Return a cluster as YAML: text as it is, one object or list as one document, several as many."""
    if isinstance(cluster, str):
        return cluster
    return yaml.safe_dump(cluster) if isinstance(cluster, Mapping) else yaml.safe_dump_all(cluster)


def settings_of(flags: Flags | None = None) -> Settings:
    """Return settings as a configuration file with *flags* would give them, e.g. ``{"ttl": 30}``."""
    return read_settings(flags={}, environment={}, file=("flags", dict(flags or {})))[0]


def dump_of(cluster: Cluster) -> dump_files.Dump:
    """Read a cluster as ``--snapshot`` would."""
    return _dump_of(cluster_text(cluster))


@lru_cache(maxsize=64)  # what is read is immutable, and asked for again and again
def _dump_of(text: str) -> dump_files.Dump:
    return dump_files.read([("cluster.yaml", text.encode())])


def take_in(store: Store, objects: Iterable[Object]) -> None:
    """Make *objects* all that a store knows."""
    for change in replacements(objects):
        store.apply(change)


def snapshot_of(cluster: Cluster, flags: Flags | None = None, *, now: int = NOW) -> Snapshot:
    """Return the snapshot that a server with *flags* would make of a cluster."""
    store = store_of(settings_of(flags))
    take_in(store, dump_of(cluster).objects)
    return store.publish(now)


def responder_of(cluster: Cluster, flags: Flags | None = None, *, counts: Counts | None = None) -> Responder:
    """Return a responder, without sockets, for a cluster and *flags*."""
    settings = settings_of(flags)
    responder = Responder(
        authority_of(settings),
        counts or Counts(),
        client_option=settings.client_option,
        proxy_protocol=settings.proxy_protocol,
        nsid=settings.nsid or b"",
    )
    responder.publish(snapshot_of(cluster, flags))
    return responder


def ask_in_memory(
    responder: Responder, query: dns.message.Message, client: str, *, counts: Counts | None = None, proto: str = "udp"
) -> dns.message.Message | None:
    """Hand a query to a responder as if it came from *client*; return the reply as dnspython reads it.

    Names elsewhere have nothing here.
    """
    source = parse_address(client)
    channel = (counts or responder._counts).channels[proto, 1 if len(source) == 4 else 2]
    reply = responder.answer(query.to_wire(), source, channel)
    if isinstance(reply, PendingReply):
        reply = responder.finish(reply, None)
    return None if reply is None else dns.message.from_wire(reply)


class Process:
    """A running ``topodns``, whose standard error is read line by line as it comes."""

    def __init__(self, arguments: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "") -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(env),
        )
        assert self.process.stdin is not None
        self.process.stdin.write(stdin)
        self.process.stdin.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for(self, pattern: str, *, after: int = 0, within: float = PATIENCE) -> re.Match[str]:
        """Wait until a line from number *after* on matches; fail if the process ends or nothing comes."""
        expected = re.compile(pattern)

        def found() -> re.Match[str] | None:
            return next((match for line in self.lines[after:] if (match := expected.search(line))), None)

        with self._news:
            self._news.wait_for(lambda: found() or self._ended, within)
            match = found()
        if match is None:
            pytest.fail(f"no line {pattern!r} among:\n" + "\n".join(self.lines[after:]))
        return match

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process by a signal, unless it has ended; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail("the process did not end:\n" + "\n".join(self.lines))
        self._reader.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


class Server(Process):
    """A running ``topodns serve``: ready, at ``host`` and ``port`` for both UDP and TCP.

    ``http`` is the address of its HTTP listener, empty where it has none.
    """

    host: str
    port: int
    http: str

    def started(self) -> Server:
        """Wait until it is ready."""
        self.wait_for(r"^ready$")
        return self.bound()

    def bound(self) -> Server:
        """Wait until it listens, ready or not."""
        listening = self.wait_for(r"^listening udp \[?([^\]]+)\]?:(\d+)$")
        self.host, self.port = listening[1], int(listening[2])
        http = [line.split()[-1] for line in self.lines if line.startswith("listening http ")]
        self.http = http[0] if http else ""
        return self

    def ask(
        self,
        query: dns.message.Message,
        *,
        source: str | None = None,
        tcp: bool = False,
        to: str | None = None,
        timeout: float = PATIENCE,
    ) -> dns.message.Message:
        """Send a query from *source* (any 127.x.y.z on loopback); return the reply."""
        where = to or self.host
        if tcp:
            return dns.query.tcp(query, where, port=self.port, source=source, timeout=timeout)
        # Our port was somebody else's before: what still comes for him is passed over.
        return dns.query.udp(query, where, port=self.port, source=source, timeout=timeout, ignore_unexpected=True)

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of what is served by HTTP."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return every sample by its name and label values."""
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without our own variables, and with *env*."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("TOPODNS_", "KUBERNETES_", "KUBECONFIG", "NO_COLOR"))
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **(env or {})}


@contextmanager
def serving(
    folder: Path,
    cluster: Cluster | Path,
    *arguments: str,
    flags: Flags | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run ``topodns serve`` on free ports until the block ends, and see it end with status 0.

    *cluster* is written into *folder*, unless it is a path already; *flags* go into a configuration file.
    """
    if isinstance(cluster, Path):
        path = cluster
    else:
        path = folder / "cluster.yaml"
        path.write_text(cluster_text(cluster))
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({"listen": ["127.0.0.1:0"], "http": "off", **(flags or {})}))
    server = Server(["serve", "--config", str(config), "--snapshot", str(path), *arguments], env=env)
    try:
        yield server.started()
        status = server.end()
    finally:
        server.end(signal.SIGKILL)
    assert status == 0, "\n".join(server.lines)


def run(*arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``topodns`` to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(env),
        timeout=PATIENCE,
        check=False,
    )


def needs_tool(name: str) -> str:
    """Return the path of a program, or skip the test with the reason; in CI a missing one is a failure."""
    path = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    return path or lacking(f"{name} is not installed here")


def has_ipv6() -> bool:
    """Whether this machine has IPv6, on loopback at least."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def lacking(reason: str) -> NoReturn:
    """Skip the test, as the machine lacks what it needs; in CI that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI must run this test")
    pytest.skip(reason)
