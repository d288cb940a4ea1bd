# SPDX-License-Identifier: Apache-2.0

"""What completes a name or a client while somebody types it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from starlette.requests import Request

from dnsserver.settings import values
from dnsserver.tools.api.contents import batches
from dnsserver.tools.api.operations import Parameter
from dnsserver.tools.console.map import console_keys
from dnsserver.tools.console.page import NAMESPACE, TEXT, PageContext, read
from dnsserver.tools.console.services import service_keys
from dnsserver.tools.explain.naming import CLIENT, NAME
from locator.model import HOSTNAME, REGION, ZONE, Node, Pod
from locator.topology.selection import ANY_ENDPOINT

MOST = 20  # proposals: more than that, nobody reads
MOST_PODS, MOST_NODES = 12, 5  # of these, so that there is room for others
POD, NODE = "pod/", "node/"
KEYS = "keys"
FIELDS = (NAME, CLIENT, KEYS)
USUAL_KEYS = (ZONE, HOSTNAME, REGION)  # those that come first
FOR = Parameter("for", "Which field.", values.choice("FIELD", *FIELDS).read, " or ".join(FIELDS), required=True)

Completion = dict[str, str]  # ``value`` for a field, and the ``namespace`` that it is in, if the value does not say it


async def completions(context: PageContext, request: Request) -> list[Completion]:
    """Return what completes a field."""
    given = read(request, FOR, TEXT, NAMESPACE)
    inspected, text = context.inspected, given["text"]
    snapshot = inspected.current()
    if given["for"] == NAME:
        asking, others = await service_keys(context, snapshot)
        return await names_with(text, [*asking, *others])
    if given["for"] == KEYS:
        return await keys_with(text, (await inspected.own.objects(Node)).values())
    _, pods = await inspected.own.look_up(Pod, "")
    nodes = await inspected.own.objects(Node)
    domains = await domains_on(list(nodes.values()), await console_keys(context, snapshot))
    return await clients_with(text, given["namespace"] or "", pods, list(nodes), domains)


async def names_with(text: str, keys: Iterable[str]) -> list[Completion]:
    """Return names of Services, whose *keys* are ``namespace/name``, that contain *text*: as ``name.namespace``."""
    wanted = text.removeprefix("svc/")
    service, dot, namespace = wanted.partition(".")

    def matches(key: str) -> bool:
        where, _, name = key.partition("/")
        return name == service and where.startswith(namespace) if dot else wanted in key

    return [_completion(".".join(reversed(key.split("/", 1)))) for key in await _first(MOST, keys, matches)]


async def keys_with(text: str, nodes: Iterable[Node]) -> list[Completion]:
    """Return lists of topology keys that begin as *text* does, up to its last comma, and end with a key of *nodes*."""
    before, comma, last = text.rpartition(",")
    given, keys = {key.strip() for key in before.split(",")}, set[str]()
    async for batch in batches(nodes):
        keys.update(key for node in batch for key in node.labels)
    usual = [key for key in USUAL_KEYS if key in keys]
    proposed = [*usual, ANY_ENDPOINT, *sorted(keys.difference(usual))]
    found = [key for key in proposed if last.strip() in key and key not in given]
    return [_completion(f"{before}{comma}{key}") for key in found[:MOST]] if ANY_ENDPOINT not in given else []


async def clients_with(
    text: str, namespace: str, pods: Iterable[str], nodes: Iterable[str], domains: Iterable[str]
) -> list[Completion]:
    """Return clients that contain *text*: *pods* (``namespace/name``), *nodes*, and *domains* such as ``KEY=VALUE``.

    The pods are those of *namespace*, or of all if it is empty.
    """
    found: list[Completion] = []
    if not text.startswith(NODE):
        pod, start = text.removeprefix(POD), f"{namespace}/" if namespace else ""
        most = MOST if text.startswith(POD) else MOST_PODS
        for key in await _first(most, pods, lambda key: pod in key and key.startswith(start)):
            where, _, name = key.partition("/")
            found.append(_completion(f"{POD}{name}", where))
    if not text.startswith(POD):
        node, most = text.removeprefix(NODE), MOST if text.startswith(NODE) else MOST_NODES
        found += [_completion(f"{NODE}{name}") for name in await _first(most, nodes, lambda name: node in name)]
        found += [_completion(domain) for domain in domains if text in domain]
    return found[:MOST]


def _completion(value: str, namespace: str = "") -> Completion:
    return {"value": value, "namespace": namespace}


async def _first(most: int, texts: Iterable[str], matches: Callable[[str], bool]) -> list[str]:
    """Return the first of *texts* that match, at most so many, in alphabetical order."""
    found: list[str] = []
    async for batch in batches(texts):
        if len(found) < most:
            found += filter(matches, batch)
    return sorted(found[:most])


async def domains_on(nodes: Iterable[Node], keys: Sequence[str]) -> list[str]:
    """Return the domains of some *keys* that nodes are in, as ``KEY=VALUE``."""
    domains = set[str]()
    async for batch in batches(nodes):
        domains.update(f"{key}={node.labels[key]}" for node in batch for key in keys if key in node.labels)
    return sorted(domains)
