# SPDX-License-Identifier: Apache-2.0

"""How ``topodns`` ends if a standard stream breaks or a signal comes: never with a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dnsserver.cli.dispatch import COMMANDS
from dnsserver.programs.run import Shutdown
from tests.kit.commands_in_process import Run
from tests.kit.other_server import kubeconfig
from tests.kit.programs import environment
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import COMMAND, Server
from tests.kit.waiting import PATIENCE

CLUSTER = str(ROOT / "examples" / "cluster.yaml")
DONE, FAILED, WRONG, READER_LEFT = 0, 1, 2, 141
NAME = "memcached.shop.svc.cluster.local"

PRINTING = {
    "version": ["version"],
    "version-flag": ["--version"],
    "no-command": [],
    "help": ["--help"],
    "help-of-a-command": ["serve", "--help"],
    "check": ["check", "--snapshot", CLUSTER],
    "check-json": ["check", "--snapshot", CLUSTER, "-o", "json"],
    "explain": ["explain", NAME, "--client", "10.0.0.1", "--snapshot", CLUSTER],
    "explain-json": ["explain", NAME, "--client", "10.0.0.1", "--snapshot", CLUSTER, "-o", "json"],
    "stub-block": ["corefile", "--for", "coredns", "--to", "10.96.0.53"],
    "corefile": ["corefile", "--check", os.devnull],
}
ENDS = {
    # what becomes of the output: (status, standard error)
    "full": (FAILED, "topodns: standard output: No space left on device\n"),
    "closed": (FAILED, "topodns: standard output: closed\n"),
    "reader-left": (READER_LEFT, ""),
}


@contextmanager
def broken(stream: str) -> Iterator[int | None]:
    """Yield a file descriptor that cannot be written to, or None for a closed stream."""
    if stream == "closed":
        yield None
        return
    if stream == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def ran(
    arguments: list[str], *, stdout: int | None = subprocess.PIPE, stderr: int | None = subprocess.PIPE, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run ``topodns`` to its end; a stream that is None is closed."""
    closed = " ".join(f"{number}>&-" for number, stream in ((1, stdout), (2, stderr)) if stream is None)
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *arguments]
    # A message may stand in Python's buffers until the end, or not: the usual is that it does.
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True,
                          env=environment({"PYTHONUNBUFFERED": "", **env}), timeout=PATIENCE, check=False)  # fmt: skip


@pytest.mark.parametrize("stream", ENDS)
@pytest.mark.parametrize("arguments", PRINTING.values(), ids=PRINTING)
def test_output_that_cannot_be_written(
    topodns: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], stream: str
) -> None:
    """If the output cannot be written, the command fails with one line; a reader that closes its pipe is no failure."""
    with broken(stream) as descriptor:
        monkeypatch.setattr(sys, "stdout", None if descriptor is None else os.fdopen(descriptor, "w", closefd=False))
        ended = topodns(*arguments)
        monkeypatch.undo()
    assert (ended.status, ended.err) == ENDS[stream]


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("stream", ENDS)
def test_output_that_a_process_cannot_write(stream: str, unbuffered: str) -> None:
    """The same at its end, when Python tries again, and where it writes without a buffer, as in the image."""
    with broken(stream) as stdout:
        ended = ran(["version"], stdout=stdout, PYTHONUNBUFFERED=unbuffered)
    assert (ended.returncode, ended.stderr) == ENDS[stream]


MESSAGES = {
    "unknown-command": (["chek"], WRONG, ""),
    "warning": (["check", "--snapshot", CLUSTER, "--trusted-forwarder", "0.0.0.0/0"], DONE, "0 errors, "),
    "server-that-has-begun": (
        ["serve", "--listen", "127.0.0.1:0", "--http", "off", "--snapshot", os.devnull], WRONG, ""),
}  # fmt: skip


@pytest.mark.parametrize("stream", ENDS)
@pytest.mark.parametrize(("arguments", "status", "out"), MESSAGES.values(), ids=MESSAGES)
def test_message_that_cannot_be_written(arguments: list[str], status: int, out: str, stream: str) -> None:
    """If standard error cannot be written, output and exit status stay the same."""
    with broken(stream) as stderr:
        ended = ran(arguments, stderr=stderr)
    assert ended.returncode == status
    assert out in ended.stdout and bool(ended.stdout) == bool(out)


def test_no_stream_at_all() -> None:
    """A process without any standard stream ends with the usual status."""
    assert ran(["version"], stdout=None, stderr=None).returncode == FAILED


