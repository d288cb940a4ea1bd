# SPDX-License-Identifier: Apache-2.0

"""A model of an API server and a ListWatch: after any faults, the view becomes the cluster (without I/O)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from locator.api.decoding import RESOURCES
from locator.api.deltas import DeltaBatch, Put, Replace
from locator.api.list_watch import CUT, ENDED, SILENT, UNREACHABLE, ListWatch, ListWatchRequest
from locator.model import Namespace
from tests.kit.api_answers import INITIAL_END, bookmark, error, line, page, raw

NAMES = st.sampled_from("abcdefg")
LABELS = st.sampled_from(["1", "2", 5])  # a number makes the object unreadable
STREAMS, REFUSES, IGNORES = "streams lists", "refuses to", "ignores the wish"
# How long a watch lasted, and how it ended.
ENDINGS = st.tuples(st.sampled_from([0.1, 4.0, 200.0]), st.sampled_from([CUT, SILENT, ENDED]))
SMALL = 2  # objects on a page, whatever is asked for, so that there are many pages


class Server:
    """An API server: objects, the events that made them, and the oldest version whose events it remembers."""

    def __init__(self, streaming: str) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 1
        self.compacted = 0
        self._streaming = streaming
        self._made = 0  # objects so far: a UID is never used again
        self.events: list[tuple[int, bytes]] = []
        self._pages: dict[str, tuple[int, list[dict[str, Any]]]] = {}  # by continue token: version, what is left

    def put(self, name: str, label: object) -> None:
        self.version += 1
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self._made += 1
        uid = self.objects[name]["metadata"]["uid"] if name in self.objects else str(self._made)
        self.objects[name] = raw(name, self.version, label, uid=uid)
        self.events.append((self.version, line(kind, self.objects[name])))

    def delete(self, name: str) -> None:
        if name in self.objects:
            self.version += 1
            gone = self.objects.pop(name)
            gone["metadata"]["resourceVersion"] = str(self.version)
            self.events.append((self.version, line("DELETED", gone)))

    def compact(self) -> None:
        self.compacted = self.version

    def rebuild(self, names: Sequence[str]) -> None:
        """Become another cluster, whose versions begin anew."""
        self.objects, self.version, self.compacted, self.events, self._pages = {}, 1, 0, [], {}
        for name in names:
            self.put(name, "1")

    def saved(self) -> Server:
        """Return a snapshot of etcd."""
        return deepcopy(self)

    def restore(self, saved: Server, *, overtake: bool) -> None:
        """Become what was *saved*. With *overtake*, other kinds change until the version is newer than before.

        Not if objects of this kind were deleted since: not everything that is there again can be noticed.
        """
        version, deleted = self.version, any(b"DELETED" in event for _, event in self.since(saved.version))
        self.objects, self.events = deepcopy(saved.objects), list(saved.events)
        self.version, self.compacted, self._pages = saved.version, saved.compacted, {}
        if overtake and not deleted:
            self.version = max(self.version, version + 1)

    def since(self, version: int) -> list[tuple[int, bytes]]:
        return [event for event in self.events if event[0] > version]

    def page(self, ask: ListWatchRequest) -> bytes | int:
        if ask.check:
            name = ask.query.get("fieldSelector", "").removeprefix("metadata.name=") or min(self.objects, default="")
            return page(*(self.objects[each] for each in self.objects if each == name), version=self.version)
        token = ask.query.get("continue")
        if token is None:
            version, items = self.version, [self.objects[name] for name in sorted(self.objects)]
        else:
            if token not in self._pages:
                return 504
            version, items = self._pages[token]
            if version < self.compacted:
                return 410
        size = SMALL * int(ask.query.get("limit", 500_000)) // 500
        more = ""
        if len(items) > size:
            more = str(len(self._pages))
            self._pages[more] = (version, items[size:])
        return page(*items[:size], version=version, more=more)

    def watch(self, ask: ListWatchRequest) -> tuple[list[bytes], int] | int:
        """Return the events that are sent at once, and the version after which events follow; or a status."""
        if "sendInitialEvents" in ask.query:
            if self._streaming == REFUSES:
                return 422
            initial = [line("ADDED", self.objects[name]) for name in sorted(self.objects)]
            end = INITIAL_END if self._streaming == STREAMS else None
            return [*initial, bookmark(self.version, end)], self.version
        version = int(ask.query["resourceVersion"])
        if version < self.compacted:
            return 410
        return [], version


class Model(RuleBasedStateMachine):
    """A server, faults of the server and of the network, and a ListWatch that follows it."""

    @initialize(streaming=st.sampled_from([STREAMS, REFUSES, IGNORES]), names=st.sets(NAMES), started=st.booleans())
    def start(self, streaming: str, names: set[str], started: bool) -> None:
        self.server = Server(streaming)
        for name in sorted(names):
            self.server.put(name, "1")
        self.machine = ListWatch(Namespace, RESOURCES[Namespace], chance=lambda: 0.5)
        self.view: dict[str, Namespace] = {}
        self.wrong: set[str] = set()
        self.coming: list[bytes] | None = None  # lines on their way, of the watch that is under way
        self.position = 0  # the version up to which the server has sent events
        if started:
            self.settle()

    # The cluster changes.

    @rule(name=NAMES, label=LABELS)
    def put(self, name: str, label: object) -> None:
        self.server.put(name, label)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.server.delete(name)

    @rule()
    def compact(self) -> None:
        self.server.compact()

    @rule(names=st.lists(NAMES, max_size=12), ending=ENDINGS)
    def rebuild(self, names: list[str], ending: tuple[float, str]) -> None:
        self.server.rebuild(names)
        self.reconnect(*ending)

    @rule(changes=st.lists(st.tuples(NAMES, LABELS | st.none()), max_size=5), ending=ENDINGS, overtake=st.booleans())
    def go_back(self, changes: list[tuple[str, object]], ending: tuple[float, str], overtake: bool) -> None:
        """Restore etcd from a snapshot after some changes, of which at most some have arrived."""
        saved = self.server.saved()
        for name, label in changes:
            if label is None:
                self.server.delete(name)
            else:
                self.server.put(name, label)
        if self.coming is not None:
            self.send()
            self.take_in(len(self.coming))
        self.server.restore(saved, overtake=overtake)
        self.reconnect(*ending)

    def reconnect(self, lasted: float, reason: str) -> None:
        """Let all connections end, in any way, and the ListWatch come back before anything changes."""
        if self.coming is not None:
            self.over(lasted, reason)
        elif self.machine.next_request().watch:
            self.machine.ended(0.0, UNREACHABLE, "no answer")
        while (ask := self.machine.next_request()).check:
            self.taken(self.server.page(ask))
        self.settle()  # without another fault, by which a new list might come
        self.compare()

    # We follow.

    @rule()
    def step(self) -> None:
        """Send the next request if none is open; otherwise pass on all that has arrived."""
        if self.coming is None:
            self.ask()
        else:
            self.send()
            self.take_in(len(self.coming))

    @rule(count=st.integers(0, 3))
    def take_in_some(self, count: int) -> None:
        if self.coming is not None:
            self.send()
            self.take_in(count)

    # Faults on the way.

    @precondition(lambda self: self.coming is not None)
    @rule(count=st.integers(0, 3), ending=ENDINGS)
    def break_off(self, count: int, ending: tuple[float, str]) -> None:
        """Some lines arrive; the next is cut in two, and the rest never arrives."""
        self.send()
        self.take_in(count)
        self.over(*ending)

    @precondition(lambda self: self.coming is None)
    @rule(status=st.sampled_from([401, 403, 429, 500, 503, 504]))
    def refuse(self, status: int) -> None:
        self.machine.next_request()
        self.apply(self.machine.refused(status, "no", 1.0))

    @precondition(lambda self: self.coming is None)
    @rule(reason=st.sampled_from([UNREACHABLE, SILENT]))
    def hold_off(self, reason: str) -> None:
        self.machine.next_request()
        self.machine.ended(0.0, reason, "no answer")

    @rule(name=NAMES)
    def delete_what_is_forgotten(self, name: str) -> None:
        self.server.delete(name)
        self.server.compact()

    @precondition(lambda self: self.coming is None)
    @rule()
    def garble_page(self) -> None:
        ask = self.machine.next_request()
        if ask.watch:
            self.machine.ended(0.0, UNREACHABLE, "no answer")
            return
        answer = self.server.page(ask)
        self.taken(answer[: len(answer) // 2] if isinstance(answer, bytes) else answer)

    @precondition(lambda self: self.coming is not None)
    @rule(what=st.sampled_from([error(410), error(500), b"upstream connect error", b'{"type":"ADDED","object":{"me']))
    def disturb(self, what: bytes) -> None:
        assert self.coming is not None
        self.coming.append(what)

    @precondition(lambda self: self.coming)
    @rule()
    def repeat(self) -> None:
        """The same lines arrive again, in the same order."""
        assert self.coming is not None
        self.coming += self.coming

    @precondition(lambda self: self.coming is not None)
    @rule()
    def send_bookmark(self) -> None:
        self.send()
        assert self.coming is not None
        self.coming.append(bookmark(self.position))

    # How it is done.

    def ask(self) -> None:
        ask = self.machine.next_request()
        if not ask.watch:
            self.taken(self.server.page(ask))
            return
        answer = self.server.watch(ask)
        if isinstance(answer, int):
            self.taken(answer)
            return
        self.machine.begun()
        self.coming, self.position = answer

    def taken(self, answer: bytes | int) -> None:
        """Pass on a page or a refusal."""
        if isinstance(answer, int):
            self.apply(self.machine.refused(answer, "no"))
            return
        self.apply(self.machine.page(answer))
        if self.machine.over:
            self.machine.ended(0.0)

    def send(self) -> None:
        """The server sends the events since then, except for those that it has compacted."""
        assert self.coming is not None
        if self.position < self.server.compacted:
            self.coming.append(error(410))
        else:
            self.coming += [event for _, event in self.server.since(self.position)]
        self.position = self.server.version

    def take_in(self, count: int) -> None:
        assert self.coming is not None
        batch, self.coming = self.coming[:count], self.coming[count:]
        self.apply(self.machine.lines(batch))
        if self.machine.over:
            self.over(1.0, ENDED)

    def over(self, lived: float, reason: str) -> None:
        if self.coming is not None:
            self.machine.ended(lived, reason, "why")
            self.coming = None

    def apply(self, news: DeltaBatch) -> None:
        for change in news.deltas:
            if isinstance(change, Replace):
                self.view = {obj.key: obj for obj in change.objects}
            elif isinstance(change, Put):
                self.view[change.object.key] = change.object
            else:
                self.view.pop(change.key, None)
        for place, found in news.findings.items():
            (self.wrong.add if found else self.wrong.discard)(place.split(" ")[1])

    def settle(self) -> None:
        """Without further faults, everything arrives that is on its way, and one more round."""
        for _ in range(30):  # steps: the longest way is three refusals and seven pages
            self.step()
            if self.coming is not None:
                self.send_bookmark()  # API servers send one a minute
                self.take_in(len(self.coming))

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        self.settle()
        self.compare()

    def compare(self) -> None:
        """The view has what the server has, and changes will arrive."""
        labels = {name: item["metadata"]["labels"]["v"] for name, item in self.server.objects.items()}
        readable = {name: label for name, label in labels.items() if isinstance(label, str)}
        assert {name: obj.labels["v"] for name, obj in self.view.items()} == readable
        assert self.wrong == set(labels) - set(readable)
        assert self.machine.listed
        assert not self.machine.problem
        assert self.coming is not None, "watching"


def test_the_view_becomes_the_cluster() -> None:
    """After any sequence of changes and faults, once the faults have ended."""
    run_state_machine_as_test(Model, settings=settings(max_examples=100, stateful_step_count=40))
