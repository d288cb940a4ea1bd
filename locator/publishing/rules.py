# SPDX-License-Identifier: Apache-2.0

"""Which DNSEndpoints there should be: one for each federated name that has addresses of load balancers.

All are in one namespace, and each is called as the name that it publishes: so no two have one name, and no namespace of
a Service has to be in the cluster. What does not carry the label of topodns is somebody else's, and stays as it is.

What is not known is not gone. A replica that has not run for long may not have read each cluster, nor resolved each
host name; until it has, or gives up, the addresses that stand written and may come from there stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from locator.api.decoding import Resource
from locator.control.reconciler import KnownObjects, ObjectChange, Rules
from locator.control.writes import Write, creation, deletion, merge_patch
from locator.labels import is_dns_label
from locator.model import MAX_NAME
from locator.publishing.dns_endpoints import OURS, DNSEndpoint, records, resource_in
from locator.state.snapshot import Entry, FederatedService

# <service>.<namespace>.<zone> with this key is the name server's in each zone, whatever Services there are.
NAME_SERVER = "dns/ns"

Services = Mapping[str, FederatedService]


class Unread(NamedTuple):
    """What a replica that has not run for long may not know yet."""

    clusters: bool = False
    """Some cluster has not been read, and has not been given up."""
    hosts: bool = False
    """Host names of load balancers that have no addresses may still get some."""


class PublishingRules(Rules):
    """Compares the DNSEndpoints in *namespace* with the federated names of *zones*.

    Keys of the work queue are those of DNSEndpoints.
    """

    resources: Mapping[type[Any], Resource]
    writes: type[Any] = DNSEndpoint
    urgent: Collection[type[Any]] = (DNSEndpoint,)

    def __init__(self, zones: Sequence[str], namespace: str) -> None:
        self._resource = resource_in(namespace)
        self.resources = {DNSEndpoint: self._resource}
        self.objects = KnownObjects(self.resources)
        self._zones, self._namespace = zones, namespace
        self._services: Services | None = None  # by their keys, None as long as nothing was read
        self._by_name: dict[str, FederatedService] = {}  # the same, by the key of each name's DNSEndpoint
        self._unread = Unread()
        self.problems: dict[str, str] = {}
        """Why names are not published that should be, by the keys of their DNSEndpoints; known to the leader."""

    def want(self, services: Services, unread: Unread) -> Iterable[str]:
        """Publish *services*, by their keys, from now on; return the keys of what may need a write."""
        before, first = self._services or {}, self._services is None
        changed = {key for key, _ in before.items() ^ services.items()}
        for key in changed:
            for name in self._names(key):
                self._by_name.pop(name, None)
                if key in services:
                    self._by_name[name] = services[key]
        self._services = services
        if first or unread != self._unread:
            self._unread = unread
            return self._by_name.keys() | self.objects.of_kind(DNSEndpoint).keys()
        return [*chain.from_iterable(map(self._names, changed))]

    def changed(self, change: ObjectChange) -> Iterable[str]:
        """Return the key of a DNSEndpoint."""
        return (change.key,)

    def exists(self, key: str) -> bool:
        """Whether there is such a name, or a DNSEndpoint."""
        return key in self._by_name or self.objects.get(DNSEndpoint, key) is not None

    def write_for(self, key: str, now: float) -> Write | None:
        """Return the write that a DNSEndpoint needs, None if it is as it should be, or cannot be written."""
        actual: DNSEndpoint | None = self.objects.get(DNSEndpoint, key)
        if self._services is None:
            return None
        wanted = self._records(key, actual)
        problem = _problem(key, actual) if wanted else ""
        if problem:
            self.problems[key] = problem
            return None
        self.problems.pop(key, None)
        if actual is None:
            fields = {"metadata": {"labels": OURS}, "spec": {"endpoints": wanted}}
            return creation(self._resource, key, fields) if wanted else None
        if not actual.ours:
            return None
        if not wanted:
            return deletion(self._resource, key, actual.version)
        if wanted == actual.records:
            return None
        return merge_patch(self._resource, key, actual.version, {"spec": {"endpoints": wanted}})

    def _records(self, key: str, actual: DNSEndpoint | None) -> list[Mapping[str, Any]]:
        """Return the records of a name; of what is not known yet, those of *actual* stay."""
        service = self._by_name.get(key)
        # As clients in none of the clusters get them.
        entries = () if service is None else service.entries("", with_ports=False)
        healthy = [entry for entry in entries if not (isinstance(entry, Entry) and entry.down)] or entries
        addresses = {address for entry in healthy for address in entry.endpoint.addresses}
        if actual is not None and self._may_lack(service):
            addresses |= {*actual.addresses()} - {one for entry in entries for one in entry.endpoint.addresses}
        return records(key.partition("/")[2], addresses)

    def _may_lack(self, service: FederatedService | None) -> bool:
        """Whether a Service may have entries that this replica does not know yet."""
        if self._unread.clusters or service is None:
            return self._unread.clusters
        return self._unread.hosts and any(member.unresolved for member in service.members)

    def _names(self, service: str) -> Iterator[str]:
        """Yield the keys of the DNSEndpoints of a Service, one for each zone that has a name for it."""
        namespace, _, name = service.partition("/")
        for zone in self._zones if service != NAME_SERVER else ():
            yield f"{self._namespace}/{name}.{namespace}.{zone}"


def _problem(key: str, actual: DNSEndpoint | None) -> str:
    """Return why a name cannot be published, empty if it can."""
    if actual is not None and not actual.ours:
        (label, value), *_ = OURS.items()
        return f"the DNSEndpoint of that name is somebody else's, expected none, or one with the label {label}: {value}"
    name = key.partition("/")[2]
    if len(name) > MAX_NAME:
        return f"{len(name)} characters, expected at most {MAX_NAME}"
    if not all(map(is_dns_label, name.split("."))):
        return "cannot be the name of an object, expected letters, digits and - in each label"
    return ""
