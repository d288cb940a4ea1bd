# SPDX-License-Identifier: Apache-2.0

"""A controller as a process that records each request: when it was sent, and its result.

``python -m tests.kit.controller_process KUBECONFIG FILE IDENTITY NAMESPACE/NAME TIMES`` writes to FILE. TIMES
are the Lease's duration, deadline and pause between tries, in seconds, separated by commas.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import trio
from msgspec import Struct

from locator.cluster.api_client import ApiClient
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector, boot_seconds
from locator.cluster.responses import Refused, Unreachable
from locator.control import lease
from locator.control.lease import LeaderElection
from locator.podlocators.rules import LocatorRules
from locator.policies.rules import PolicyRules
from locator.times import time_text
from tests.kit.programs import Daemon
from tests.kit.this_machine import ROOT
from tests.kit.waiting import until

# For tests that do not wait for a Lease to expire: a machine that stalls for seconds does not lose the Lease.
ALONE = (60.0, 30.0, lease.RETRY_SECONDS)
SHORT = (6.0, 3.0, 0.5)  # for tests that wait for another's Lease to expire


class Request(Struct):
    """A request as its sender saw it. ``version`` is the resourceVersion that it created, 0 if unknown."""

    sent: float
    method: str
    path: str
    status: int
    version: int
    holder: str

    @property
    def lease(self) -> bool:
        return "/leases" in self.path

    @property
    def write(self) -> bool:
        return self.method != "GET" and not self.lease

    @property
    def reign(self) -> bool:
        """Whether it changed the Lease: its holder or its renewal."""
        return self.lease and self.method != "GET" and self.status == 200


class NotingCluster(ApiClient):
    """Records each request before it is sent, and again with its result."""

    def __init__(self, kubeconfig: str, file: IO[bytes]) -> None:
        super().__init__(kubeconfig=kubeconfig)
        self._file = file

    def request(self, method: str, path: str, **more: Any) -> bytes:
        noted = Request(boot_seconds(), method, path, 0, 0, "")
        self._note(noted)
        try:
            answer = super().request(method, path, **more)
        except Refused as error:
            noted.status = error.status
            raise
        except Unreachable:
            noted.status = -1
            raise
        else:
            read = json.loads(answer)
            noted.status = 200
            noted.version = int(read.get("metadata", {}).get("resourceVersion") or 0)
            noted.holder = read.get("spec", {}).get("holderIdentity") or ""
            return answer
        finally:
            self._note(noted)

    def _note(self, noted: Request) -> None:
        self._file.write(msgspec.json.encode(noted) + b"\n")


class Controlling(NamedTuple):
    """A controller's process, and its records."""

    daemon: Daemon
    file: Path
    identity: str

    def noted(self) -> list[Request]:
        """Return all records in order, two for each request: when it is sent (status 0), and when it has ended."""
        lines = [line for line in self.file.read_bytes().split(b"\n")[:-1] if line]
        return [msgspec.json.decode(line, type=Request) for line in lines]

    def requests(self) -> list[Request]:
        """Return the requests that have ended, with a reply or without."""
        return [request for request in self.noted() if request.status]

    def writes(self) -> list[Request]:
        return [request for request in self.requests() if request.write]

    def sent_without_lease(self, before: int, woken: float) -> list[Request]:
        """Return the writes that it sent, after the first *before* records, without a Lease acquired since *woken*."""
        noted = self.noted()[before:]
        leads_again = next((at for at, request in enumerate(noted) if request.reign and request.sent >= woken), None)
        return [request for request in noted[:leads_again] if request.write and not request.status]

    def until_leading(self) -> None:
        self.daemon.until(lambda: any(request.reign for request in self.requests()))


@contextmanager
def controlling(
    folder: Path, kubeconfig: Path, identity: str, lease: str, times: Sequence[float]
) -> Iterator[Controlling]:
    """Run a controller until the block ends."""
    file = folder / f"{identity}.requests"
    file.touch()
    arguments = [str(kubeconfig), str(file), identity, lease, ",".join(map(str, times))]
    command = [sys.executable, "-m", "tests.kit.controller_process", *arguments]
    daemon = Daemon.start(command, folder, name=identity, env={"PYTHONPATH": str(ROOT)})
    try:
        yield Controlling(daemon, file, identity)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
        daemon.end()


async def control(arguments: Sequence[str]) -> None:
    """Run a controller until a signal comes."""
    kubeconfig, file, identity, key, times = arguments
    namespace, _, name = key.partition("/")
    duration, deadline, retry = map(float, times.split(","))
    election = LeaderElection(identity, namespace, name, duration=duration, deadline=deadline, retry=retry)
    with Path(file).open("ab", buffering=0) as notes, trio.open_signal_receiver(signal.SIGTERM) as signals:
        cluster = NotingCluster(kubeconfig, notes)
        elector = LeaderElector(cluster, election, writes="PodLocators")
        controller = Controller(cluster, elector, LocatorRules(), field_manager="tests")
        status = PolicyRules(lambda: time_text(time.time(), "seconds"))
        policies = Controller(cluster, elector, status, field_manager="tests")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(elector.lead, controller.run, policies.run)
            async for _ in signals:
                nursery.cancel_scope.cancel()


def assert_in_turn(*controllers: Controlling) -> None:
    """No controller wrote while another one held the Lease, by the API server's order of all writes."""
    reigns = sorted(
        (request.version, request.holder)
        for controller in controllers
        for request in controller.requests()
        if request.reign
    )
    for controller in controllers:
        for write in controller.writes():
            if write.version and write.method != "DELETE":
                holder = [holder for version, holder in reigns if version < write.version][-1]
                assert holder == controller.identity, f"{controller.identity} wrote while {holder or 'nobody'} led"


def until_true(holds: Any, what: str) -> Any:
    """As ``waiting.until``, with a deadline longer than any Lease."""
    return until(holds, what, within=60.0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    trio.run(control, sys.argv[1:])
