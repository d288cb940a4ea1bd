# SPDX-License-Identifier: Apache-2.0

"""The servers that are measured, each a process of its own on the first core."""

from __future__ import annotations

import contextlib
import http
import importlib.util
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Self

import dns.exception
import dns.message
import dns.query
import dns.rcode
import pytest

from tests.kit import go_programs, waiting
from tests.kit.this_machine import free_port

SERVER_CORE, LOAD_CORE = 0, 1
UNBOUND = "/usr/sbin/unbound"  # Debian's package
# Without it, topodns is measured once only, as it is then.
HAS_NATIVE = importlib.util.find_spec("dnsserver.net.native") is not None
START_SECONDS = 180.0  # until a server must answer; most take three
STOP_SECONDS = 10.0

UNBOUND_CONF = """\
server:
    interface: 127.0.0.1@{port}
    access-control: 127.0.0.0/8 allow
    num-threads: 1
    incoming-num-tcp: 256
    so-rcvbuf: 4m
    so-sndbuf: 4m
    module-config: "iterator"
    chroot: ""
    username: ""
    directory: "{folder}"
    pidfile: ""
    use-syslog: no
    verbosity: 0
    local-zone: "cluster.local." static
{records}
remote-control:
    control-enable: no
"""

ZONE = """\
$ORIGIN cluster.local.
@ 5 IN SOA ns hostmaster 1 7200 1800 86400 5
@ 5 IN NS ns
ns 5 IN A 127.0.0.1
{records}
"""

COREFILE = """\
.:{port} {{
    bind 127.0.0.1
    errors
{plugins}
}}
"""


class CannotStart(Exception):
    """A server did not start; the text names it and holds what it printed."""


class Server:
    """A running server, at ``port`` for UDP and TCP.

    ``nearest`` is whether it gives each client the nearest endpoints only.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, *, nearest: bool = False) -> None:
        self.name = name
        self.port = port
        self.nearest = nearest
        self.http = 0
        """The port of /metrics, if the server has any."""
        self.live = (0, "")
        """The port and the path that a kubelet would ask whether the server is alive."""
        self._process = process
        self._spent: dict[str, int] = {}  # nanoseconds of each thread

    def cpu_seconds(self) -> float:
        """Return the CPU time, user and system, that all threads of the process have used.

        Of a thread that has ended, it is what it had used at the call before.
        """
        for task in os.listdir(f"/proc/{self._process.pid}/task"):
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),  # a thread that has just ended
                open(f"/proc/{self._process.pid}/task/{task}/schedstat") as file,
            ):
                self._spent[task] = int(file.read().split()[0])
        return sum(self._spent.values()) / 1e9

    def whole_cpu_seconds(self) -> float:
        """Return the CPU time that the process has used, with threads that have ended, to a hundredth of a second."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """Return the resident memory of the process in MB."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def peak(self) -> float:
        """Return the most resident memory that the process has had in MB."""
        return peak(self._process.pid)

    def forget_peak(self) -> None:
        """Begin to measure the peak anew."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def open_descriptors(self) -> int:
        """Return how many files and sockets the process has open."""
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def threads(self) -> int:
        """Return how many threads the process has."""
        return len(os.listdir(f"/proc/{self._process.pid}/task"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def on_load_core() -> Iterator[None]:
    """Keep this process and the programs that it starts on the load generator's core, except for the servers."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {LOAD_CORE})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Raise CannotStart if the block cannot build or start a program."""
    try:
        yield
    except (go_programs.BuildError, waiting.NotReadyError, pytest.skip.Exception, pytest.fail.Exception) as error:
        raise CannotStart(f"CoreDNS or its control plane is not available: {error}") from None


def peak(process: int | str) -> float:
    """Return the most resident memory that a process (an id, or ``self``) has had in MB, since its program started.

    Not so ``getrusage``, whose maximum begins with that of the process that started it.
    """
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None, status
    return int(found[1]) * 1024 / 1e6


# Each of these raises CannotStart.


def start_topodns(flags: Sequence[str], folder: Path, *, name: str = "topodns", listen: str = "127.0.0.1") -> Server:
    """Start ``topodns serve`` with *flags*, which name the cluster, on the address *listen*."""
    command = [sys.executable, "-m", "dnsserver", "serve", *flags]
    command += ["--listen", f"{listen}:0", "--http", "127.0.0.1:0"]  # HTTP is on: the figures include counting
    process, printed = _started(name, command, folder, lambda text: "ready" in text.splitlines())
    server = Server(name, process, _listening(printed, listen), nearest=True)
    server.http = _listening(printed, "127.0.0.1", "http")
    server.live = (server.http, "/livez")
    return server


