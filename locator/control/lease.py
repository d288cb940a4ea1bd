# SPDX-License-Identifier: Apache-2.0

"""Leader election with a Lease (coordination.k8s.io/v1), as a state machine without I/O. Callers pass the time in.

client-go's ``leaderelection`` follows nearly the same rules. They need no synchronised clocks:

1. The leader renews the Lease every ``retry`` seconds. It may write until ``deadline`` seconds after it *began* its
   last successful renewal. Then it stops writing until a renewal succeeds.
2. Another replica takes the Lease over once it has seen the same version for the ``leaseDurationSeconds`` that the
   Lease states, or at once if the holder released it. It ignores the times in the Lease, which other clocks wrote.
3. Every update names the resourceVersion that it replaces. Of two replicas that update one version, the API server
   refuses the second, which then reads the Lease again.

If ``duration`` exceeds ``deadline`` by more than the longest write takes, no replica writes while another may. The
clock must not stop while the machine sleeps or the process is suspended: a replica that wakes late must find that its
time is over.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.json import Decoder

API_VERSION = "coordination.k8s.io/v1"

# client-go's defaults (LeaseDuration, RenewDeadline, RetryPeriod). Two replicas send one request a second in all, and
# a new leader follows one that was killed after 15 s and a retry or two.
DURATION_SECONDS = 15.0
DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0
MAX_TRANSITIONS = 2**31 - 1  # the API's field is an int32


def leases_path(namespace: str, name: str = "") -> str:
    """Return the API path of a Lease, or without *name* of all Leases in a namespace."""
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/leases"
    return f"{path}/{name}" if name else path


class Lease(Struct, frozen=True):
    """A Lease as the API returns it.

    ``holder`` is empty if no replica holds the Lease. ``duration`` is in seconds, 0 if the Lease states none.
    """

    version: str
    holder: str = ""
    duration: int = 0
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
    """Return the Lease in *raw*, None if *raw* is not a Lease."""
    try:
        lease = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    spec = lease.spec or _Spec()
    return Lease(
        version=lease.metadata.version or "",
        holder=spec.holder_identity or "",
        duration=spec.lease_duration_seconds or 0,
        transitions=spec.lease_transitions or 0,
        acquired=spec.acquire_time or "",
    )


class LeaseWrite(Struct, frozen=True):
    """One write of the Lease. ``method`` is POST to create it, or PUT to update the version named in ``body``."""

    method: str
    body: dict[str, Any]


class LeaderElection:
    """The state of leader election as one replica sees it.

    ``acquire_or_renew`` returns the write to send; if it returns None, read the Lease. Then report the result with
    ``observed``, ``not_found`` or ``write_refused``. If no response came, report nothing.
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
        """*identity* must be unique, also among restarts of one replica. Raises ValueError for times out of order."""
        if not 0 < retry < deadline < duration:
            raise ValueError(f"retry {retry} s, deadline {deadline} s, duration {duration} s: expected in rising order")
        self.identity, self.namespace, self.name = identity, namespace, name
        self.duration, self.deadline, self.retry = duration, deadline, retry
        self._lease: Lease | None = None
        self._observed_at = 0.0  # when this version of the Lease was first seen
        self._known = False  # whether the Lease has been read, or found to be absent, since a write was refused
        self._leads_until = float("-inf")

    def is_leader(self, now: float) -> bool:
        """Whether this replica certainly leads, and so may write. Check it right before each write."""
        return now < self._leads_until

    @property
    def held_last(self) -> bool:
        """Whether the Lease named this replica when it was last seen, even if its time is over since."""
        return self._lease is not None and self._lease.holder == self.identity

    def acquire_or_renew(self, now: float, timestamp: str) -> LeaseWrite | None:
        """Return the write that acquires or renews the Lease; *timestamp* is the present time in RFC 3339.

        None if this replica must read the Lease first, or if another replica holds it.
        """
        lease = self._lease
        if not self._known:
            return None
        if lease is None:
            return LeaseWrite("POST", self._body(self.identity, self.duration, 0, timestamp, timestamp))
        if lease.holder == self.identity:
            acquired = lease.acquired or timestamp
            return self._put(lease, self.identity, self.duration, lease.transitions, acquired, timestamp)
        if not lease.holder or now - self._observed_at >= (lease.duration or self.duration):
            transitions = min(lease.transitions + 1, MAX_TRANSITIONS)
            return self._put(lease, self.identity, self.duration, transitions, timestamp, timestamp)
        return None

    def release(self, now: float, timestamp: str) -> LeaseWrite | None:
        """Stop leading, and return the write that releases the Lease. None if this replica does not lead."""
        lease, led = self._lease, self.is_leader(now)
        self._leads_until = float("-inf")
        if not led or lease is None:
            return None
        return self._put(lease, None, 1, lease.transitions, timestamp, timestamp)

    def observed(self, lease: Lease, *, began: float, now: float, written: bool) -> None:
        """Record the Lease as the API server returned it at *now*.

        *began* is when the request was sent. *written* is True if that request wrote the Lease, False if it read it.
        """
        if self._lease is None or self._lease.version != lease.version:
            self._observed_at = now
        self._lease, self._known = lease, True
        if lease.holder != self.identity:
            self._leads_until = float("-inf")
        elif written:
            self._leads_until = began + self.deadline

    def not_found(self) -> None:
        """Record that the Lease does not exist."""
        self._lease, self._known, self._leads_until = None, True, float("-inf")

    def write_refused(self) -> None:
        """Record that the API server refused a write: another replica, or an earlier write of this one, came first."""
        self._known, self._leads_until = False, float("-inf")

    def _put(
        self, lease: Lease, holder: str | None, duration: float, transitions: int, acquired: str, timestamp: str
    ) -> LeaseWrite:
        body = self._body(holder, duration, transitions, acquired, timestamp)
        body["metadata"]["resourceVersion"] = lease.version
        return LeaseWrite("PUT", body)

    def _body(
        self, holder: str | None, duration: float, transitions: int, acquired: str, timestamp: str
    ) -> dict[str, Any]:
        return {
            "apiVersion": API_VERSION,
            "kind": "Lease",
            "metadata": {"namespace": self.namespace, "name": self.name},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, -int(-duration // 1)),  # whole seconds, rounded up
                "leaseTransitions": transitions,
                "acquireTime": acquired,
                "renewTime": timestamp,
            },
        }
