"""Programs in Go that tests build once and keep, and how a test runs a program that serves.

What is built lies in ``.cache/``, in a folder named after all that it was built from; so nothing is built twice, and
nothing old is used. Where ``go`` is missing, ``support.needs_tool`` decides: skipped, or in CI a failure.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import PATIENCE, environment, lacking, needs_tool

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache"
BUILDING = 3600.0  # seconds that a build may take: the control plane needs 5 minutes on two cores

GO = (1, 26)  # as in controlplane/go.mod
KUBERNETES = "v1.36.3"  # as in controlplane/go.mod
COREDNS = "v1.14.7"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "private-key")

_VERSION = " ".join(
    f"-X {package}.gitVersion={KUBERNETES}"
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
)


class BuildError(Exception):
    """A program cannot be built; the text ends with what the compiler said."""


class NotReadyError(Exception):
    """A program ended, or did not become ready in time; the text ends with what it printed."""


def control_plane() -> Path:
    """Return the folder that holds etcd, kube-apiserver, kube-controller-manager and kubectl."""
    source = Path(__file__).parent / "controlplane"

    def build(go: str, folder: Path) -> None:
        program = folder / "controlplane"
        command = (go, "build", "-trimpath", "-ldflags", f"-s -w {_VERSION}", "-o", str(program), ".")
        _compile(command, cwd=source)
        for name in CONTROL_PLANE:
            (folder / name).symlink_to(program.name)

    return _built("controlplane", [path.read_bytes() for path in sorted(source.iterdir())], build)


def coredns() -> Path:
    """Return the path of CoreDNS."""

    def build(go: str, folder: Path) -> None:
        command = (go, "install", f"github.com/coredns/coredns@{COREDNS}")
        _compile(command, cwd=folder, env={"GOBIN": str(folder)})

    return _built("coredns", [COREDNS.encode()], build) / "coredns"


def _built(name: str, inputs: Sequence[bytes], build: Callable[[str, Path], None]) -> Path:
    """Return the folder that *build* has filled from *inputs*, now or earlier; one process builds, others wait."""
    go = needs_tool("go")
    version = subprocess.run([go, "version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < GO:
        lacking(f"{version.strip()} is too old, {'.'.join(map(str, GO))} is needed")
    key = hashlib.sha256()
    for part in (version.encode(), *inputs):
        key.update(hashlib.sha256(part).digest())
    folder = CACHE / f"{name}-{key.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            for old in CACHE.glob(f"{name}-*"):  # of another version, or half built
                shutil.rmtree(old)
            unfinished = Path(tempfile.mkdtemp(dir=CACHE, prefix=f"{name}-unfinished-"))
            build(go, unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(folder)
    return folder


def _compile(command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> None:
    settings = {**os.environ, "GOWORK": "off", **(env or {})}
    done = subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=BUILDING, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: exit status {done.returncode}\n{tail(done.stdout + done.stderr)}")


def tail(text: str, lines: int = 25) -> str:
    """Return the last lines of what a program printed."""
    return "\n".join(text.splitlines()[-lines:])


def free_port(*, address: str = "127.0.0.1") -> int:
    """Return a port that is free now, for UDP and TCP; whoever asks should bind it at once.

    Linux gives clients ports from 32768 on: one from below is not taken meanwhile by a connection.
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


# Each is offered once. Those who test at the same time have ports of their own; other sessions begin elsewhere.
_WORKERS = 8
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_PORTS = (20_000 + (os.getpid() * 97 + number) % 1_500 * _WORKERS + _WORKER for number in range(1_500))


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def until(holds: Callable[[], Any], what: str | Callable[[], str], *, within: float = PATIENCE) -> Any:
    """Ask *holds* again and again until it returns something true, and return that.

    Raises ``NotReadyError`` with *what* when *within* seconds are over.
    """
    deadline = time.monotonic() + within
    while True:
        if result := holds():
            return result
        if time.monotonic() > deadline:
            raise NotReadyError(f"not within {within:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


class Daemon(NamedTuple):
    """A program that runs until it is ended; what it prints goes to a file."""

    process: subprocess.Popen[bytes]
    printed: Path

    @classmethod
    def start(cls, command: Sequence[str], folder: Path, *, name: str, env: Mapping[str, str] | None = None) -> Daemon:
        """Start *command*; its output goes to a file in *folder*."""
        printed = folder / f"{name}.log"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment(env),
            )
        return cls(process, printed)

    def until(self, ready: Callable[[], Any], *, within: float = PATIENCE) -> Any:
        """Wait until *ready* returns something true; fail with the program's last words if it ends or never does."""

        def holds() -> Any:
            if self.process.poll() is not None:
                raise NotReadyError(f"{self} ended with status {self.process.returncode}\n{self.words()}")
            return ready()

        return until(holds, lambda: f"{self} ready\n{self.words()}", within=within)

    def words(self) -> str:
        """Return the last lines that the program printed."""
        return tail(self.printed.read_text(errors="replace"))

    def end(self) -> None:
        """End the program, unless it has ended by itself."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __str__(self) -> str:
        return self.printed.stem
