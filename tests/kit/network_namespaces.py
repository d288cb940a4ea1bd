# SPDX-License-Identifier: Apache-2.0

"""A network of several machines: this one, and others that are network namespaces with addresses of their own."""

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

from tests.kit.this_machine import lacking, needs_tool
from tests.kit.waiting import PATIENCE

PREFIX = f"10.254.{os.getpid() % 250}"  # sessions that run at the same time have separate networks
ETC = Path("/etc/netns")  # files in NAME/ here replace those in /etc for a command in the namespace (ip-netns(8))
STEADY = "02:00:00:00:00:01"  # else a bridge takes the lowest MAC address of its ports, which changes as they change


class Machine(NamedTuple):
    """Another machine: its first address, and the words before a command that runs it there."""

    address: str
    there: tuple[str, ...]


class Network:
    """A bridge that connects this machine and others; ``address`` is this machine's first address on it."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._name = f"td{secrets.token_hex(4)}"  # not the name of a bridge that a killed session left behind
        self.address = f"{PREFIX}.1"

    def take(self, address: str) -> None:
        """Give this machine another address."""
        self._run("address", "add", *_on_link(address), "dev", self._name)

    @contextmanager
    def machine(self, address: str, *more: str, files: Mapping[str, str] | None = None) -> Iterator[Machine]:
        """Add a machine with an IPv4 *address*, and *more* addresses of any family, until the block ends.

        *files* replace this machine's files in ``/etc`` there, by name: ``{"resolv.conf": ...}``.
        """
        name, port = f"{self._name}-{address.rpartition('.')[2]}", self._port(address)
        self._run("netns", "add", name)
        try:
            cable = ("type", "veth", "peer", "name", "eth0", "netns", name)
            self._run("link", "add", port, "master", self._name, *cable)
            self._run("link", "set", port, "up")
            self._run("-n", name, "link", "set", "lo", "up")
            for added in (address, *more):
                self._run("-n", name, "address", "add", *_on_link(added), "dev", "eth0")
            self._run("-n", name, "link", "set", "eth0", "up")
            if files:
                (ETC / name).mkdir(parents=True)
            for file, text in (files or {}).items():
                (ETC / name / file).write_text(text)
            yield Machine(address, (self._ip, "netns", "exec", name))
            self._run("link", "delete", port)  # now: a namespace whose name is deleted may live on for a while
        finally:
            shutil.rmtree(ETC / name, ignore_errors=True)
            self._run("netns", "delete", name)

    @contextmanager
    def cut_off(self, machine: Machine) -> Iterator[None]:
        """Carry nothing to and from a machine until the block ends, as if a cable further away were unplugged."""
        self._run("link", "set", self._port(machine.address), "nomaster")
        try:
            yield
        finally:
            self._run("link", "set", self._port(machine.address), "master", self._name)
            # Else a packet that joins the last of three unanswered ARP requests fails with them: "No route to host".
            self._run("neighbour", "flush", "dev", self._name)

    def _port(self, address: str) -> str:
        """Return the name of our end of a machine's cable."""
        return f"{self._name}v{address.rpartition('.')[2]}"

    def _run(self, *words: str) -> None:
        subprocess.run([self._ip, *words], check=True, capture_output=True, text=True, timeout=PATIENCE)

    @contextmanager
    def up(self) -> Iterator[None]:
        try:
            self._run("link", "add", self._name, "address", STEADY, "type", "bridge")
        except subprocess.CalledProcessError as error:
            lacking(f"this sandbox does not allow networks: {error.stderr.strip()}")
        try:
            self.take(self.address)
            self._run("link", "set", self._name, "up")
            yield
        finally:
            self._run("link", "delete", self._name)


def _on_link(address: str) -> tuple[str, ...]:
    """Return arguments of ``ip address add``, without duplicate address detection, which would take seconds."""
    return (f"{address}/64", "nodad") if ":" in address else (f"{address}/24",)


@contextmanager
def one_network() -> Iterator[Network]:
    """Make a network until the block ends; skip the test if that is not possible."""
    network = Network(needs_tool("ip"))
    if os.geteuid() != 0:
        lacking("networks need root")
    with network.up():
        yield network


# A network that is loopback alone

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_LIBC = ctypes.CDLL(None, use_errno=True)  # from Python 3.12 on these are in ``os``


class Loopback:
    """A network namespace with loopback alone; *number* is an open file descriptor of it."""

    def __init__(self, number: int) -> None:
        self._number = number

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Move this thread, the sockets that it opens and the programs that it starts into this network."""
        with _back_home():
            _enter(self._number)
            yield


@contextmanager
def loopback_with(*addresses: str) -> Iterator[Loopback]:
    """Make a network that is loopback alone, with *addresses*; skip the test if that is not possible.

    The network exists until the block and the last program in it have ended.
    """
    ip = needs_tool("ip")
    if os.geteuid() != 0:
        lacking("networks need root")
    with _back_home(), ExitStack() as opened:
        if _LIBC.unshare(NEW_NETWORK) != 0:
            lacking(f"this sandbox does not allow networks: {os.strerror(ctypes.get_errno())}")
        number = os.open(_MINE, os.O_RDONLY)
        opened.callback(os.close, number)
        for words in (
            ("link", "set", "lo", "up"),
            *(("address", "add", address, "dev", "lo") for address in addresses),
        ):
            subprocess.run([ip, *words], check=True, timeout=PATIENCE)
        still_open = opened.pop_all()
    with still_open:
        yield Loopback(number)


_MINE = "/proc/thread-self/ns/net"


@contextmanager
def _back_home() -> Iterator[None]:
    """Return this thread to its own network at the end of the block."""
    home = os.open(_MINE, os.O_RDONLY)
    try:
        yield
    finally:
        _enter(home)
        os.close(home)


def _enter(number: int) -> None:
    if _LIBC.setns(number, NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
