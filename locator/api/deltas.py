"""What a source tells of a cluster: changes, and what is wrong in which object.

An object that cannot be read is passed over: there is a finding, and it is as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct

from locator.api.decoding import Resource, decode_untrusted
from locator.model import Finding, Object, by_kind


class Replace(Struct, frozen=True):
    """All objects of a kind; whatever else was known of it is gone."""

    kind: type[Any]
    objects: Sequence[Any]


class Put(Struct, frozen=True):
    """One object, new or changed."""

    object: Any


class Drop(Struct, frozen=True):
    """One object that is gone, or cannot be read any more, by its key."""

    kind: type[Any]
    key: str


Delta = Replace | Put | Drop


class DeltaBatch(Struct, frozen=True):
    """What a source tells at once, in order: all of it is published together.

    ``findings`` are what is wrong from now on, by the place where it was found (``place_of``, say): empty where
    nothing is any more. ``triggered`` is when what the changed EndpointSlices were made from changed (RFC 3339).
    ``files`` are the files that objects stand in, by their places; None says nothing new. ``kept`` marks a view
    from an earlier run: it holds until the source itself has listed each kind.
    """

    changes: Sequence[Delta] = ()
    findings: Mapping[str, Sequence[Finding]] = {}
    triggered: Sequence[str] = ()
    files: Mapping[str, str] | None = None
    kept: bool = False

    def __bool__(self) -> bool:
        return bool(self.changes or self.findings)


def place_of(kind: str, namespace: str, name: str) -> str:
    """Return one object in words: ``Service shop/web``, ``Node a1``."""
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def replacements(objects: Iterable[Object]) -> list[Delta]:
    """Return what makes *objects* all there is, of every kind."""
    return [Replace(kind, of_kind) for kind, of_kind in by_kind(objects).items()]


class DeltaBuilder:
    """Turns raw objects of one kind into news, so that whoever applies all of it holds what the cluster holds."""

    def __init__(self, kind: type[Any], resource: Resource) -> None:
        self.version = ""
        """The resourceVersion of the object that was read last, if it has one."""
        self._made = kind
        self._kind = resource
        self._listed: dict[str, Any] = {}  # by key, what a list has brought so far
        self._wrong: dict[str, Sequence[Finding]] = {}  # and what is wrong in it
        self._noted: set[str] = set()  # keys for which findings were told
        self._changes: list[Delta] = []
        self._findings: dict[str, Sequence[Finding]] = {}
        self._triggered: list[str] = []

    def forget_list(self) -> None:
        """A list begins, from the beginning."""
        self._listed, self._wrong = {}, {}

    def list_untrusted(self, raw: Raw, where: str = "", *, gone: bool = False) -> None:
        """Add one object to the list that is under way, or take it away again; *where* names a nameless one."""
        one = decode_untrusted(self._kind, raw, where)
        self.version = one.version
        self._listed.pop(one.key, None)
        self._wrong.pop(one.key, None)
        if gone:
            return
        if one.built is not None:
            self._listed[one.key] = one.built
        if one.findings:
            self._wrong[one.key] = one.findings

    def end_list(self) -> None:
        """The list is whole."""
        self._changes.append(Replace(self._made, list(self._listed.values())))
        self._findings |= {key: () for key in self._noted if key not in self._wrong} | self._wrong
        self._noted = set(self._wrong)
        self.forget_list()

    def change_untrusted(self, raw: Raw, *, gone: bool = False) -> None:
        """Tell that one object is new or changed, or *gone*."""
        one = decode_untrusted(self._kind, raw)
        self.version = one.version
        if one.built is not None and not gone:
            self._changes.append(Put(one.built))
            if one.triggered:
                self._triggered.append(one.triggered)
        elif one.name:
            self._changes.append(Drop(self._made, one.key))
        if one.findings and not gone:
            self._noted.add(one.key)
            self._findings[one.key] = one.findings
        elif one.key in self._noted:
            self._noted.discard(one.key)
            self._findings[one.key] = ()

    def news(self) -> DeltaBatch:
        """Return what is to be told since this was asked last."""
        findings = {f"{self._made.__name__} {key}": found for key, found in self._findings.items()}
        news = DeltaBatch(self._changes, findings, self._triggered)
        self._changes, self._findings, self._triggered = [], {}, []
        return news
