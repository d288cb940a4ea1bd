# SPDX-License-Identifier: Apache-2.0

"""What a running server can be asked about over HTTP, and in which order requests are computed.

No request holds up the event loop for more than a millisecond or so. What lists each endpoint of a Service is made in a
thread; then the loop waits for the interpreter, a millisecond at a time (``sys.setswitchinterval``).

What goes through the whole cluster does so in ``batches`` between other tasks, not in that thread. It takes longer, and
each system call of the loop would give the interpreter to the thread: with 150,000 pods and 3,000 answers a second by
Python alone, 1 in 100 answers then took 90 to 240 ms, and 30 ms with batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import trio
from starlette.responses import Response

from dnsserver.answers.decision import Authority, UpstreamAnswer
from dnsserver.http.problems import problem
from dnsserver.spelling import nearest_key
from dnsserver.tools.api.contents import ClusterContents
from dnsserver.tools.api.operations import BadParameter
from dnsserver.tools.explain import naming
from dnsserver.tools.explain.explanation import Explanation
from locator.cluster.publisher import Publisher
from locator.model import Node, Object, Pod, PodLocator, Service, object_key
from locator.state.snapshot import Snapshot

MAX_WAITING = 16  # requests of one sort, beside the one that is computed
MAX_OUTSIDE = 4  # explanations that wait for the upstream at a time: what DNS clients ask waits there, too

NOT_READ_YET = "the server has not read the cluster yet"
TRY_AGAIN = "the server has enough requests of this sort already, expected fewer: try again in a second"

T = TypeVar("T")

# Computes an explanation, given ``outside`` as ``resolve`` has it.
Compute = Callable[[Callable[[str], UpstreamAnswer | None]], Awaitable[Explanation]]


class NotReady(Exception):
    """The cluster has not been read yet."""


class Busy(Exception):
    """Enough requests of a sort wait already."""


# What reading parameters and computing a response raise.
RESPONSE_ERRORS = (BadParameter, naming.UnknownName, NotReady, Busy)


def problem_of(error: BadParameter | naming.UnknownName | NotReady | Busy) -> Response:
    """Return the response that says why there is no other."""
    match error:
        case NotReady():
            return problem(503, NOT_READ_YET)
        case Busy():
            return problem(503, TRY_AGAIN, headers={"Retry-After": "1"})
    parameter = error.parameter if isinstance(error, BadParameter) else error.argument
    return problem(400, f"{parameter}: {error}", parameter=parameter)


class Inspected(NamedTuple):
    """What a server knows. ``snapshot`` returns what it answers from, or None. ``clusters`` are by name, the own first.

    ``namespace`` is where names without one are looked up. ``honor_kubernetes`` is whether trafficDistribution and
    hints choose endpoints. ``find_all`` computes an explanation with what the upstream says, None without an upstream.
    """

    snapshot: Callable[[], Snapshot | None]
    clusters: Mapping[str, Publisher]
    authority: Authority
    namespace: str
    honor_kubernetes: bool = True
    find_all: Callable[[Compute, int], Awaitable[Explanation]] | None = None

    @property
    def cluster(self) -> str:
        """The name of the own cluster."""
        return next(iter(self.clusters))

    @property
    def own(self) -> Publisher:
        """The publisher of the own cluster."""
        return next(iter(self.clusters.values()))

    def current(self) -> Snapshot:
        """Return the snapshot. Raises NotReady."""
        snapshot = self.snapshot()
        if snapshot is None:
            raise NotReady
        return snapshot

    async def known(self, client: object, namespace: str) -> naming.NameContext:
        """Return where names are looked up, with the objects that it takes to find *client*.

        Raises UnknownName, NotReady.
        """
        found = await self._found(client, namespace)
        snapshot = self.current()
        return naming.NameContext(snapshot, {**found, Service: naming.Served(snapshot)}, namespace)

    async def _found(self, client: object, namespace: str) -> dict[type[Object], Mapping[str, Any]]:
        """Return by kind what it takes to find a client: objects by key, or if what it names is missing, all keys.

        Raises UnknownName.
        """
        if isinstance(client, naming.LabelledClient) or (
            isinstance(client, naming.ObjectReference) and client.kind is Node
        ):
            return {Node: await self.own.objects(Node)}
        if not isinstance(client, naming.ObjectReference):
            return {}
        found: dict[type[Object], Mapping[str, Any]] = {}
        key = object_key(client.namespace or namespace, client.name)
        for kind in (Pod, PodLocator):
            one, keys = await self.own.look_up(kind, key)
            if one is not None or keys:
                found[kind] = naming.Missing(keys) if one is None else {key: one}
        if not found:
            text = f"pod/{client.name} found, but the server knows no Pods (--client-source), expected an address"
            raise naming.UnknownName(naming.CLIENT, text)
        return found

    async def explained(self, given: Mapping[str, Any], turns: Turns, sort: str) -> Explanation:
        """Return the explanation that somebody asks for, with what the upstream says.

        It takes a turn of its *sort* whenever it is computed, and none while it waits for the upstream. At most
        ``MAX_OUTSIDE`` wait there at a time. Raises UnknownName, NotReady, Busy.
        """
        missing: list[str] = []

        async def explained(outside: Callable[[str], UpstreamAnswer | None]) -> Explanation:
            known = await self.known(given["client"], given["namespace"] or self.namespace)
            work = partial(
                naming.explain_named, given["name"], given["type"], given["client"], known, self.authority,
                candidates=given["candidates"], outside=outside,
            )  # fmt: skip
            return await turns.in_thread(work)

        async def compute(outside: Callable[[str], UpstreamAnswer | None]) -> Explanation:
            return await turns.take(sort, partial(explained, outside))

        explanation = await compute(missing.append)
        if self.find_all is None or not missing:
            return explanation
        return await turns.wait_outside(partial(self.find_all, compute, given["type"]))

    async def check_service(self, key: str, turns: Turns) -> None:
        """Raise BadParameter for a Service (``namespace/name``) that is not served, once the cluster has been read."""
        snapshot = self.snapshot()
        if snapshot is None or snapshot.has(key):
            return
        namespace, _, name = key.partition("/")
        keys = [*snapshot.services, *snapshot.federated, *snapshot.imported]
        closest = await turns.in_thread(partial(nearest_key, namespace, name, keys))
        raise BadParameter(
            "service",
            f"{key} found, expected a Service that is served{f', did you mean {closest}?' if closest else ''}",
        )

    async def contents(self) -> list[ClusterContents]:
        """Return the clusters that have been read, with their Nodes."""
        return [
            ClusterContents(name, publisher.snapshot, list((await publisher.objects(Node)).values()))
            for name, publisher in self.clusters.items()
            if publisher.snapshot is not None
        ]


class Turns:
    """Lets one request of each sort be computed at a time, and one thread work for all of them."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._thread = trio.CapacityLimiter(1)
        self._outside = trio.CapacityLimiter(MAX_OUTSIDE)

    async def take(self, sort: str, compute: Callable[[], Awaitable[T]]) -> T:
        """Return what *compute* returns, when all requests of this *sort* before it have been computed. Raises Busy."""
        lock = self._locks[sort]
        if lock.statistics().tasks_waiting >= MAX_WAITING:
            raise Busy
        async with lock:
            return await compute()

    async def wait_outside(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what *work* returns, which waits for the upstream, when there is a place. Raises Busy."""
        if self._outside.statistics().tasks_waiting >= MAX_WAITING:
            raise Busy
        async with self._outside:
            return await work()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which a thread does once it has done what others have given it."""
        return await trio.to_thread.run_sync(work, limiter=self._thread)
