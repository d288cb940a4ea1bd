# SPDX-License-Identifier: Apache-2.0

"""Decides what one prober probes, and which ServiceHealths it writes into its own cluster.

A Service has a ServiceHealth while it has something to probe in any cluster. A change of a vote is written at once, and
an unchanged one again before it is too old for its readers. The ServiceHealth of a Service that is gone is deleted.

Only the leader probes. When it begins, it goes on from what stands written, since an address must not be healthy again
only because the leader changed. Each patch and delete requires the version that the leader saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from locator.api.deltas import Delta, Drop, Put, Replace, precedes
from locator.control.workqueue import WorkQueue
from locator.health.conditions import Condition, first_seen
from locator.health.objects import (
    MERGE_PATCH,
    create_body,
    delete_options,
    health_name,
    health_path,
    patch_body,
)
from locator.health.targets import Target, targets_of
from locator.model import HealthEntry, Service, ServiceHealth

OWN = 0  # the position of the own cluster

# Readers forget a vote after VOTE_SECONDS (``votes``).
RENEW_SECONDS = 10.0  # so two renewals may fail, or wait for others
# A vote against an address is renewed sooner: a leader that is killed is followed within 18 s or so.
RENEW_AGAINST_SECONDS = 5.0

CREATE, PATCH, DELETE = "create", "patch", "delete"
METHODS = {CREATE: "POST", PATCH: "PATCH", DELETE: "DELETE"}
BODIES: Mapping[str, Callable[[ServiceHealth], dict[str, Any]]] = {
    CREATE: create_body,
    PATCH: patch_body,
    DELETE: delete_options,
}

MAX_KEYS = 1000  # compared before other tasks get a turn
PROBES = "probes"


class HealthWrite(Struct, frozen=True):
    """One write of one ServiceHealth: what it says afterwards, and in ``version`` which version it replaces.

    ``began`` is when it was decided on.
    """

    verb: str
    health: ServiceHealth
    began: float

    @property
    def key(self) -> str:
        """The name of the ServiceHealth."""
        return self.health.name

    @property
    def method(self) -> str:
        """The HTTP method."""
        return METHODS[self.verb]

    @property
    def path(self) -> str:
        """The API path."""
        return health_path("" if self.verb == CREATE else self.health.name)

    @property
    def body(self) -> dict[str, Any]:
        """The body of the request."""
        return BODIES[self.verb](self.health)

    @property
    def media(self) -> str:
        """The media type of the body."""
        return MERGE_PATCH if self.verb == PATCH else "application/json"


class HealthReconciler:
    """Holds what is to be probed in all clusters, the results, and the ServiceHealths of the own cluster.

    *cluster* is the name of the own cluster, and *others* the number of other clusters. *wall* returns the time (RFC
    3339). Keys in the queue are names of ServiceHealths.
    """

    def __init__(self, cluster: str, *, others: int, wall: Callable[[], str]) -> None:
        self.queue = WorkQueue(namespace_of=lambda name: name.partition(".")[2])
        self._cluster = cluster
        self._wall = wall
        self._probing = False
        self._unlisted: set[object] = {ServiceHealth, *range(1 + others)}  # and the positions of clusters
        self._unread = set(range(1, 1 + others))  # the positions of other clusters that were never listed
        self._stated: list[dict[str, tuple[Target, ...]]] = [{} for _ in range(1 + others)]  # by cluster, by name
        self._targets: dict[str, dict[str, Target]] = {}  # by name, by address
        self._all_targets: frozenset[Target] | None = frozenset()  # None: to be collected again
        self._conditions: dict[str, dict[str, Condition]] = {}  # the same, while this replica probes
        self._healths: dict[str, ServiceHealth] = {}
        self._renewed: dict[str, float] = {}  # by name, when this leader last wrote it

    @property
    def unlisted(self) -> frozenset[object]:
        """What is not known yet. Until it is empty, no write is due."""
        return frozenset(self._unlisted) if self._probing else frozenset({*self._unlisted, PROBES})

    @property
    def ready(self) -> bool:
        """Whether enough is known to begin to probe."""
        return not self._unlisted

    @property
    def targets(self) -> frozenset[Target]:
        """What is to be probed; the same object until that changes."""
        if self._all_targets is None:
            self._all_targets = frozenset(target for known in self._targets.values() for target in known.values())
        return self._all_targets

    @property
    def object_counts(self) -> dict[str, int]:
        """The number of Services that are probed, and of ServiceHealths."""
        return {"Service": len(self._targets), "ServiceHealth": len(self._healths)}

    @property
    def entries(self) -> list[HealthEntry]:
        """What this prober says of all addresses; empty while it does not probe."""
        return [condition.entry for conditions in self._conditions.values() for condition in conditions.values()]

    def apply(self, delta: Delta, cluster: int = OWN) -> None:
        """Apply a delta from the *cluster* at that position, or from the response to a write."""
        match delta:
            case Replace(kind=kind, objects=objects) if kind is Service:
                listed = {health_name(service.key): tuple(targets_of(service)) for service in objects}
                for name in self._stated[cluster].keys() | listed.keys():
                    self._put_service(cluster, name, listed.get(name, ()))
                self._unlisted.discard(cluster)
                self._unread.discard(cluster)
            case Replace(objects=objects):
                self._replace_healths(objects)
                self._unlisted.discard(ServiceHealth)
            case Put(object=Service() as service):
                self._put_service(cluster, health_name(service.key), tuple(targets_of(service)))
            case Put(object=ServiceHealth() as health):
                known = self._healths.get(health.name)
                if known is None or not precedes(health.version, known.version):
                    self._healths[health.name] = health
                    self.queue.add(health.name)
            case Drop(kind=kind, key=key) if kind is Service:
                self._put_service(cluster, health_name(key), ())
            case Drop(key=key):
                self._forget(key)

    def stop_waiting(self) -> None:
        """Go on without the other clusters that could not be listed yet."""
        self._unlisted -= self._unread

    def start_probing(self) -> None:
        """Begin to vote, from what stands written."""
        self._probing = True
        for name in self._targets:
            self._update_conditions(name)
        for name in self._targets.keys() | self._healths.keys():
            self.queue.add(name)

    def stop_probing(self) -> None:
        """End to vote, and forget all results: another replica goes on."""
        self._probing = False
        self._conditions.clear()

    def record(self, target: Target, failure: str) -> HealthEntry | None:
        """Record the result of a probe: *failure* is empty if it succeeded. Return what this changes to, if it does."""
        name = health_name(target.service)
        conditions = self._conditions.get(name, {})
        if self._targets.get(name, {}).get(target.address) != target or target.address not in conditions:
            return None  # the Service has changed meanwhile, or another replica probes
        before = conditions[target.address].entry
        after = conditions[target.address] = conditions[target.address].after(failure, self._wall())
        if after.entry.healthy == before.healthy:
            return None
        self.queue.add(name, urgent=True)
        return after.entry

    def next_write(self, now: float) -> HealthWrite | None:
        """Return the next write. None if no key is due, or if the next MAX_KEYS keys need no write.

        The caller must call ``queue.done`` or ``queue.retry`` for the write's key.
        """
        if self.unlisted:
            return None
        for _ in range(MAX_KEYS):
            name = self.queue.get(now)
            if name is None:
                return None
            if write := self.write_for(name, now):
                return write
            if name in self._renewed:
                self.queue.defer(name, self._renewal_due(name), urgent=self._is_against(name))
            else:
                self.queue.done(name)
        return None

    def write_for(self, name: str, now: float) -> HealthWrite | None:
        """Return the write that a ServiceHealth needs now, None if it needs none."""
        actual, conditions = self._healths.get(name), self._conditions.get(name)
        if not conditions:
            if actual is None or self._unread:  # an unread cluster may have the Service
                return None
            return HealthWrite(DELETE, actual, now)
        entries = tuple(conditions[address].entry for address in sorted(conditions))
        service = next(iter(self._targets[name].values())).service
        version = "" if actual is None else actual.version
        wanted = ServiceHealth(name, service, entries, self._wall(), self._cluster, version)
        if actual is None:
            return HealthWrite(CREATE, wanted, now)
        if _votes(actual) == _votes(wanted) and name in self._renewed and now < self._renewal_due(name):
            return None
        return HealthWrite(PATCH, wanted, now)

    def written(self, write: HealthWrite, answer: ServiceHealth | None) -> None:
        """Record that a write has succeeded: *answer* is the ServiceHealth that the API server returned."""
        if write.verb == DELETE:
            known = self._healths.get(write.key)
            if known is not None and known.version == write.health.version:
                self._forget(write.key)
            return
        self._renewed[write.key] = write.began
        if answer is not None:
            self.apply(Put(answer))

    def _renewal_due(self, name: str) -> float:
        return self._renewed[name] + (RENEW_AGAINST_SECONDS if self._is_against(name) else RENEW_SECONDS)

    def _is_against(self, name: str) -> bool:
        return not all(condition.entry.healthy for condition in self._conditions.get(name, {}).values())

    def _replace_healths(self, healths: Iterable[ServiceHealth]) -> None:
        listed = {health.name: health for health in healths}
        for name in self._healths.keys() - listed.keys():
            self._forget(name)
        self._healths = listed
        for name in listed:
            self.queue.add(name)

    def _forget(self, name: str) -> None:
        """Forget a ServiceHealth that does not exist."""
        self._healths.pop(name, None)
        self._enqueue(name)

    def _put_service(self, cluster: int, name: str, targets: tuple[Target, ...]) -> None:
        stated = self._stated[cluster]
        if stated.get(name, ()) == targets:
            return
        if targets:
            stated[name] = targets
        else:
            del stated[name]
        # An address that two clusters have is the own one's, or else the first one's.
        after = {target.address: target for known in reversed(self._stated) for target in known.get(name, ())}
        if after:
            self._targets[name] = after
        else:
            self._targets.pop(name, None)
        self._all_targets = None
        if self._probing:
            self._update_conditions(name)
        self._enqueue(name)

    def _update_conditions(self, name: str) -> None:
        """Begin with the addresses that are new, from what stands written, and forget those that are gone."""
        before, health = self._conditions.pop(name, {}), self._healths.get(name)
        written = {} if health is None else {entry.address: Condition(entry) for entry in health.entries}
        after = {
            address: before.get(address) or written.get(address) or first_seen(address, self._wall())
            for address in self._targets.get(name, {})
        }
        if after:
            self._conditions[name] = after

    def _enqueue(self, name: str) -> None:
        """Add a name to the queue, or discard it if nothing of it is left: a follower drains no queue."""
        if name in self._targets or name in self._healths:
            self.queue.add(name, urgent=True)
        else:
            self._renewed.pop(name, None)
            self.queue.discard(name)


def _votes(health: ServiceHealth) -> tuple[str, list[tuple[str, bool]]]:
    return health.cluster, [(entry.address, entry.healthy) for entry in health.entries]
