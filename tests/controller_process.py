"""A controller as a process of its own, which notes every request: when it was sent, and what came of it.

``python -m tests.controller_process KUBECONFIG FILE IDENTITY NAMESPACE/NAME TIMES [GLOB...]`` notes in FILE, one line a
request. TIMES are the Lease's duration, deadline and pause between tries, in seconds, by commas.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import trio
from msgspec import Struct

from locator.cluster.api_client import ApiClient
from locator.cluster.controller import Controller
from locator.cluster.leader_elector import now
from locator.cluster.responses import Refused, Unreachable
from locator.control import lease
from locator.control.lease import LeaderElection
from tests.programs import Daemon
from tests.this_machine import ROOT
from tests.waiting import until

# Where nobody waits for that: a machine that stands still for seconds costs neither the Lease nor an answer.
ALONE = (60.0, 30.0, lease.RETRY_SECONDS)
SHORT = (6.0, 3.0, 0.5)  # where one waits for another's Lease to run out
WRITES_PER_SECOND = 200.0


class Request(Struct):
    """One request as its sender saw it. ``version`` is the resourceVersion it made, 0 if it is not known."""

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
        """Whether it changed who holds the Lease, or for how long."""
        return self.lease and self.method != "GET" and self.status == 200


class _Meta(Struct):
    resourceVersion: str = "0"  # noqa: N815


class _Spec(Struct):
    holderIdentity: str | None = None  # noqa: N815


class _Answer(Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


_ANSWER = msgspec.json.Decoder(_Answer)


class NotingCluster(ApiClient):
    """Notes what is asked, before it is asked for, and what came of it."""

    def __init__(self, kubeconfig: str, file: IO[bytes]) -> None:
        super().__init__(kubeconfig=kubeconfig)
        self._file = file

    def request(self, method: str, path: str, **more: Any) -> bytes:
        noted = Request(now(), method, path, 0, 0, "")
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
            read = _ANSWER.decode(answer)
            noted.status = 200
            noted.version, noted.holder = int(read.metadata.resourceVersion), read.spec.holderIdentity or ""
            return answer
        finally:
            self._note(noted)

    def _note(self, noted: Request) -> None:
        self._file.write(msgspec.json.encode(noted) + b"\n")


class Controlling(NamedTuple):
    """A controller's process, and what it notes."""

    daemon: Daemon
    file: Path
    identity: str

    def noted(self) -> list[Request]:
        """Return all notes in order, two of each request: it is sent (status 0), it is answered or given up."""
        lines = [line for line in self.file.read_bytes().split(b"\n")[:-1] if line]
        return [msgspec.json.decode(line, type=Request) for line in lines]

    def requests(self) -> list[Request]:
        """Return the requests that got an answer, or were given up."""
        return [each for each in self.noted() if each.status]

    def writes(self) -> list[Request]:
        return [each for each in self.requests() if each.write]

    def sent_without_lease(self, before: int, woken: float) -> list[Request]:
        """Return the writes sent after *before* notes, until it got the Lease anew: asked for since it was *woken*."""
        noted = self.noted()[before:]
        anew = next((number for number, each in enumerate(noted) if each.reign and each.sent >= woken), None)
        return [each for each in noted[:anew] if each.write and not each.status]

    def until_leading(self) -> None:
        self.daemon.until(lambda: any(each.reign for each in self.requests()))


@contextmanager
def controlling(
    folder: Path, kubeconfig: Path, identity: str, lease: str, times: Sequence[float], globs: Sequence[str]
) -> Iterator[Controlling]:
    """Run a controller until the block ends."""
    file = folder / f"{identity}.requests"
    file.touch()
    arguments = [str(kubeconfig), str(file), identity, lease, ",".join(map(str, times)), *globs]
    command = [sys.executable, "-m", "tests.controller_process", *arguments]
    daemon = Daemon.start(command, folder, name=identity, env={"PYTHONPATH": str(ROOT)})
    try:
        yield Controlling(daemon, file, identity)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
        daemon.end()


async def control(arguments: Sequence[str]) -> None:
    """Run a controller until a signal comes."""
    kubeconfig, file, identity, key, times, *globs = arguments
    namespace, _, name = key.partition("/")
    duration, deadline, retry = map(float, times.split(","))
    election = LeaderElection(identity, namespace, name, duration=duration, deadline=deadline, retry=retry)
    with Path(file).open("ab", buffering=0) as notes, trio.open_signal_receiver(signal.SIGTERM) as signals:
        controller = Controller(
            NotingCluster(kubeconfig, notes), election, labels=globs, writes_per_second=WRITES_PER_SECOND
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(controller.run)
            async for _ in signals:
                nursery.cancel_scope.cancel()


def assert_in_turn(*controllers: Controlling) -> None:
    """Nobody wrote while another held the Lease: by the API server's own order of all writes."""
    reigns = sorted(
        (each.version, each.holder) for controller in controllers for each in controller.requests() if each.reign
    )
    for controller in controllers:
        for write in controller.writes():
            if write.version and write.method != "DELETE":
                holder = [holder for version, holder in reigns if version < write.version][-1]
                assert holder == controller.identity, f"{controller.identity} wrote while {holder or 'nobody'} led"


def until_true(holds: Any, what: str) -> Any:
    """As ``waiting.until``, and longer than a Lease outlives its holder."""
    return until(holds, what, within=60.0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    trio.run(control, sys.argv[1:])
