# SPDX-License-Identifier: Apache-2.0

"""Who asks for a Service: what was noted of replies becomes workloads, of which the API, a command and a page tell."""

from __future__ import annotations

import time
from collections import Counter

import trio

from dnsserver.metrics.counters import Counts
from dnsserver.tools.api.contents import batches
from dnsserver.tools.api.inspected import Inspected
from dnsserver.tools.api.operations import Clients, OtherWorkload, WorkloadAsking
from dnsserver.tools.live.askers import HOUR, POD, Askers, SeenClient, Workload, proposal, workload_of
from locator.ip import host_network
from locator.model import Pod
from locator.places.book import POD_LOCATOR, Book
from locator.times import time_text
from locator.topology.annotations import CLIENTS

OF_POD = "pod "  # as ``Book.holder`` begins
LOOKED_UP, PODS = 100, 200  # clients, and pods, at a time: half a millisecond or so
MAX_OTHERS = 100  # workloads


class ClientsByService:
    """Who asks, as *counts* note it."""

    def __init__(self, counts: Counts) -> None:
        self._counts, self._askers = counts, Askers()
        self._began: float | None = None

    async def look(self, inspected: Inspected) -> None:
        """Take in what was noted of replies since the last call."""
        self._counts.catch_up()
        snapshot, now, askers = inspected.snapshot(), trio.current_time(), self._askers
        self._began = now if self._began is None else self._began
        asked = self._counts.take_askers()
        if snapshot is None:
            return
        async for batch in batches(asked, LOOKED_UP):
            unknown = askers.unknown({address for _, address in batch}, now)
            if unknown:
                askers.learn(await _holders(unknown, snapshot.addresses, inspected), now)
            for service, address in batch:
                askers.asked("/".join(service), address, now)
        askers.forget(now)

    async def of_service(self, service: str, inspected: Inspected) -> Clients:
        """Return who asked for a Service (``namespace/name``), and what it could say of that."""
        now, clock = trio.current_time(), time.time()
        rows, others = self._askers.workloads(service), Counter[Workload]()
        namespaces = {workload.namespace for workload, _, _ in rows if workload.namespace}
        asked = {workload for workload, _, _ in rows}
        async for batch in batches(await inspected.own.listed(Pod) if namespaces else (), PODS):
            for pod in batch:
                if pod.namespace in namespaces and pod.asks and (workload := workload_of(pod)) not in asked:
                    others[workload] += 1
        value = proposal(asked)
        return {
            "service": service,
            "seconds": int(min(HOUR, now - (now if self._began is None else self._began))),
            "complete": not self._askers.full,
            "workloads": [
                WorkloadAsking(
                    namespace=workload.namespace or None,
                    kind=workload.kind,
                    name=workload.name,
                    pods=number,
                    last_seen=time_text(clock - (now - last), "seconds"),
                )
                for workload, number, last in rows
            ],
            "proposal": f"{CLIENTS}: {value}" if value else None,
            "others": [
                OtherWorkload(namespace=workload.namespace, kind=workload.kind, name=workload.name, pods=number)
                for workload, number in sorted(others.items(), key=lambda row: (-row[1], row[0]))[:MAX_OTHERS]
            ],
            "other_workloads": len(others),
        }


async def _holders(addresses: list[bytes], book: Book, inspected: Inspected) -> dict[bytes, SeenClient]:
    """Return who has some addresses, as far as that is known."""
    names = {address: book.holder(host_network(address)) for address in addresses}
    keys = {name.removeprefix(OF_POD) for name in names.values() if name.startswith(OF_POD)}
    pods = await inspected.own.some(Pod, keys)
    found = {}
    for address, name in names.items():
        pod, place = pods.get(name.removeprefix(OF_POD)), book.locate(address)
        if pod is not None and name.startswith(OF_POD):
            found[address] = SeenClient(name, workload_of(pod))
        elif place.located_by == POD_LOCATOR:  # which does not say what keeps the pod
            namespace, _, pod_name = name.partition(" ")[2].partition("/")
            found[address] = SeenClient(name, Workload(namespace, POD, pod_name))
        elif name:
            found[address] = SeenClient(name, Workload("", place.located_by, name))
    return found