# Held at an import, a process says so and waits for its end.
HOLD = """
import os, sys, time
class Hold:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["HELD_AT"]:
            os.write(int(os.environ["TOLD_BY"]), b"!")
            while True:
                time.sleep(0.05)  # a signal may come just before it waits, and its handler runs when it has waited
sys.meta_path.insert(0, Hold())
"""


@pytest.mark.usefixtures("_heeds_sigint")
@pytest.mark.parametrize(
    ("arguments", "module", "number"),
    [
        (["--help"], "dnsserver.cli.dispatch", signal.SIGINT),
        (["--help"], "dnsserver.cli.dispatch", signal.SIGTERM),
        (["check", "--snapshot", CLUSTER], "yaml", signal.SIGINT),
        (["serve", "--snapshot", CLUSTER], "trio", signal.SIGTERM),
        (["controller"], "dnsserver.programs.controller", signal.SIGINT),
        (["webhook"], "dnsserver.programs.webhook", signal.SIGTERM),
    ],
    ids=["interrupted-first-of-all", "ended-first-of-all", "check", "serve", "controller", "webhook"],
)
def test_a_signal_while_modules_load(tmp_path: Path, arguments: list[str], module: str, number: signal.Signals) -> None:
    """A signal ends the process at any moment without output; the parent sees which signal."""
    (tmp_path / "sitecustomize.py").write_text(HOLD)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    told, tell = os.pipe()
    env = environment({"PYTHONPATH": path, "HELD_AT": module, "TOLD_BY": str(tell)})
    try:
        with subprocess.Popen([*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=env, pass_fds=[tell]) as process:  # fmt: skip
            os.close(tell)
            assert os.read(told, 1) == b"!", "it ended without importing that"
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE)
    finally:
        os.close(told)
    assert (process.returncode, out, err) == (-number, b"", b"")


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """A signal that the parent ignored, as nohup does, stays ignored."""
    script = 'trap "" INT; exec "$@"'
    code = "import signal, sys; from dnsserver.cli.main import main; sys.argv[1:] = ['version']; status = main(); "
    code += "signal.raise_signal(signal.SIGINT); sys.exit(status)"
    ended = subprocess.run(["/bin/sh", "-c", script, "sh", sys.executable, "-c", code], capture_output=True, text=True,
                           env=environment(), timeout=PATIENCE, check=False)  # fmt: skip
    assert (ended.returncode, ended.stderr) == (DONE, "")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_output_that_is_no_text(tmp_path: Path, encoding: str) -> None:
    """Bytes of a file name, and characters that the terminal lacks, are shown escaped."""
    path = os.fsencode(tmp_path) + b"/caf\xc3\xa9-\xff.yaml"
    with open(path, "w") as file:
        file.write("{apiVersion: v1, kind: Pod, metadata: {}}")
    ended = ran(["check", "--snapshot", os.fsdecode(path)], PYTHONIOENCODING=encoding, PYTHONUTF8="1")
    assert (ended.returncode, ended.stderr) == (FAILED, "")
    assert "-\\udcff.yaml" in ended.stdout


HEAVY = {"anyio", "argcomplete", "asyncio", "cachetools", "dns", "dnslib", "h11", "kubernetes",
         "prometheus_client", "rich", "starlette", "trio", "urllib3", "yaml"}  # fmt: skip


LOADED_BY = """
import sys
from dnsserver.cli.main import main
for line in sys.argv[1:]:
    sys.argv[1:] = line.split()
    assert main() == 0, line
    print("loaded by", line, *sys.modules, file=sys.stderr)
"""


def loaded_by(*lines: str) -> dict[str, set[str]]:
    """Return the modules that a process has loaded after each of these command lines."""
    command = [sys.executable, "-c", LOADED_BY, *lines]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=True)
    said = [line.removeprefix("loaded by ") for line in ended.stderr.splitlines()]
    return {line: set(row.removeprefix(line).split()) for line, row in zip(lines, said, strict=True)}


def test_what_prints_a_text_loads_no_library_for_it() -> None:
    """Version, help and stub blocks load no library for DNS, HTTP or Kubernetes."""
    lines = ["version", "--version", "--help", *(f"{command} --help" for command in COMMANDS)]
    for line, modules in loaded_by(*lines, " ".join(PRINTING["stub-block"])).items():
        assert not {name.partition(".")[0] for name in modules} & HEAVY, line


