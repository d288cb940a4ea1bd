# SPDX-License-Identifier: Apache-2.0

"""What completes a name or a client while somebody types it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from dnsserver.tools.explain.naming import CLIENT, NAME
from dnsserver.tools.pages.steps import STEP, Steps
from locator.model import Node

FIELDS = (NAME, CLIENT)
MOST = 20  # proposals: more than that, nobody reads
MOST_PODS, MOST_NODES = 12, 5  # of these, so that there is room for others
POD, NODE = "pod/", "node/"


class Completion(TypedDict):
    """What can be put into a field, and the namespace that it is in; empty if the value says that, or it is in none."""

    value: str
    namespace: str


def names_with(text: str, keys: Sequence[str]) -> Steps[list[Completion]]:
    """Return names of Services, whose *keys* are ``namespace/name``, that contain *text*: as ``name.namespace``."""
    wanted = text.removeprefix("svc/")
    service, dot, namespace = wanted.partition(".")

    def matches(key: str) -> bool:
        where, _, name = key.partition("/")
        return name == service and where.startswith(namespace) if dot else wanted in key

    found = yield from _first(MOST, keys, matches)
    return [_proposal(".".join(reversed(key.split("/", 1)))) for key in found]


def clients_with(
    text: str, namespace: str, pods: Sequence[str], nodes: Sequence[str], domains: Sequence[str]
) -> Steps[list[Completion]]:
    """Return clients that contain *text*: *pods* (``namespace/name``), *nodes*, and *domains* such as ``KEY=VALUE``.

    The pods are those of *namespace*, or of all if it is empty.
    """
    found: list[Completion] = []
    if not text.startswith(NODE):
        wanted, start = text.removeprefix(POD), f"{namespace}/" if namespace else ""
        most = MOST if text.startswith(POD) else MOST_PODS
        keys = yield from _first(most, pods, lambda key: wanted in key and key.startswith(start))
        found += [_pod(key) for key in keys]
    if not text.startswith(POD):
        wanted = text.removeprefix(NODE)
        most = MOST if text.startswith(NODE) else MOST_NODES
        names = yield from _first(most, nodes, lambda name: wanted in name)
        found += [_proposal(f"{NODE}{name}") for name in names]
        found += [_proposal(domain) for domain in domains if text in domain]
    return found[:MOST]


def _proposal(value: str, namespace: str = "") -> Completion:
    return {"value": value, "namespace": namespace}


def _pod(key: str) -> Completion:
    namespace, _, name = key.partition("/")
    return _proposal(f"{POD}{name}", namespace)


def _first(most: int, texts: Sequence[str], matches: Callable[[str], bool]) -> Steps[list[str]]:
    """Return the first of *texts* that match, at most so many, in alphabetical order."""
    found: list[str] = []
    for start in range(0, len(texts), STEP):
        found += [text for text in texts[start : start + STEP] if matches(text)]
        if len(found) >= most:
            break
        yield
    return sorted(found[:most])


def domains_on(nodes: Sequence[Node], keys: Sequence[str]) -> Steps[list[str]]:
    """Return the domains of some *keys* that nodes are in, as ``KEY=VALUE``."""
    domains = set[str]()
    for number, node in enumerate(nodes):
        if not number % STEP:
            yield
        domains.update(f"{key}={node.labels[key]}" for key in keys if key in node.labels)
    yield
    return sorted(domains)
