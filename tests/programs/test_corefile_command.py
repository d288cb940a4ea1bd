# SPDX-License-Identifier: Apache-2.0

"""The command line of ``topodns corefile``, its files, and what it says to somebody at a terminal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_WRONG
from tests.kit import topodns_process
from tests.kit.commands_in_process import Run
from tests.kit.corefiles import corefiles
from tests.kit.terminal import Terminal
from tests.kit.this_machine import ROOT
from tests.kit.waiting import PATIENCE

TO = ("--for", "coredns", "--to", "10.96.0.53")
MANY = ",".join(f"10.9.0.{number}" for number in range(14))
BAD_COMMAND_LINES = {
    "nothing": ((), "--for: missing, expected a program to print for, or --check FILE"),
    "no-to": (("--for", "coredns"), "--to: missing, expected the address of topodns"),
    "unknown-program": (("--for", "bind", "--to", "10.96.0.53"), "--for: 'bind', expected coredns, nodelocal, dnsmasq"),
    "to-is-a-name": (("--for", "coredns", "--to", "topodns"), "--to: 'topodns' is no IP address, expected ADDRESS"),
    "to-ends-with-a-comma": (("--for", "coredns", "--to", "10.96.0.53,"), "--to: '10.96.0.53,': '' is no IP address"),
    "port": (("--for", "coredns", "--to", "10.96.0.53:0"), "--to: '10.96.0.53:0': '0' is not a port from 1 to 65535"),
    "port-too-high": (("--check", "x", "--to", "[::1]:99999"), "--to: '[::1]:99999': '99999' is not a port"),
    "to-anywhere": (("--for", "coredns", "--to", "0.0.0.0"), "--to: '0.0.0.0' is not a unicast address, expected"),
    "to-anywhere-6": (("--check", "x", "--to", "[::]:53"), "--to: '[::]:53' is not a unicast address, expected"),
    "to-many": (("--check", "x", "--to", "224.0.0.1"), "--to: '224.0.0.1' is not a unicast address, expected"),
    "to-many-6": (("--for", "coredns", "--to", "ff02::1"), "--to: 'ff02::1' is not a unicast address, expected"),
    "to-all": (("--for", "coredns", "--to", "255.255.255.255"), "--to: '255.255.255.255' is not a unicast address"),
    "too-many": ((*TO, "--to", "10.96.0.54", "--to", MANY), "--to: 16 addresses, expected at most 15"),
    "too-many-with-its-own": ((*TO, "--to", MANY, "--fail-open"), "--to: 15 addresses, expected at most 14"),
    "zone": ((*TO, "--zone", "a..b"), "--zone: 'a..b' is not a domain name, expected a domain name such as cluster"),
    "zone-empty": ((*TO, "--zone", ""), "--zone: '' is not a domain name, expected a domain name such as"),
    "zone-root": (("--check", "x", "--zone", "."), "--zone: '.' is not a domain name, expected a domain name such as"),
    "zone-breaks-out": ((*TO, "--zone", "a {"), "--zone: 'a {' is not a domain name, expected a domain name such as"),
    "fail-open-of-nodelocal": (
        ("--for", "nodelocal", "--to", "10.96.0.53", "--fail-open"),
        "--fail-open: nodelocal cannot answer for Services by itself, expected coredns",
    ),
    "fail-open-onto-topodns": (
        ("--for", "coredns", "--to", "10.96.0.53,127.0.0.1:5301", "--fail-open"),
        "--fail-open: 127.0.0.1:5301 is where coredns answers by itself, expected another address for topodns",
    ),
    "fail-open-of-federated-names": (
        ("--for", "coredns", "--to", "10.96.0.53", "--federation", "fed.example", "--fail-open"),
        "--fail-open: coredns cannot answer for federated names by itself, expected another zone, too",
    ),
    "version-too-old": ((*TO, "--coredns-version", "1.11.3"), "'1.11.3', expected 1.11.4 or later, which the block"),
    "version-too-old-for-fail-open": (
        (*TO, "--fail-open", "--coredns-version", "1.12.1"), "expected 1.13 or later, which --fail-open needs",
    ),
    "version-of-something": ((*TO, "--coredns-version", "new"), "'new', expected a version such as 1.14.7"),
    "version-of-another": (
        ("--for", "nodelocal", "--to", "10.96.0.53", "--coredns-version", "1.14.7"), "given with --for nodelocal",
    ),
    "version-and-check": (("--coredns-version", "1.14.7", "--check", "x"), "--coredns-version: given together with"),
    "fail-open-and-check": (("--fail-open", "--check", "x"), "--fail-open: given together with --check"),
    "check-and-fix": (("--check", "x", "--fix", "x"), "--fix: given together with --check"),
    "json-of-a-fix": (("--fix", "x", "-o", "json"), "-o: 'json' with --fix, expected it only with --check FILE"),
    "json": ((*TO, "-o", "json"), "-o: 'json' without --check"),
    "check-of-unbound": (("--for", "unbound", "--check", "x"), "--for: 'unbound', expected coredns or nodelocal"),
    "no-file": (("--check", "/no-such/Corefile"), "/no-such/Corefile: No such file or directory, expected"),
    "no-file-named": (("--check", ""), "--check: '': empty, expected a file, or - for standard input"),
    "folder": (("--check", "/"), "/: Is a directory, expected a Corefile"),
    "flag-of-others": ((*TO, "--ttl", "5"), "--ttl: a flag of serve"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD_COMMAND_LINES.values(), ids=BAD_COMMAND_LINES)
def test_bad_command_line(topodns: Run, arguments: Sequence[str], message: str) -> None:
    """One line names the flag, what was found and what was expected; status 2."""
    status, out, err = topodns("corefile", *arguments)
    assert (status, out) == (EXIT_WRONG, "")
    assert err.startswith("topodns: ") and message in err and err.count("\n") == 1


def test_a_person_is_told_of_the_version(tmp_path: Path) -> None:
    """On a terminal, what a newer CoreDNS could do is said beside the block, which may go into a file."""
    with (tmp_path / "block").open("wb") as block:
        command = [*topodns_process.COMMAND, "corefile", *TO]
        with Terminal(command, env={}, folder=tmp_path, stdout=block.fileno()) as terminal:
            terminal.until("--coredns-version 1.14.5 lets it wait 0.4 s")
            assert terminal.process.wait(PATIENCE) == EXIT_DONE
    assert (tmp_path / "block").read_text().startswith("# CoreDNS 1.11.4 or later\n")


def test_standard_input() -> None:
    """``-`` reads the Corefile that ``kubectl`` prints; standard error stays empty."""
    ran = topodns_process.run("corefile", "--check", "-", stdin=corefiles("found")["cache"].text)
    assert (ran.returncode, ran.stderr) == (EXIT_FAILED, "")
    assert ran.stdout.startswith("error    -: line 2: cluster.local: cache: ")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("corefile --check -", "-: standard input is closed, expected a Corefile"),
        ("check --snapshot -", "standard input: Bad file descriptor, expected a snapshot"),
    ],
)
def test_no_standard_input(command: str, message: str) -> None:
    """A closed standard input is an error, not a crash."""
    shell = f"exec {sys.executable} -m dnsserver {command} <&-"
    ran = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (EXIT_WRONG, "", f"topodns: {message}\n")


def test_a_fix(topodns: Run, tmp_path: Path) -> None:
    """It prints the Corefile octet by octet, and says what it leaves; --check says that there is a fix."""
    cases, path = corefiles("fixed"), tmp_path / "Corefile"
    path.write_bytes(cases["Windows"].text.encode().replace(b"Everything", b"caf\xe9"))
    whole, (added,) = path.read_bytes(), cases["Windows"].changes
    check = [*topodns_process.COMMAND, "corefile", "--check", str(path)]
    with (tmp_path / "out").open("wb") as out, Terminal(check, env={}, folder=tmp_path, stdout=out.fileno()) as shown:
        shown.until("--fix in its place prints")
    command = [*topodns_process.COMMAND, "corefile", "--fix", str(path), "--to=10.96.0.53"]
    printed = subprocess.run(command, capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii"}).stdout
    assert printed.replace(f"{added[1:]}\r\n".encode(), b"", 1) == whole
    path.write_text(cases["whole"].text * 2)
    ran = topodns("corefile", "--fix", str(path))
    assert (ran.status, ran.out) == (EXIT_FAILED, path.read_text())
    assert "left as it is: " in ran.err and "[ZoneServedTwice]" in ran.err
