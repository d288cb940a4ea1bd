"""The servers that are measured, each a process of its own on the first core."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import dns.exception
import dns.message
import dns.query
import dns.rcode

from tests.this_machine import free_port

SERVER_CORE, LOAD_CORE = 0, 1
UNBOUND = "/usr/sbin/unbound"  # Debian's package
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

COREFILE = """\
.:{port} {{
    bind 127.0.0.1
    errors
    kubernetes cluster.local {{
        kubeconfig {kubeconfig}
    }}
{more}
}}
"""


class CannotStart(Exception):
    """A server did not start; the text names it and holds what it printed."""


class Server:
    """A running server, at ``port`` for UDP and TCP.

    ``nearest`` is whether it gives each client the nearest endpoints only, ``glue`` whether it adds the targets'
    addresses to SRV records.
    """

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], port: int, *, nearest: bool = False, glue: bool = True
    ) -> None:
        self.name = name
        self.port = port
        self.nearest = nearest
        self.glue = glue
        self._process = process

    def cpu_seconds(self) -> float:
        """Return the CPU time, user and system, that all threads of the process have used."""
        spent = 0
        for task in os.listdir(f"/proc/{self._process.pid}/task"):
            with open(f"/proc/{self._process.pid}/task/{task}/schedstat") as file:
                spent += int(file.read().split()[0])
        return spent / 1e9

    def resident(self) -> float:
        """Return the resident memory of the process in MB."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

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


def start_topodns(flags: Sequence[str], folder: Path, *, answer_cache: bool = True) -> Server:
    """Start ``topodns serve`` with *flags*, which name the cluster. Raises CannotStart."""
    name = "topodns" if answer_cache else "topodns without cache"
    module = "dnsserver" if answer_cache else "bench.without_answer_cache"
    command = [sys.executable, "-m", module, "serve", *flags]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]  # HTTP is on: the figures include counting
    with NamedTemporaryFile(prefix=f"{name} ", suffix=".log", dir=folder, delete=False) as file:
        log = Path(file.name)  # several servers may have the same name
    process = _start(command, log)
    printed = _wait(name, process, log, lambda text: "ready" in text.splitlines())
    listening = re.search(r"^listening udp 127\.0\.0\.1:(\d+)$", printed, re.MULTILINE)
    assert listening is not None, printed
    return Server(name, process, int(listening[1]), nearest=True)


def start_unbound(folder: Path, records: Iterable[str], *, name: str) -> Server:
    """Start unbound with *records* as static data; *name* is a name with an A record. Raises CannotStart."""
    if not os.access(UNBOUND, os.X_OK):
        raise CannotStart(f"{UNBOUND} is missing, and topodns is measured against it: apt-get install unbound")
    port = free_port()
    conf, log = folder / "unbound.conf", folder / "unbound.log"
    lines = "\n".join(f'    local-data: "{record}"' for record in records)
    conf.write_text(UNBOUND_CONF.format(port=port, folder=folder, records=lines))
    process = _start([UNBOUND, "-d", "-c", str(conf)], log)
    _wait("unbound", process, log, lambda text: _answers(port, name))
    return Server("unbound", process, port, glue=False)


def start_coredns(program: Path, folder: Path, kubeconfig: Path, *, name: str, caching: bool = False) -> Server:
    """Start CoreDNS on the cluster of *kubeconfig*; *name* is a name with an A record there. Raises CannotStart."""
    title, port = "CoreDNS with cache" if caching else "CoreDNS", free_port()
    corefile, log = folder / f"{title}.Corefile", folder / f"{title}.log"
    more = "    cache 30" if caching else ""  # as kubeadm installs it
    corefile.write_text(COREFILE.format(port=port, kubeconfig=kubeconfig, more=more))
    process = _start([str(program), "-conf", str(corefile)], log, env={"GOMAXPROCS": "1"})
    _wait(title, process, log, lambda text: _answers(port, name))
    return Server(title, process, port)


def _start(command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **(env or {})},
            preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),
        )


def _wait(name: str, process: subprocess.Popen[bytes], log: Path, is_up: Callable[[str], bool]) -> str:
    """Wait until a server is up; return what it has printed. Raises CannotStart."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        printed = log.read_text()
        if is_up(printed):
            return printed
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise CannotStart(f"{name} did not start: {log.read_text().strip() or 'it printed nothing'}")


def _answers(port: int, name: str) -> bool:
    try:
        reply = dns.query.udp(dns.message.make_query(name, "A"), "127.0.0.1", port=port, timeout=0.2)
    except (OSError, dns.exception.DNSException):
        return False
    return reply.rcode() == dns.rcode.NOERROR
