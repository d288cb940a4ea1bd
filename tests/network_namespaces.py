"""Machines on one network: this one, and others that are network namespaces, each with an address of its own."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.this_machine import lacking, needs_tool
from tests.waiting import PATIENCE

PREFIX = f"10.254.{os.getpid() % 250}"  # sessions at the same time have networks of their own
ETC = Path("/etc/netns")  # what lies in a namespace's folder stands in /etc for a command there (ip-netns(8))
STEADY = "02:00:00:00:00:01"  # a bridge that is not told its own takes the lowest of its ports', whoever comes and goes


class Machine(NamedTuple):
    """Another machine: its first address, and what stands before a command that runs there."""

    address: str
    there: tuple[str, ...]


class Network:
    """A bridge that this machine and others are at; ``address`` is this machine's first one on it."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._name = f"td{secrets.token_hex(4)}"  # what a killed session left behind has another one
        self.address = f"{PREFIX}.1"

    def take(self, address: str) -> None:
        """Give this machine another address."""
        self._run("address", "add", *_on_link(address), "dev", self._name)

    @contextmanager
    def machine(self, address: str, *more: str, files: Mapping[str, str] | None = None) -> Iterator[Machine]:
        """Add a machine with *address*, of IPv4, and *more* of any family until the block ends.

        *files* are what it has in ``/etc`` in place of this machine's, by their names: ``{"resolv.conf": ...}``.
        """
        number = address.rpartition(".")[2]
        name, port = f"{self._name}-{number}", f"{self._name}v{number}"
        self._run("netns", "add", name)
        try:
            cable = ("type", "veth", "peer", "name", "eth0", "netns", name)
            self._run("link", "add", port, "master", self._name, *cable)
            self._run("link", "set", port, "up")
            self._run("-n", name, "link", "set", "lo", "up")
            for each in (address, *more):
                self._run("-n", name, "address", "add", *_on_link(each), "dev", "eth0")
            self._run("-n", name, "link", "set", "eth0", "up")
            if files:
                (ETC / name).mkdir(parents=True)
            for file, text in (files or {}).items():
                (ETC / name / file).write_text(text)
            yield Machine(address, (self._ip, "netns", "exec", name))
            self._run("link", "delete", port)  # at once: without its name a namespace lives on for a while
        finally:
            shutil.rmtree(ETC / name, ignore_errors=True)
            self._run("netns", "delete", name)

    def _run(self, *words: str) -> None:
        subprocess.run([self._ip, *words], check=True, capture_output=True, text=True, timeout=PATIENCE)

    @contextmanager
    def up(self) -> Iterator[None]:
        try:
            self._run("link", "add", self._name, "address", STEADY, "type", "bridge")
        except subprocess.CalledProcessError as error:
            lacking(f"networks cannot be made in this sandbox: {error.stderr.strip()}")
        try:
            self.take(self.address)
            self._run("link", "set", self._name, "up")
            yield
        finally:
            self._run("link", "delete", self._name)


def _on_link(address: str) -> tuple[str, ...]:
    """Return what ``ip address add`` is told; nobody has the address already, and nothing waits to find that out."""
    return (f"{address}/64", "nodad") if ":" in address else (f"{address}/24",)


@contextmanager
def one_network() -> Iterator[Network]:
    """Make a network until the block ends; skip the test where that is not possible."""
    network = Network(needs_tool("ip"))
    if os.geteuid() != 0:
        lacking("networks need root")
    with network.up():
        yield network


# A network without a cable: loopback alone, for whoever runs in it

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_LIBC = ctypes.CDLL(None, use_errno=True)  # from Python 3.12 on these are in ``os``


class Loopback:
    """A network that is loopback alone, apart from all others; *number* is the open file that stands for it."""

    def __init__(self, number: int) -> None:
        self._number = number

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be in this network until the block ends: this thread, with all it opens, and programs started from it."""
        with _back_home():
            _enter(self._number)
            yield


@contextmanager
def loopback_with(*addresses: str) -> Iterator[Loopback]:
    """Make a network that is loopback alone, with *addresses* of its own; skip where that is not possible.

    It lives until the block ends, and the last program in it.
    """
    ip = needs_tool("ip")
    if os.geteuid() != 0:
        lacking("networks need root")
    with _back_home(), ExitStack() as opened:
        if _LIBC.unshare(NEW_NETWORK) != 0:
            lacking(f"networks cannot be made in this sandbox: {os.strerror(ctypes.get_errno())}")
        number = os.open(_MINE, os.O_RDONLY)
        opened.callback(os.close, number)
        for words in (("link", "set", "lo", "up"), *(("address", "add", each, "dev", "lo") for each in addresses)):
            subprocess.run([ip, *words], check=True, timeout=PATIENCE)
        kept = opened.pop_all()
    with kept:
        yield Loopback(number)


_MINE = "/proc/thread-self/ns/net"


@contextmanager
def _back_home() -> Iterator[None]:
    """See this thread back in its own network at the end of the block."""
    home = os.open(_MINE, os.O_RDONLY)
    try:
        yield
    finally:
        _enter(home)
        os.close(home)


def _enter(number: int) -> None:
    if _LIBC.setns(number, NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