def start_unbound(folder: Path, records: Iterable[str], *, name: str) -> Server:
    """Start unbound with *records* as static data; *name* is a name with an A record."""
    if not os.access(UNBOUND, os.X_OK):
        raise CannotStart(f"{UNBOUND} is missing, and topodns is measured against it: apt-get install unbound")
    port, conf = free_port(), folder / "unbound.conf"
    lines = "\n".join(f'    local-data: "{record}"' for record in records)
    conf.write_text(UNBOUND_CONF.format(port=port, folder=folder, records=lines))
    process, _ = _started("unbound", [UNBOUND, "-d", "-c", str(conf)], folder, lambda _: _answers(port, name))
    return Server("unbound", process, port)


def start_coredns_file(
    program: Path, folder: Path, records: Iterable[str], *, name: str, watched: bool = False
) -> Server:
    """Start CoreDNS with *records* in a zone's file; *name* has an A record. If *watched*, it has /health, /metrics."""
    zone, port = folder / "zone", free_port()
    zone.write_text(ZONE.format(records="\n".join(records)))
    health, metrics = (free_port(), free_port()) if watched else (0, 0)
    plugins = [f"file {zone} cluster.local"]
    plugins += [f"health 127.0.0.1:{health}", f"prometheus 127.0.0.1:{metrics}"] if watched else []
    server = _start_coredns("CoreDNS, file", program, folder, plugins, port, lambda _: _answers(port, name))
    server.http, server.live = metrics, (health, "/health")
    return server


def start_coredns(
    program: Path, folder: Path, options: Sequence[str], *, name: str, title: str = "CoreDNS", caching: bool = False
) -> Server:
    """Start CoreDNS; *options* of its plugin name the cluster, *name* has an A record there."""
    port, ready = free_port(), free_port()
    plugins = [f"ready 127.0.0.1:{ready}", "kubernetes cluster.local {", *options, "}"]
    plugins += ["cache 30"] if caching else []  # as kubeadm installs it
    is_up: Callable[[str], bool] = lambda _: _says_ready(ready) and _answers(port, name)  # noqa: E731
    return _start_coredns(title, program, folder, plugins, port, is_up)


def _start_coredns(
    title: str, program: Path, folder: Path, plugins: Sequence[str], port: int, is_up: Callable[[str], bool]
) -> Server:
    corefile = folder / f"{title}.Corefile"
    corefile.write_text(COREFILE.format(port=port, plugins="\n".join(plugins)))
    process, _ = _started(title, [str(program), "-conf", str(corefile)], folder, is_up, env={"GOMAXPROCS": "1"})
    return Server(title, process, port)


def _listening(printed: str, address: str, protocol: str = "udp") -> int:
    """Return the port of a line ``listening udp ADDRESS:PORT``."""
    found = re.search(rf"^listening {protocol} {re.escape(address)}:(\d+)$", printed, re.MULTILINE)
    assert found is not None, printed
    return int(found[1])


def _started(
    name: str,
    command: Sequence[str],
    folder: Path,
    is_up: Callable[[str], bool],
    *,
    env: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server, and wait until it is up by what it has printed; return it and that. Raises CannotStart."""
    # A file of its own: several servers may have the same name.
    with NamedTemporaryFile(prefix=f"{name} ".replace("/", " "), suffix=".log", dir=folder, delete=False) as file:
        log = Path(file.name)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **(env or {})},
            preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),
        )
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        printed = log.read_text()
        if is_up(printed):
            return process, printed
        time.sleep(0.02)  # the part that reads the cluster has a target of a second
    process.kill()
    process.wait()
    raise CannotStart(f"{name} did not start: {log.read_text().strip() or 'it printed nothing'}")


def _says_ready(port: int) -> bool:
    """Whether CoreDNS has read the whole cluster; it begins to answer earlier."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1.0) as response:
            return bool(response.status == http.HTTPStatus.OK)
    except OSError:
        return False


def _answers(port: int, name: str) -> bool:
    try:
        reply = dns.query.udp(dns.message.make_query(name, "A"), "127.0.0.1", port=port, timeout=0.2)
    except (OSError, dns.exception.DNSException):
        return False
    return reply.rcode() == dns.rcode.NOERROR
