# SPDX-License-Identifier: Apache-2.0

"""Labels of pods: they are read if a Service asks for them, and then all pods are listed once more."""

from __future__ import annotations

import pickle

import pytest

from locator.api.decoding import RESOURCES, with_pod_labels
from locator.api.deltas import DeltaBatch, Put, Replace
from locator.api.list_watch import ListWatch
from locator.cluster.dumps.reading import Dump, Input, read_inputs
from locator.cluster.dumps.worker import read_packed, unpacked
from locator.model import ClientPod, Pod, labels_of
from tests.kit.api_answers import INITIAL_END, bookmark, error, line, page
from tests.kit.api_objects import ZONE, Item, listed, pod, service

APP = frozenset(("app",))
OF_WEB = {"topodns.io/max-overload": "1.5", "topodns.io/clients": "shop/app=web"}


def known(name: str, version: int = 1, **labels: str) -> Item:
    made = pod(name, ["10.0.0.1"], "n0", labels=labels)
    made["metadata"]["resourceVersion"] = str(version)
    return made


def listing(*, streaming: bool) -> ListWatch:
    return ListWatch(Pod, RESOURCES[Pod], chance=lambda: 0.0, streaming=streaming)


def read(machine: ListWatch) -> DeltaBatch:
    """Let a ListWatch list two pods by the request that it asks for next."""
    pods, ask = (known("a", 2, app="web", tier="x"), known("b", 3)), machine.next_request()
    assert "resourceVersion" not in ask.query and "continue" not in ask.query, "a list from its beginning"
    if not ask.watch:
        return machine.page(page(*pods, version=9))
    machine.begun()
    return machine.lines([*(line("ADDED", item) for item in pods), bookmark(9, INITIAL_END)])


def rows(batch: DeltaBatch) -> dict[str, dict[str, str]]:
    """Return the labels of the pods of a list, or of one that changed."""
    (delta,) = batch.deltas
    pods = delta.objects if isinstance(delta, Replace) else [delta.object] if isinstance(delta, Put) else []
    assert all((type(item) is ClientPod) == bool(labels_of(item)) for item in pods), "others take no room for labels"
    return {item.name: labels_of(item) for item in pods}


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "in-pages"])
def test_pods_are_listed_once_more_with_labels(streaming: bool) -> None:
    """At once, in the same way, and nothing counts as failed; the watch goes on with them."""
    machine = listing(streaming=streaming)
    first = read(machine)
    assert rows(first) == {"a": {}, "b": {}} and first.deltas[0].labels == frozenset()  # type: ignore[union-attr]
    machine.read_with(with_pod_labels(APP)[Pod])
    assert (machine.pause, machine.problem, machine.restart_reason, machine.listed) == (0.0, "", "", True)
    again = read(machine)
    assert rows(again) == {"a": {"app": "web"}, "b": {}} and again.deltas[0].labels == APP  # type: ignore[union-attr]
    if not streaming:
        machine.next_request()
    assert rows(machine.lines([line("MODIFIED", known("b", 10, app="batch"))])) == {"b": {"app": "batch"}}


def test_labels_are_asked_for_in_the_middle_of_a_list() -> None:
    """What was read without them is forgotten, and so is the token of the next page."""
    machine = listing(streaming=False)
    machine.next_request()
    assert not machine.page(page(known("gone"), version=5, more="token"))
    machine.read_with(with_pod_labels(APP)[Pod])
    assert rows(read(machine)) == {"a": {"app": "web"}, "b": {}}


def test_labels_are_read_after_every_failure() -> None:
    """An expired version, and whatever else makes the list begin again, forgets no label."""
    machine = listing(streaming=True)
    read(machine)
    machine.read_with(with_pod_labels(APP)[Pod])
    read(machine)
    machine.lines([error(410)])
    machine.ended(1.0)
    assert rows(read(machine)) == {"a": {"app": "web"}, "b": {}}


def dumped(*annotations: dict[str, str]) -> Dump:
    """Return a dump with two pods, and with Services that have these annotations."""
    services = [service(f"s{at}", keys=f"{ZONE},*", annotations=said) for at, said in enumerate(annotations)]
    text = listed([known("a", app="web", tier="x"), known("b"), *services])
    return read_inputs([Input("cluster.json", text.encode())])


def of_pods(dump: Dump) -> dict[str, dict[str, str]]:
    return {item.name: labels_of(item) for item in dump.objects if isinstance(item, Pod)}


@pytest.mark.parametrize(
    ("annotations", "labels"),
    [
        ([], {}),
        ([{"topodns.io/clients": "shop/app=web"}], {"app": "web"}),
        ([{**OF_WEB, "topodns.io/max-overload": "99"}], {"app": "web"}),
        ([{"topodns.io/max-overload": "1.5"}], {}),
        ([OF_WEB], {"app": "web"}),
        ([OF_WEB, {**OF_WEB, "topodns.io/clients": "lab/!tier"}], {"app": "web", "tier": "x"}),
    ],
    ids=["no-service", "without-overload", "invalid", "everybody", "one", "several"],
)
def test_a_dump_has_the_labels_that_its_services_ask_for(
    annotations: list[dict[str, str]], labels: dict[str, str]
) -> None:
    """And says so, though a dump of other files may have none with them. To balance a Service may be tried yet."""
    dump = dumped(*annotations)
    assert of_pods(dump) == {"a": labels, "b": {}}
    assert [delta.labels for delta in dump.batch().deltas if isinstance(delta, Replace) and delta.kind is Pod] == [
        frozenset(labels)
    ]


def test_labels_pass_through_the_process_that_reads_dumps() -> None:
    text = listed([known("a", app="web"), known("b"), service("s", keys=ZONE, annotations=OF_WEB)])
    dump = unpacked(read_packed(pickle.dumps([Input("cluster.json", text.encode())])))
    assert {item.name: labels_of(item) for item in dump.objects if isinstance(item, Pod)} == {
        "a": {"app": "web"},
        "b": {},
    }
    assert dump.labels == APP
