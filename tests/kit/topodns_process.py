# SPDX-License-Identifier: Apache-2.0

"""Runs ``topodns`` as a process: a command to its end, or a server until the test stops it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import dns.message
import dns.query
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.in_memory import Cluster, Flags, cluster_text
from tests.kit.programs import environment
from tests.kit.waiting import PATIENCE

COMMAND = (sys.executable, "-m", "dnsserver")
# Servers keep their metrics for a second. Tests want those of now.
FRESH_METRICS = "from dnsserver.http import application; application.METRICS_SECONDS = 0.0"
SERVER_COMMAND = (
    sys.executable,
    "-c",
    f"{FRESH_METRICS}; from dnsserver.cli.main import main; raise SystemExit(main())",
)


class Process:
    """A running ``topodns``; a thread reads its standard error into ``lines``."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        command: Sequence[str] = (),
    ) -> None:
        """Start it, by another *command* than ``COMMAND`` if given."""
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            [*(command or COMMAND), *arguments],
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
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, pattern: str, *, after: int = 0, within: float = PATIENCE) -> re.Match[str]:
        """Wait until one of the messages from index *after* on matches; fail if the process ends or time runs out."""
        expected = re.compile(pattern)

        def first_match() -> re.Match[str] | None:
            return next((match for text in self.messages(after) if (match := expected.search(text))), None)

        with self._changed:
            self._changed.wait_for(lambda: first_match() or self._ended, within)
            match = first_match()
        if match is None:
            pytest.fail(f"no line {pattern!r} among:\n" + "\n".join(self.lines[after:]))
        return match

    def messages(self, after: int = 0) -> Iterator[str]:
        """Yield the lines from index *after* on: the message alone, with ``--log-format json``."""
        for line in self.lines[after:]:
            yield json.loads(line).get("message", line) if line.startswith("{") else line

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
    """A running ``topodns serve``, which listens at ``host`` and ``port`` for both UDP and TCP.

    ``http`` is the address of its HTTP listener, empty if there is none.
    """

    host: str
    port: int
    http: str

    def __init__(
        self, arguments: Sequence[str], *, env: Mapping[str, str] | None = None, command: Sequence[str] = ()
    ) -> None:
        """Start it, by another *command* than ``SERVER_COMMAND`` if given."""
        super().__init__(arguments, env=env, command=command or SERVER_COMMAND)

    def started(self) -> Server:
        """Wait until the server is ready."""
        self.wait_for(r"^ready$")
        return self.bound()

    def bound(self) -> Server:
        """Wait until the server listens, ready or not."""
        listening = self.wait_for(r"^listening udp \[?([^\]]+)\]?:(\d+)$")
        self.host, self.port = listening[1], int(listening[2])
        http = [text.split()[-1] for text in self.messages() if text.startswith("listening http ")]
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
        # Another socket may have had our port before: ignore replies that were meant for it.
        return dns.query.udp(query, where, port=self.port, source=source, timeout=timeout, ignore_unexpected=True)

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of the HTTP response."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return the value of each sample, by its name and its label values in the order of the labels' names."""
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }


def reload(server: Server) -> None:
    """Send SIGHUP and wait until the server has read its files again.

    Twice: the server may already be reading a file whose change it noticed, and logs the same line for that.
    """
    for _ in range(2):
        before = len(server.lines)
        server.send(signal.SIGHUP)
        server.wait_for("snapshot read again|keeping the previous version", after=before)


@contextmanager
def serving(
    folder: Path,
    cluster: Cluster | Path,
    *arguments: str,
    flags: Flags | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run ``topodns serve`` on free ports until the block ends; it must then end with status 0.

    *cluster* is a path, or is written into *folder*; *flags* go into a configuration file.
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
