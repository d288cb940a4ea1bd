# SPDX-License-Identifier: Apache-2.0

"""What completes a name, a client or a search while somebody types it."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request

from dnsserver.settings import values
from dnsserver.tools.api.contents import batches
from dnsserver.tools.api.operations import Parameter
from dnsserver.tools.console.page import TEXT, PageContext, read
from dnsserver.tools.console.pages.map import console_keys
from dnsserver.tools.console.pages.search import domains_on, first, results
from dnsserver.tools.console.pages.services import service_keys
from dnsserver.tools.explain.naming import CLIENT, NAME
from locator.model import HOSTNAME, REGION, ZONE, Node, Pod
from locator.topology.selection import ANY_ENDPOINT

MOST = 20  # proposals: more than that, nobody reads
MOST_PODS, MOST_NODES = 12, 5  # of these, so that there is room for others
POD, NODE = "pod/", "node/"
KEYS = "keys"
USUAL_KEYS = (ZONE, HOSTNAME, REGION)  # those that come first
SEARCH = "search"  # of everything
FIELDS = (NAME, CLIENT, KEYS, SEARCH)
FOR = Parameter("for", "Which field.", values.choice("FIELD", *FIELDS).read, " or ".join(FIELDS), required=True)


async def completions(context: PageContext, request: Request) -> list[str]:
    """Return what completes a field."""
    given = read(request, FOR, TEXT)
    inspected, text = context.inspected, given["text"]
    snapshot = inspected.current()
    if given["for"] == SEARCH:
        return [result.name for result in await results(context, text)][:MOST] if text else []
    if given["for"] == NAME:
        asking, others = await service_keys(context, snapshot)
        return await names_with(text, [*asking, *others])
    if given["for"] == KEYS:
        return await keys_with(text, (await inspected.own.objects(Node)).values())
    _, pods = await inspected.own.look_up(Pod, "")
    nodes = await inspected.own.objects(Node)
    domains = await domains_on(list(nodes.values()), await console_keys(context, snapshot))
    return await clients_with(text, pods, list(nodes), domains)


async def names_with(text: str, keys: Iterable[str]) -> list[str]:
    """Return names of Services, whose *keys* are ``namespace/name``, that contain *text*: as ``name.namespace``."""
    wanted = text.removeprefix("svc/")
    service, dot, namespace = wanted.partition(".")

    def matches(key: str) -> bool:
        where, _, name = key.partition("/")
        return name == service and where.startswith(namespace) if dot else wanted in key

    return [".".join(reversed(key.split("/", 1))) for key in await first(MOST, keys, matches)]


async def keys_with(text: str, nodes: Iterable[Node]) -> list[str]:
    """Return lists of topology keys that begin as *text* does, up to its last comma, and end with a key of *nodes*."""
    before, comma, last = text.rpartition(",")
    given, keys = {key.strip() for key in before.split(",")}, set[str]()
    async for batch in batches(nodes):
        keys.update(key for node in batch for key in node.labels)
    usual = [key for key in USUAL_KEYS if key in keys]
    proposed = [*usual, ANY_ENDPOINT, *sorted(keys.difference(usual))]
    found = [key for key in proposed if last.strip() in key and key not in given]
    return [f"{before}{comma}{key}" for key in found[:MOST]] if ANY_ENDPOINT not in given else []


async def clients_with(text: str, pods: Iterable[str], nodes: Iterable[str], domains: Iterable[str]) -> list[str]:
    """Return clients that contain *text*: *pods* (``namespace/name``), *nodes*, and *domains* such as ``KEY=VALUE``."""
    found: list[str] = []
    if not text.startswith(NODE):
        pod = text.removeprefix(POD)
        most = MOST if text.startswith(POD) else MOST_PODS
        found += [f"{POD}{key}" for key in await first(most, pods, lambda key: pod in key)]
    if not text.startswith(POD):
        node, most = text.removeprefix(NODE), MOST if text.startswith(NODE) else MOST_NODES
        found += [f"{NODE}{name}" for name in await first(most, nodes, lambda name: node in name)]
        found += [domain for domain in domains if text in domain]
    return found[:MOST]
