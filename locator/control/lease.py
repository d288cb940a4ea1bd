"""One leader among replicas, by a Lease (coordination.k8s.io/v1), as a machine without I/O. The clock is handed in.

The rules, of which each replica needs only its own clock and the API server's word:

1. Who leads renews the Lease every ``retry`` seconds. It may write until ``deadline`` seconds after it *began* to
   renew with success for the last time; then no more, until it has renewed again.
2. Who does not lead takes the Lease over once it has seen the same version of it for the ``leaseDurationSeconds``
   that stand in it, or at once when its holder gave it back. Times that others wrote mean nothing to it.
3. The Lease is changed by version only: who comes second is refused, and looks again.

So with ``duration`` beyond ``deadline`` and the longest time that a write is under way, nobody writes while another
may. The clock must go on while the machine sleeps or the process is stopped: who wakes late finds its time over.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.json import Decoder

API_VERSION = "coordination.k8s.io/v1"

# client-go's defaults. With two replicas they amount to a request a second, and to 15 s without a leader at worst.
DURATION_SECONDS = 15.0
DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0
MAX_TRANSITIONS = 2**31 - 1  # what the API's field holds


def leases_path(namespace: str, name: str = "") -> str:
    """Return where the API has a Lease, or all of a namespace."""
    where = f"/apis/{API_VERSION}/namespaces/{namespace}/leases"
    return f"{where}/{name}" if name else where


class Lease(Struct, frozen=True):
    """A Lease as it is in the API; ``holder`` is empty if nobody has it, ``seconds`` is 0 if it says none."""

    version: str
    holder: str = ""
    seconds: int = 0
    transitions: int = 0
    acquired: str = ""


class _Meta(Struct):
    version: str | None = field(name="resourceVersion", default=None)


class _Spec(Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None


class _Lease(Struct):
    metadata: _Meta
    spec: _Spec | None = None


_DECODER = Decoder(_Lease)


def lease_untrusted(raw: bytes) -> Lease | None:
    """Read a Lease; None if that is none."""
    try:
        shaped = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    spec = shaped.spec or _Spec()
    return Lease(
        version=shaped.metadata.version or "",
        holder=spec.holder_identity or "",
        seconds=spec.lease_duration_seconds or 0,
        transitions=spec.lease_transitions or 0,
        acquired=spec.acquire_time or "",
    )


class Claim(Struct, frozen=True):
    """A change of the Lease to ask for: ``method`` POST makes it, PUT replaces the version that was seen."""

    method: str
    body: dict[str, Any]


class Election:
    """One replica's part in the election.

    Ask ``claim`` what to write; where it says None, read the Lease. Then say how that went: ``heard``, ``absent`` or
    ``lost``, and nothing where no answer came.
    """

    def __init__(
        self,
        identity: str,
        namespace: str,
        name: str,
        *,
        duration: float = DURATION_SECONDS,
        deadline: float = DEADLINE_SECONDS,
        retry: float = RETRY_SECONDS,
    ) -> None:
        """*identity* must be nobody else's, not even that of this program's earlier run."""
        if not 0 < retry < deadline < duration:
            raise ValueError(f"retry {retry} s, deadline {deadline} s, duration {duration} s: expected in rising order")
        self.identity, self.namespace, self.name = identity, namespace, name
        self.duration, self.deadline, self.retry = duration, deadline, retry
        self._lease: Lease | None = None
        self._since = 0.0  # when this version of it was seen first
        self._known = False  # whether the Lease was read, or read to be absent, since a claim was refused
        self._until = float("-inf")

    @property
    def holder(self) -> str:
        """Who holds the Lease, as far as is known; empty if nobody does."""
        return self._lease.holder if self._lease is not None else ""

    def may_write(self, now: float) -> bool:
        """Whether this replica leads, and beyond doubt: to be asked right before each write."""
        return now < self._until

    def claim(self, now: float, wall: str) -> Claim | None:
        """Return how to get or keep the Lease now; None if it must be read. *wall* is the time in RFC 3339."""
        lease = self._lease
        if not self._known:
            return None
        if lease is None:
            return Claim("POST", self._body(self.identity, self.duration, 0, wall, wall))
        if lease.holder == self.identity:
            acquired = lease.acquired or wall
            return self._put(lease, self.identity, self.duration, lease.transitions, acquired, wall)
        if not lease.holder or now - self._since >= (lease.seconds or self.duration):
            transitions = min(lease.transitions + 1, MAX_TRANSITIONS)
            return self._put(lease, self.identity, self.duration, transitions, wall, wall)
        return None

    def release(self, now: float, wall: str) -> Claim | None:
        """Return how to give the Lease back at an orderly end, None if it is not held. Nothing may be written then."""
        lease, held = self._lease, self.may_write(now)
        self._until = float("-inf")
        if not held or lease is None:
            return None
        return self._put(lease, None, 1, lease.transitions, wall, wall)

    def heard(self, lease: Lease, *, began: float, now: float, claimed: bool) -> None:
        """Take in the Lease as the API server has it, asked for at *began*; *claimed* says that it was our claim."""
        if self._lease is None or self._lease.version != lease.version:
            self._since = now
        self._lease, self._known = lease, True
        if lease.holder != self.identity:
            self._until = float("-inf")
        elif claimed:
            self._until = began + self.deadline

    def absent(self) -> None:
        """Take in that there is no Lease."""
        self._lease, self._known, self._until = None, True, float("-inf")

    def lost(self) -> None:
        """Take in that a claim was refused: another came first, or one of our own that got no answer."""
        self._known, self._until = False, float("-inf")

    def _put(
        self, lease: Lease, holder: str | None, seconds: float, transitions: int, acquired: str, wall: str
    ) -> Claim:
        body = self._body(holder, seconds, transitions, acquired, wall)
        body["metadata"]["resourceVersion"] = lease.version
        return Claim("PUT", body)

    def _body(self, holder: str | None, seconds: float, transitions: int, acquired: str, wall: str) -> dict[str, Any]:
        return {
            "apiVersion": API_VERSION,
            "kind": "Lease",
            "metadata": {"namespace": self.namespace, "name": self.name},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, -int(-seconds // 1)),  # whole seconds, rounded up
                "leaseTransitions": transitions,
                "acquireTime": acquired,
                "renewTime": wall,
            },
        }
