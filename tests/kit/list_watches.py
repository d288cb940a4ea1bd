# SPDX-License-Identifier: Apache-2.0

"""A ListWatch of Namespaces, and what a test does with it again and again."""

from __future__ import annotations

from collections.abc import Callable

from locator.api.decoding import RESOURCES, Resource
from locator.api.deltas import DeltaBatch, Replace
from locator.api.list_watch import ListWatch, ListWatchRequest
from locator.model import Namespace
from tests.kit.api_answers import Raw, page, raw

RESOURCE = RESOURCES[Namespace]


def kind(name: str, label: str = "1") -> Namespace:
    return Namespace(name, {"v": label})


def listwatch(
    resource: Resource = RESOURCE, *, streaming: bool = True, chance: Callable[[], float] = lambda: 0.0
) -> ListWatch:
    return ListWatch(Namespace, resource, chance=chance, streaming=streaming)


def watching(resource: Resource = RESOURCE) -> ListWatch:
    """Return a ListWatch that has listed the namespace ``a`` at version 10 and has a watch open."""
    machine = listwatch(resource, streaming=False)
    machine.next_request()
    machine.page(page(raw("a", 5), version=10))
    machine.next_request()
    machine.begun()
    return machine


def checked(machine: ListWatch, found: Raw | None = None) -> ListWatchRequest:
    """Answer the check that comes before a new watch: *found* is as it was; return the next request."""
    found, ask = found or raw("a", 5), machine.next_request()
    assert (ask.path, ask.query) == (RESOURCE.path, {"fieldSelector": f"metadata.name={found['metadata']['name']}"})
    assert ask.check and not ask.watch
    assert not machine.page(page(found, version=1_000))
    return machine.next_request()


def changes(news: DeltaBatch) -> list[object]:
    return list(news.deltas)


def replaced(*objects: Namespace) -> list[object]:
    return [Replace(Namespace, list(objects))]


def fails_and_asks_again(machine: ListWatch, fault: int | str) -> None:
    """Let a request fail by an HTTP status, or by what cut it off: after a pause, the same one comes again."""
    ask = machine.next_request()
    if isinstance(fault, int):
        machine.refused(fault, "no")
    else:
        machine.ended(0, fault, "no")
    assert machine.pause >= 0.8
    assert machine.problem == "no"
    assert machine.next_request() == ask
