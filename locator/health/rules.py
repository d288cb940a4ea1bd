# SPDX-License-Identifier: Apache-2.0

"""What one prober probes, and which ServiceHealths its cluster should have.

A Service has a ServiceHealth, called ``NAME.NAMESPACE``, while it has something to probe in any cluster. Only the
prober writes it, always as a whole; ``topodns serve`` reads those of all clusters. A change of a vote is written at
once, and an unchanged one again before it is too old for its readers. The ServiceHealth of a Service that is gone is
deleted.

Only the leader probes. When it begins, it goes on from what stands written, since an address must not be healthy again
only because the leader changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from locator.api.decoding import RESOURCES, Resource
from locator.control.reconciler import KnownObjects, Later, ObjectChange, Rules
from locator.control.writes import DELETE, Write, creation, deletion, merge_patch
from locator.health.targets import ProbeTarget, targets_of
from locator.model import HealthEntry, Service, ServiceHealth

_RESOURCE = RESOURCES[ServiceHealth]

FAILURES = 3  # in a row, until an address is unhealthy: a restart, or one lost packet, is no outage
SUCCESSES = 2  # in a row, until it is healthy again

# Readers forget a vote after VOTE_SECONDS (``votes``).
RENEW_SECONDS = 10.0  # so two renewals may fail, or wait for others
# A vote against an address is renewed sooner: a leader that is killed is followed within 18 s or so.
RENEW_AGAINST_SECONDS = 5.0


def health_name(service: str) -> str:
    """Return the name of the ServiceHealth of the Service with the key *service*."""
    namespace, _, name = service.partition("/")
    return f"{name}.{namespace}"


class AddressCondition(Struct, frozen=True):
    """What a prober says of one address, and how many of the latest probes in a row contradict it."""

    entry: HealthEntry
    contrary: int = 0

    def after(self, failure: str, timestamp: str) -> AddressCondition:
        """Return the condition after one more probe; *failure* is empty if it succeeded, *timestamp* the time."""
        entry, works = self.entry, not failure
        if works == entry.healthy:
            return AddressCondition(replace(entry, message=failure))
        contrary = self.contrary + 1
        if contrary < (FAILURES if entry.healthy else SUCCESSES):
            return AddressCondition(entry, contrary)
        return AddressCondition(HealthEntry(entry.address, works, timestamp, failure))


def first_seen(address: str, timestamp: str) -> AddressCondition:
    """Return the condition of an address that nobody has probed: healthy until proven otherwise."""
    return AddressCondition(HealthEntry(address, True, timestamp))


class HealthRules(Rules):
    """Compares the ServiceHealths of the cluster called *cluster* with what is to be probed there and in *others*.

    *timestamp* returns the time (RFC 3339). Keys of the work queue are names of ServiceHealths.
    """

    resources: Mapping[type[Any], Resource] = {
        Service: RESOURCES[Service],
        ServiceHealth: RESOURCES[ServiceHealth]._replace(optional=False),
    }
    writes: type[Any] = ServiceHealth
    urgent: Collection[type[Any]] = (Service,)
    elsewhere: Collection[type[Any]] = (Service,)

    def __init__(self, cluster: str, *, timestamp: Callable[[], str]) -> None:
        self.objects = KnownObjects(self.resources, keep=_keep)
        self._cluster = cluster
        self._timestamp = timestamp
        self._probing = False
        self._targets: dict[str, dict[str, ProbeTarget]] = {}  # by name, by address
        self._all_targets: frozenset[ProbeTarget] | None = frozenset()  # None: to be collected again
        self._conditions: dict[str, dict[str, AddressCondition]] = {}  # the same, while this replica probes
        self._renewed: dict[str, float] = {}  # by name, when this leader last wrote it

    def namespace_of(self, key: str) -> str:
        """Return the namespace of the Service."""
        return key.partition(".")[2]

    @property
    def targets(self) -> frozenset[ProbeTarget]:
        """What is to be probed; the same object until that changes."""
        if self._all_targets is None:
            self._all_targets = frozenset(target for known in self._targets.values() for target in known.values())
        return self._all_targets

    @property
    def entries(self) -> list[HealthEntry]:
        """What this prober says of all addresses; empty while it does not probe."""
        return [condition.entry for conditions in self._conditions.values() for condition in conditions.values()]

    def start_probing(self) -> Iterable[str]:
        """Begin to vote, from what stands written; return the ServiceHealths that may need a write now."""
        self._probing = True
        for name in self._targets:
            self._update_conditions(name)
        return self._targets.keys() | self.objects.of_kind(ServiceHealth).keys()

    def stop_probing(self) -> None:
        """End to vote, and forget all results: another replica goes on."""
        self._probing = False
        self._conditions.clear()

    def record(self, target: ProbeTarget, failure: str) -> HealthEntry | None:
        """Record the result of a probe: *failure* is empty if it succeeded. Return what this changes to, if it does."""
        name = health_name(target.service)
        conditions = self._conditions.get(name, {})
        if self._targets.get(name, {}).get(target.address) != target or target.address not in conditions:
            return None  # the Service has changed meanwhile, or another replica probes
        before = conditions[target.address].entry
        after = conditions[target.address] = conditions[target.address].after(failure, self._timestamp())
        return None if after.entry.healthy == before.healthy else after.entry

    def changed(self, change: ObjectChange) -> Iterable[str]:
        """Return the name of the ServiceHealth that a change is about."""
        name = change.key
        if change.kind is Service:
            name = health_name(change.key)
            # An address that two clusters have is the own one's, or else the first one's.
            stated = [self.objects.get(Service, change.key, cluster) or () for cluster in self.objects.kinds]
            if after := {target.address: target for known in reversed(stated) for target in known}:
                self._targets[name] = after
            else:
                self._targets.pop(name, None)
            self._all_targets = None
            if self._probing:
                self._update_conditions(name)
        if not self.exists(name):
            self._renewed.pop(name, None)
        return (name,)

    def exists(self, key: str) -> bool:
        """Whether there is something to probe, or a ServiceHealth."""
        return key in self._targets or self.objects.get(ServiceHealth, key) is not None

    def write_for(self, key: str, now: float) -> Write | Later | None:
        """Return the write that a ServiceHealth needs *now*, or when it is to be renewed; None without any."""
        actual: ServiceHealth | None = self.objects.get(ServiceHealth, key)
        conditions = self._conditions.get(key)
        if not conditions:
            # Without results, it is left to age; and a cluster that was never listed may have the Service.
            if actual is None or not self._probing or not self.objects.is_complete:
                return None
            return deletion(_RESOURCE, key, actual.version)
        entries = tuple(conditions[address].entry for address in sorted(conditions))
        service = next(iter(self._targets[key].values())).service
        wanted = ServiceHealth(key, service, entries, self._timestamp(), self._cluster)
        fields = {"status": _status_of(wanted)}
        if actual is None:
            return creation(_RESOURCE, key, fields)
        if key in self._renewed and _votes(actual) == _votes(wanted):
            is_against = not all(entry.healthy for entry in entries)
            due = self._renewed[key] + (RENEW_AGAINST_SECONDS if is_against else RENEW_SECONDS)
            if now < due:
                return Later(due, urgent=is_against)
        return merge_patch(_RESOURCE, key, actual.version, fields)

    def written(self, write: Write, found: Any, began: float) -> bool:
        """Note when a vote was renewed. Return True."""
        if write.verb != DELETE:
            self._renewed[write.key] = began
        return True

    def _update_conditions(self, name: str) -> None:
        """Begin with the addresses that are new, from what stands written, and forget those that are gone."""
        before, health = self._conditions.pop(name, {}), self.objects.get(ServiceHealth, name)
        written = {} if health is None else {entry.address: AddressCondition(entry) for entry in health.entries}
        after = {
            address: before.get(address) or written.get(address) or first_seen(address, self._timestamp())
            for address in self._targets.get(name, {})
        }
        if after:
            self._conditions[name] = after


def _keep(found: Service | ServiceHealth) -> Any:
    """Return a ServiceHealth, and of a Service what is to be probed; None without anything."""
    return found if isinstance(found, ServiceHealth) else tuple(targets_of(found)) or None


def _votes(health: ServiceHealth) -> tuple[str, list[tuple[str, bool]]]:
    return health.cluster, [(entry.address, entry.healthy) for entry in health.entries]


def _status_of(health: ServiceHealth) -> dict[str, Any]:
    """Return the status of a ServiceHealth as JSON."""
    namespace, _, name = health.service.partition("/")
    return {
        "cluster": health.cluster,
        "service": {"namespace": namespace, "name": name},
        "entries": [
            {
                "address": entry.address,
                "healthy": entry.healthy,
                **({"since": entry.since} if entry.since else {}),  # the schema takes no empty time
                **({"message": entry.message} if entry.message else {}),
            }
            for entry in health.entries
        ],
        "renewTime": health.renewed,
    }
