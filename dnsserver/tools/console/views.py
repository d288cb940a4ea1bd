# SPDX-License-Identifier: Apache-2.0

"""Works out what each page shows: what goes through a whole cluster in steps, what lists endpoints in a thread.

What takes long is kept for as long as it would be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, Generic, NamedTuple, TypeVar

from dnsserver.message.wire import A
from dnsserver.settings.values import ServiceName
from dnsserver.spelling import nearest_key
from dnsserver.tools.api.inspected import Inspected, Turns, run
from dnsserver.tools.console import parameters
from dnsserver.tools.console.changes import PageChanges
from dnsserver.tools.console.sampling import Sampler
from dnsserver.tools.explain import naming
from dnsserver.tools.explain.explain import Asker, explain
from dnsserver.tools.explain.explanation import Explanation
from dnsserver.tools.pages import completion, services, sites
from dnsserver.tools.pages.completion import Completion
from dnsserver.tools.pages.domains import keys_in_use
from dnsserver.tools.pages.findings import Cause, causes_of
from dnsserver.tools.pages.flows import Pods, annotations_of, as_tried, check_tried, flows_of, pods_in, title_of
from dnsserver.tools.pages.located import ClusterContents, Located, located_in
from dnsserver.tools.pages.matrix import Expected, expected_in
from dnsserver.tools.pages.node import NodePage, node_page
from dnsserver.tools.pages.overview import ClusterReport, Overview, overview
from dnsserver.tools.pages.service import NOW, ServicePage, TitledExplanation, service_page
from dnsserver.tools.pages.services import Keys, ServiceList
from dnsserver.tools.pages.sites import Map, Site
from locator.model import CLUSTER, Health, Node, Pod, object_key
from locator.places.book import UNKNOWN_PLACE
from locator.state.snapshot import Snapshot

T = TypeVar("T")


class PageMissing(Exception):
    """What a page is about does not exist. The text says so."""


class Around(NamedTuple):
    """What a server tells of the clusters, beside what it has read."""

    health: Callable[[], Mapping[str, Health]]
    ages: Callable[[], Mapping[str, float]]


class Views:
    """The pages, as records. Each may raise NotReady."""

    def __init__(
        self, inspected: Inspected, turns: Turns, around: Around, changes: PageChanges, sampler: Sampler
    ) -> None:
        self._inspected, self._turns, self._around = inspected, turns, around
        self._changes, self._sampler = changes, sampler
        self._in_use, self._keys = Memo[tuple[str, ...]](), Memo[Keys]()
        self._located, self._sites = Memo[Located](), Memo[tuple[Site, ...]]()
        self._counted_pods, self._simulated = Memo[Pods](), Memo[Expected]()
        self._about = Memo[Mapping[str, int]]()

    async def overview(self) -> Overview:
        """Return the first page, even if nothing has been read."""
        objects = {
            name: publisher.snapshot.object_counts
            for name, publisher in self._inspected.clusters.items()
            if publisher.snapshot is not None
        }
        known = ClusterReport(self._around.ages(), objects, self._around.health(), self._changes.findings)
        asked = self._sampler.asked
        expected = await self._expected() if asked is None else None
        return await self._turns.in_thread(partial(overview, known, asked, expected))

    async def _expected(self) -> Expected | None:
        """Return what clients would get, None if nothing has been read."""
        snapshot = self._inspected.snapshot()
        if snapshot is None:
            return None
        parts = snapshot.services, snapshot.addresses
        kept = self._simulated.get(*parts)
        if kept is not None:
            return kept
        pods, authority = await self._pods(snapshot), self._inspected.authority
        found = await run(expected_in(snapshot, pods, authority, self._inspected.cluster))
        return self._simulated.keep(found, *parts)

    async def findings(self, given: Mapping[str, Any]) -> tuple[Cause, ...]:
        """Return all findings with one code, a part at a time; those of each code without one."""
        self._inspected.current()
        work = partial(causes_of, self._changes.findings, code=given["code"], number=given["page"])
        return await self._turns.in_thread(work)

    async def map(self, given: Mapping[str, Any], within: Sequence[str]) -> Map:
        """Return what is within some domains. Raises ValueError for a domain of a key that is not in use."""
        found, keys = await self._all_sites()
        inside = sites.read_within(within, keys)
        key = given["key"]
        if key is not None and key not in keys:
            raise ValueError(f"{key!r} is no topology key in use, expected one of {', '.join(keys)}")
        return await run(sites.map_of(found, keys, inside, key=key, number=given["page"]))

    async def node(self, cluster: str, name: str, given: Mapping[str, Any]) -> NodePage:
        """Return a node, and what is on it. Raises PageMissing."""
        self._inspected.current()
        publisher = self._inspected.clusters.get(cluster)
        if publisher is None or publisher.snapshot is None:
            raise PageMissing(f"no cluster {cluster}; there are {', '.join(self._inspected.clusters)}")
        nodes = list((await publisher.objects(Node)).values())
        found = await run(node_page(ClusterContents(cluster, publisher.snapshot, nodes), name, number=given["page"]))
        if found is None:
            raise PageMissing(f"no node {name} in cluster {cluster}, and nothing is on one of this name")
        return found

    def is_own(self, cluster: str) -> bool:
        """Whether a cluster is the one whose Services have pages, and whose nodes ``explain`` knows."""
        return cluster == self._inspected.cluster

    async def services(self, given: Mapping[str, Any]) -> ServiceList:
        """Return the list of Services."""
        snapshot = self._inspected.current()
        keys, findings = await self._service_keys(snapshot), self._changes.findings
        about = self._about.get(findings)
        if about is None:
            about = await self._turns.in_thread(partial(services.findings_by_service, findings))
            self._about.keep(about, findings)
        return await run(services.service_list(snapshot, keys, about, text=given["text"], number=given["page"]))

    async def service(self, namespace: str, name: str, given: Mapping[str, Any]) -> ServicePage:
        """Return a Service, with the answer to a client if one is given, and with another constraint if one is tried.

        Raises PageMissing, UnknownName, BadSelection.
        """
        key = object_key(namespace, name)
        if key not in self._inspected.current().services:
            raise PageMissing(await self._no_service(namespace, name))
        client, findings = given["client"], self._changes.findings
        known = await self._inspected.known(client, given["namespace"] or namespace)
        snapshot, authority = known.snapshot, self._inspected.authority
        compiled = snapshot.services.get(key)
        if compiled is None:  # it went meanwhile
            raise PageMissing(await self._no_service(namespace, name))
        pods, honors = await self._pods(snapshot), self._inspected.honor_kubernetes
        tried = annotations_of(given["keys"], given["least"])
        if tried is not None:
            check_tried(key, snapshot, tried, honor_kubernetes=honors)

        def page() -> ServicePage:
            own = known._replace(namespace=namespace)
            labels = naming.question_name(ServiceName(None, name), own, authority)
            nobody = explain(labels, A, Asker("", UNKNOWN_PLACE), snapshot, authority)
            answers = []
            if client is not None:
                asker = naming.asker_named(client, known)
                answers.append(TitledExplanation(NOW, explain(labels, A, asker, snapshot, authority, candidates=True)))
                if tried is not None:
                    other = as_tried(key, snapshot, tried, honor_kubernetes=honors)
                    explained = explain(labels, A, asker, other, authority, candidates=True)
                    answers.append(TitledExplanation(title_of(tried), explained))
            flows = flows_of(
                key, snapshot, pods, authority, self._inspected.cluster,
                tried=tried, proposes=given["propose"], honor_kubernetes=honors,
            )  # fmt: skip
            return service_page(compiled, snapshot, nobody, answers, findings, flows, number=given["page"])

        return await self._turns.in_thread(page)

    async def explained(self, given: Mapping[str, Any]) -> Explanation:
        """Return the explanation that the API gives, when its turn has come. Raises UnknownName, Busy."""
        return await self._inspected.explained(given, self._turns, parameters.EXPLAINED.path)

    async def proposals(self, given: Mapping[str, Any]) -> list[Completion]:
        """Return what completes a field."""
        snapshot, text = self._inspected.current(), given["text"]
        if given["for"] == naming.NAME:
            keys = await self._service_keys(snapshot)
            return await run(completion.names_with(text, [*keys.constrained, *keys.others]))
        _, pods = await self._inspected.own.look_up(Pod, "")
        nodes = await self._inspected.own.objects(Node)
        domains = await run(completion.domains_on(list(nodes.values()), await self._keys_in_use(snapshot)))
        return await run(completion.clients_with(text, given["namespace"] or "", pods, list(nodes), domains))

    async def _no_service(self, namespace: str, name: str) -> str:
        keys = self._inspected.current().services
        closest = await self._turns.in_thread(partial(nearest_key, namespace, name, keys))
        return f"topodns serves no Service {namespace}/{name}{f', did you mean {closest}?' if closest else ''}"

    async def _service_keys(self, snapshot: Snapshot) -> Keys:
        keys = self._keys.get(snapshot.services)
        return keys or self._keys.keep(await run(services.keys_of(snapshot)), snapshot.services)

    async def _keys_in_use(self, snapshot: Snapshot) -> tuple[str, ...]:
        in_use = self._in_use.get(snapshot.services)
        return in_use or self._in_use.keep(await run(keys_in_use(snapshot)), snapshot.services)

    async def _pods(self, snapshot: Snapshot) -> Pods:
        """Return the pods of the own cluster, as clients."""
        kept = self._counted_pods.get(snapshot.addresses)
        if kept is not None:
            return kept
        known, cluster = await self._inspected.own.listed(Pod), self._inspected.cluster
        return self._counted_pods.keep(await run(pods_in(known, snapshot.addresses, cluster)), snapshot.addresses)

    async def _all_sites(self) -> tuple[tuple[Site, ...], tuple[str, ...]]:
        """Return all sites, and the keys by which they are divided."""
        keys = await self._keys_in_use(self._inspected.current())
        if len(self._inspected.clusters) > 1 and CLUSTER not in keys:
            keys = (CLUSTER, *keys)
        clusters = await self._inspected.contents()
        snapshots = [cluster.snapshot for cluster in clusters]
        found = self._sites.get(keys, *snapshots)
        if found is None:
            parts = [part for one in snapshots for part in (one.services, one.exported, one.addresses)]
            located = self._located.get(*parts) or self._located.keep(await run(located_in(clusters)), *parts)
            found = self._sites.keep(await run(sites.sites_of(clusters, located, keys)), keys, *snapshots)
        return found, keys


class Memo(Generic[T]):
    """A result, and the very objects that it was made from."""

    def __init__(self) -> None:
        self._parts: tuple[object, ...] = ()
        self._result: T | None = None

    def get(self, *parts: object) -> T | None:
        """Return the result if it was made from these objects, else None."""
        same = len(parts) == len(self._parts) and all(map(is_, parts, self._parts))
        return self._result if same else None

    def keep(self, result: T, *parts: object) -> T:
        """Keep and return a result that was made from *parts*, in place of any other."""
        self._parts, self._result = parts, result
        return result