def test_what_reads_a_dump_loads_no_server() -> None:
    """``check`` and ``explain`` need no sockets, no metrics and no API client to read a file."""
    for line, modules in loaded_by(*(" ".join(PRINTING[name]) for name in ("check", "explain"))).items():
        assert {"dnsserver.programs.from_settings", "locator.cluster.dumps.reading"} <= modules
        server = {"dns", "dnsserver.programs.server", "dnsserver.net.udp", "kubernetes", "prometheus_client", "urllib3"}
        assert not modules & server, line


def test_every_command_is_listed() -> None:
    """Each command is a module of its name and a row in the table."""
    modules = {path.stem for path in (ROOT / "dnsserver" / "cli" / "commands").rglob("[!_]*.py")}
    assert modules == set(COMMANDS)


def test_a_live_server_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    """It stays in the memory of every replica: no reader of dumps, and nothing of other commands."""
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")  # nobody listens there
    arguments = ["serve", "--kubeconfig", str(path), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    arguments += ["--console=off"]  # as in a pod
    server = Server(arguments, env={"PYTHONPROFILEIMPORTTIME": "1"})
    try:
        server.wait_for("^listening http ")
        server.bound()
        assert [server.get(path)[0] for path in ("/livez", "/readyz", "/metrics")] == [200, 503, 200]
    finally:
        assert server.end() == DONE
    imported = {match[1] for line in server.lines if (match := re.search(r"\| +(\S+)$", line))}
    assert {"dnsserver.programs.server", "h11", "kubernetes.config", "prometheus_client"} <= imported
    assert not imported & {"argcomplete", "cryptography", "dns", "rich"}
    assert not imported & {"dnsserver.tools.explain.explain", "dnsserver.tools.corefile", "locator.cluster.dump_files",
                           "locator.cluster.leading", "locator.hints", "locator.podlocators"}  # fmt: skip


@pytest.mark.parametrize(
    ("delay", "signals", "asked_until", "ends_at"),
    [
        pytest.param(12, {0: signal.SIGINT}, 60, 0, id="interrupted"),
        pytest.param(0, {0: signal.SIGTERM}, 60, 0, id="no-delay"),
        pytest.param(None, {0: signal.SIGTERM}, 60, 0, id="outside-of-a-pod"),
        pytest.param(12, {0: signal.SIGTERM}, 0, 13, id="nobody-asks"),
        pytest.param(12, {0: signal.SIGTERM}, 13.5, 15, id="somebody-asks-a-little-longer"),
        pytest.param(12, {0: signal.SIGTERM}, 60, 17, id="somebody-asks-for-ever"),
        pytest.param(12, {0: signal.SIGTERM, 3: signal.SIGTERM}, 60, 3, id="told-twice"),
        pytest.param(12, {0: signal.SIGTERM, 3: signal.SIGINT}, 60, 3, id="interrupted-in-the-delay"),
        pytest.param(12, {0: signal.SIGHUP, 1: signal.SIGTERM, 3: signal.SIGHUP}, 0, 14, id="reads-again-meanwhile"),
    ],
)
def test_shutdown_delay(
    delay: int | None, signals: dict[int, signal.Signals], asked_until: float, ends_at: float
) -> None:
    """A process goes on for the delay, and a little longer while somebody asks; it is not ready from SIGTERM on."""
    shutdown, read_again, ready = Shutdown(delay), [], {}

    async def send(sender: trio.MemorySendChannel[int]) -> None:
        for at, number in signals.items():
            await trio.sleep_until(began + at)
            await sender.send(number)
            await trio.testing.wait_all_tasks_blocked()
            ready[at] = not shutdown.health()

    def asked() -> int:
        return int(min(trio.current_time() - began, asked_until) * 100)

    async def main() -> float:
        nonlocal began
        began = trio.current_time()
        sender, receiver = trio.open_memory_channel[int](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, sender)
            await shutdown.wait(receiver, asked, lambda: read_again.append(trio.current_time() - began))
            nursery.cancel_scope.cancel()
            return trio.current_time() - began
        raise AssertionError

    began = 0.0
    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == pytest.approx(ends_at)
    assert read_again == [at for at, number in signals.items() if number == signal.SIGHUP]
    ended = [at for at, number in signals.items() if number == signal.SIGTERM]
    assert all(is_ready is (not ended or at < ended[0] or not delay) for at, is_ready in ready.items())
