# SPDX-License-Identifier: Apache-2.0

"""Reads what ``topodns dump`` writes, file by file. What cannot be read becomes an error of the dump, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
from kubernetes.client import V1ObjectMeta, V1Pod, V1PodStatus
from msgspec.json import Decoder

from dnsserver.cli.cluster import cluster_errors
from dnsserver.cli.progress import Report
from dnsserver.cli.reading.installed import DEFAULT_NAMESPACE, NAME_LABEL
from dnsserver.cli.reading.replicas import Replicas
from dnsserver.cli.reading.requests import SILENCE, NotUnderstood, read
from dnsserver.tools.doctor.facts import Facts
from dnsserver.tools.doctor.providers import CUSTOM_CONFIG
from dnsserver.tools.doctor.steps import Unread
from dnsserver.tools.dump import dumped
from dnsserver.tools.dump.dumped import Items, Workload
from dnsserver.tools.dump.hashed_names import HashedNames
from locator.api.decoding import RESOURCES, Resource, by_group_kind, with_pod_labels
from locator.api.deltas import Replace
from locator.cluster import api_client, dump_files
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Unreachable
from locator.findings import ClusterCode
from locator.model import object_key

T = TypeVar("T", bound=Workload | dumped.Pod | dumped.Event)

LOG_LINES, LOG_OCTETS = 2000, 1 << 20  # of each container: the last ones
READ = with_pod_labels(())  # with the labels of pods, for ``simulate --clients``


class Member(NamedTuple):
    """A file of a dump."""

    name: str
    content: bytes


class DumpError(NamedTuple):
    """A file that is missing in a dump, and why."""

    name: str
    why: str


class Dumping:
    """Reads for one dump. With *names*, all names are hashed, and what holds free text is left out."""

    def __init__(self, names: HashedNames | None, report: Report) -> None:
        self.errors: list[DumpError] = []
        self._names, self._report = names, report

    # --- The installation ---------------------------------------------------------------------------------------------

    async def installation(self, client: ApiClient, facts: Facts) -> list[Member]:
        """Return the workloads and pods of topodns, with metrics and logs, and the Corefiles that lead to it."""
        where, members = facts.installed.namespace, [*self._corefiles(facts)]
        apps, core = f"/apis/apps/v1/namespaces/{where}", f"/api/v1/namespaces/{where}"

        async def listed(path: str, kind: str, decoder: Decoder[Items[T]], is_ours: Callable[[T], bool]) -> list[T]:
            name = f"installation/{path.rpartition('/')[2]}.json"
            found = await read(partial(_listed, client, path, decoder))
            if isinstance(found, Unread):
                self._fail(name, found.why)
                return []
            ours = [one for one in found.items if is_ours(one)]
            items = (dumped.installed(one, self._names) for one in ours)
            members.append(Member(name, dumped.list_of(kind, "apps/v1" if path.startswith(apps) else "v1", items)))
            return ours

        runs_topodns = attrgetter("is_ours")
        workloads = await listed(f"{apps}/deployments", "Deployment", dumped.WORKLOADS, runs_topodns)
        workloads += await listed(f"{apps}/daemonsets", "DaemonSet", dumped.WORKLOADS, runs_topodns)
        if not workloads:
            self._fail("installation/", f"no container of topodns in the namespace {where}; -n names another one")
        begins = tuple(one.metadata.name or DEFAULT_NAMESPACE for one in workloads) or (DEFAULT_NAMESPACE,)
        pods = await listed(f"{core}/pods", "Pod", dumped.PODS, lambda pod: _is_ours(pod, workloads))
        await listed(
            f"{core}/events", "Event", dumped.EVENTS,
            lambda event: (event.involved_object.name or "").startswith(begins),
        )  # fmt: skip
        replicas = Replicas(client, facts.installed, facts.kubectl)
        for pod in pods:
            members += await self._of_pod(client, where, pod, replicas, workloads)
        return members

    def _corefiles(self, facts: Facts) -> Iterator[Member]:
        if isinstance(facts.config_maps, Unread):
            self._fail("forwarders/", facts.config_maps.why)
        elif self._names is None:
            for name, config_map in sorted(facts.config_maps.items()):
                for key, text in sorted((config_map.data or {}).items()):
                    if key.startswith("Corefile") or name == CUSTOM_CONFIG:
                        path = f"forwarders/{name.replace('/', '_')}_{key}.txt"
                        yield Member(path, dumped.without_secrets(text).encode())

    async def _of_pod(
        self, client: ApiClient, where: str, pod: dumped.Pod, replicas: Replicas, workloads: Sequence[Workload]
    ) -> list[Member]:
        """Return the metrics, checks and logs of a pod."""
        name, members = pod.metadata.name or "", list[Member]()
        self._report(f"{client.host}: reading metrics and logs of {name}")
        folder = f"pods/{name if self._names is None else self._names.text(name)}"
        status = pod.status or dumped.PodStatus()
        replica = V1Pod(metadata=V1ObjectMeta(name=name), status=V1PodStatus(phase=status.phase, pod_ip=status.ip))
        for path, file, written in (
            ("/metrics", "metrics.txt", dumped.metrics_page), ("/readyz?verbose", "readyz.txt", dumped.checks_page),
        ):  # fmt: skip
            page = await replicas.page(replica, path)
            if isinstance(page, Unread):
                self._fail(f"{folder}/{file}", page.why)
            else:
                members.append(Member(f"{folder}/{file}", written(page, self._names).encode()))
        if self._names is not None:
            return members
        containers = {one.name for found in workloads for one in found.spec.template.spec.containers if one.is_ours}
        restarted = {one.name for one in status.container_statuses or () if one.restart_count}
        for container in (one.name for one in (pod.spec and pod.spec.containers) or () if one.name in containers):
            for previous in (False, True) if container in restarted else (False,):
                file = f"{folder}/{container}{'.previous' if previous else ''}.log"
                query = {"container": container, "tailLines": str(LOG_LINES), "limitBytes": str(LOG_OCTETS)}
                query |= {"previous": "true"} if previous else {}
                path = f"/api/v1/namespaces/{where}/pods/{name}/log"
                log = await read(partial(client.request, "GET", path, query=query, timeout=SILENCE))
                if isinstance(log, Unread):
                    self._fail(file, log.why)
                else:
                    members.append(Member(file, log))
        return members

    # --- The objects --------------------------------------------------------------------------------------------------

    def live(self, client: ApiClient) -> Iterator[Member]:
        """Yield the objects of a cluster, a kind at a time, which is then all that is in memory."""
        for kind, resource in READ.items():
            name = _file(resource)
            kept = resource._replace(build=lambda raw, _: dumped.trimmed(raw, self._names), optional=True)
            try:
                batch = api_client.list_once(client, [kind], report=self._report, resources={kind: kept})
            except (Refused, Unreachable) as error:
                self._fail(name, str(error))
                continue
            for finding in (finding for findings in batch.findings.values() for finding in findings):
                self._fail(name, f"{object_key(finding.namespace, finding.name)}: {finding.message}")
            items = (item for delta in batch.deltas if isinstance(delta, Replace) for item in delta.objects)
            yield _objects(resource, items)

    def files(self, paths: Sequence[str]) -> list[Member]:
        """Return the objects of dumps as ``kubectl get`` prints them, merged. Raises WrongInput."""
        kept: dict[str, dict[str, bytes]] = {}  # by kind, and by key

        def keeping(resource: Resource) -> Resource:
            found = kept.setdefault(resource.name, {})

            def build(raw: Any, collector: Any) -> Any:
                key = object_key(raw.metadata.namespace or "", raw.metadata.name)
                found[key] = dumped.trimmed(raw, self._names)
                return resource.build(raw, collector)

            return resource._replace(build=build)

        resources, members = by_group_kind(READ), list[Member]()
        with cluster_errors():
            inputs = dump_files.DumpFiles(paths).inputs(self._report)
            read = dump_files.read_here(inputs, self._report, {key: keeping(one) for key, one in resources.items()})
        for resource in resources.values():
            found = kept[resource.name]
            for finding in read.findings:
                key = object_key(finding.namespace, finding.name)
                if (finding.code, finding.kind) == (UNREADABLE_CODE, resource.name) and key not in found:
                    self._fail(_file(resource), f"{key}: {finding.message}")
            if found or (resource.name in READ_KINDS and resource.name not in read.lacks):
                members.append(_objects(resource, found.values()))
        return members

    def _fail(self, name: str, why: str) -> None:
        self.errors.append(DumpError(name, why))


UNREADABLE_CODE = ClusterCode.UnreadableObject.name
READ_KINDS = frozenset(resource.name for resource in RESOURCES.values())


def _listed(client: ApiClient, path: str, decoder: Decoder[Items[T]]) -> Items[T]:
    """Return the objects at a path of the API server. Raises NotUnderstood, Refused, Unreachable."""
    try:
        return decoder.decode(client.request("GET", path, timeout=SILENCE))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotUnderstood(str(error)) from None


def _is_ours(pod: dumped.Pod, workloads: Sequence[Workload]) -> bool:
    labels = pod.metadata.labels or {}
    return labels.get(NAME_LABEL) == DEFAULT_NAMESPACE or any(found.selects(labels) for found in workloads)


def _file(resource: Resource) -> str:
    return f"objects/{resource.path.rpartition('/')[2]}.json"


def _objects(resource: Resource, items: Iterable[bytes]) -> Member:
    return Member(_file(resource), dumped.list_of(resource.name, dumped.version_of(resource), items))
