# SPDX-License-Identifier: Apache-2.0

"""Which workloads asked for which Service in the last hour, and the clients that the Service could name. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice, takewhile

from msgspec import Struct

from locator.model import Pod

HOUR = 3600.0
# Pairs of a Service and a client, and clients by address; all others are left out. Together they have 17 MB, and 30 MB
# with the longest names.
MAX_SEEN = MAX_KNOWN = 32_768
AGAIN = 60.0  # seconds after which an address may be another's: what is known of it is looked up once more
# The last part of the name of a ReplicaSet, by which a Deployment tells its own apart, and that of a CronJob's Job.
TEMPLATE_HASH = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{1,10}")
SCHEDULED = re.compile(r"-\d{8,10}")

POD = "Pod"


class Workload(Struct, frozen=True, order=True):
    """What clients have in common: the namespace and the owner of pods, or if they are none, how they were located.

    ``kind`` is that of the owner, ``Pod`` for a pod without one; without a namespace, it is ``node``, ``subnet`` or so.
    """

    namespace: str
    kind: str
    name: str


class SeenClient(Struct, frozen=True):
    """A client: what it is called, one pod with two addresses once, and its workload."""

    name: str
    workload: Workload


def workload_of(pod: Pod) -> Workload:
    """Return the workload of a pod: a Deployment instead of its ReplicaSet, and a CronJob instead of its Job."""
    kind, _, name = pod.owner.partition("/")
    if not name:
        return Workload(pod.namespace, POD, pod.name)
    for owned, by, suffix in (("ReplicaSet", "Deployment", TEMPLATE_HASH), ("Job", "CronJob", SCHEDULED)):
        start, dash, end = name.rpartition("-")
        if kind == owned and start and suffix.fullmatch(dash + end):
            return Workload(pod.namespace, by, start)
    return Workload(pod.namespace, kind, name)


class Askers:
    """The clients of each Service within the last hour, at most ``MAX_SEEN`` in all."""

    def __init__(self) -> None:
        self.full = False
        """Whether clients were left out, since there were too many."""
        self._seen: dict[str, dict[str, tuple[Workload, float]]] = {}  # of each Service, who asked last is the last one
        self._known: dict[bytes, tuple[SeenClient, float]] = {}  # who was looked up last is the last one
        self._size = 0

    def unknown(self, addresses: Iterable[bytes], now: float) -> list[bytes]:
        """Return those addresses of which it has to be found out who has them."""
        known = self._known
        return [one for one in addresses if one not in known or now - known[one][1] > AGAIN]

    def learn(self, found: Mapping[bytes, SeenClient], now: float) -> None:
        """Take in who has some addresses at *now*."""
        known = self._known
        longest_known = islice(known.items(), max(0, len(known) + len(found) - MAX_KNOWN))
        for address in [one for one, (_, since) in longest_known if now - since > AGAIN]:
            del known[address]
        for address, client in found.items():
            if known.pop(address, None) is not None or len(known) < MAX_KNOWN:
                known[address] = client, now

    def asked(self, service: str, address: bytes, now: float) -> None:
        """Note that a client asked for a Service (``namespace/name``), if it is known who has its address."""
        if address not in self._known:
            return
        client, _ = self._known[address]
        clients = self._seen.setdefault(service, {})
        if clients.pop(client.name, None) is None:
            if self._size >= MAX_SEEN:
                self.full = True
                return
            self._size += 1
        clients[client.name] = client.workload, now

    def forget(self, now: float) -> None:
        """Forget the clients that have not asked for an hour. It looks at few others: there may be many."""
        for service, clients in list(self._seen.items()):
            old = list(takewhile(lambda seen: now - seen[1][1] > HOUR, clients.items()))
            for name, _ in old:
                del clients[name]
            self._size -= len(old)
            if not clients:
                del self._seen[service]
        self.full = self.full and self._size >= MAX_SEEN

    def workloads(self, service: str) -> list[tuple[Workload, int, float]]:
        """Return the workloads that asked for a Service: how many clients of each, and when the last one did.

        Those with the most clients come first.
        """
        seen = self._seen.get(service, {}).values()
        numbers, last = Counter(workload for workload, _ in seen), dict(seen)
        return sorted(
            ((workload, number, last[workload]) for workload, number in numbers.items()),
            key=lambda row: (-row[1], row[0]),
        )


def proposal(workloads: Iterable[Workload]) -> str:
    """Return the value of ``topodns.io/clients`` that covers those of some workloads that are pods, "" for none."""
    return "; ".join(sorted({workload.namespace for workload in workloads if workload.namespace}))
