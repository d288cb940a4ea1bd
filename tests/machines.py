"""Machines on one network: this one, and others that are network namespaces, each with an address of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.support import PATIENCE, lacking, needs_tool

PREFIX = f"10.254.{os.getpid() % 250}"  # sessions at the same time have networks of their own
STEADY = "02:00:00:00:00:01"  # a bridge that is not told its own takes the lowest of its ports', whoever comes and goes


class Machine(NamedTuple):
    """Another machine: its address, and what stands before a command that runs there."""

    address: str
    there: tuple[str, ...]


class Network:
    """A bridge that this machine and others are at; ``address`` is this machine's first one on it."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._name = f"td{os.getpid()}"
        self.address = f"{PREFIX}.1"

    def take(self, address: str) -> None:
        """Give this machine another address."""
        self._run("address", "add", f"{address}/24", "dev", self._name)

    @contextmanager
    def machine(self, address: str) -> Iterator[Machine]:
        """Add a machine with *address* until the block ends."""
        number = address.rpartition(".")[2]
        name, port = f"{self._name}-{number}", f"{self._name}v{number}"
        self._run("netns", "add", name)
        try:
            cable = ("type", "veth", "peer", "name", "eth0", "netns", name)
            self._run("link", "add", port, "master", self._name, *cable)
            self._run("link", "set", port, "up")
            self._run("-n", name, "link", "set", "lo", "up")
            self._run("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            self._run("-n", name, "link", "set", "eth0", "up")
            yield Machine(address, (self._ip, "netns", "exec", name))
            self._run("link", "delete", port)  # at once: without its name a namespace lives on for a while
        finally:
            self._run("netns", "delete", name)

    def _run(self, *words: str) -> None:
        subprocess.run([self._ip, *words], check=True, capture_output=True, text=True, timeout=PATIENCE)

    @contextmanager
    def _up(self) -> Iterator[None]:
        try:
            self._run("link", "add", self._name, "address", STEADY, "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"networks cannot be made in this sandbox: {error.stderr.strip()}")
        try:
            self.take(self.address)
            self._run("link", "set", self._name, "up")
            yield
        finally:
            self._run("link", "delete", self._name)


@contextmanager
def one_network() -> Iterator[Network]:
    """Make a network until the block ends; skip the test where that is not possible."""
    network = Network(needs_tool("ip"))
    if os.geteuid() != 0:
        lacking("networks need root")
    with network._up():
        yield network
