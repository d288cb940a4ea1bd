# SPDX-License-Identifier: Apache-2.0

"""Reads the objects of a dump: YAML or JSON; single objects, lists, or streams of documents.

YAML is converted to JSON first, so that one decoder reads both. Each object has the line on which it begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from locator.api import dump_text, yaml_text
from locator.api.decoding import RESOURCES_BY_GROUP_KIND, ByGroupKind, decode_untrusted, error_words
from locator.api.dump_text import COMMAND, NotADump
from locator.api.yaml_text import NotYAML
from locator.findings import ClusterCode
from locator.model import WARNING, Finding, Object

OBJECT = "a Kubernetes object or list, as 'kubectl get ... -o yaml' or '-o json' prints it"
EXPECTED = f"expected {OBJECT}"
CUT_OFF = f"cut off: the text ends inside of it, expected all that kubectl prints; {COMMAND} prints it again"
_JSON_STARTS = (b"{", b"[")
# A string, with the colon that makes it a key, or where a mapping begins or ends.
_TOKEN = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")(\s*:)?|[{}]', re.DOTALL)
_BETWEEN_ITEMS = re.compile(rb"[\[,\s]*")
_BETWEEN_DOCUMENTS = re.compile(r"\s*")
ENOUGH = 1000  # octets by which the items of a list are found in its text


class NotAnObject(NotADump):
    """A document is YAML or JSON, but no Kubernetes object or list, as in many files that lie beside a dump."""

    def __init__(self, found: str, expected: str = OBJECT) -> None:
        super().__init__(f"{found}, expected {expected}")
        self.skipped = Skipped(found, expected)


class Skipped(NamedTuple):
    """Why a document, or a file, was not read: what was found, and what was expected, empty if nothing is missing."""

    found: str
    expected: str = ""


class ReadCounts(NamedTuple):
    """How much was read: files, and objects by the name of their kind. ``unread`` are objects of other kinds.

    ``passed_over`` is the number of files of which nothing was read. ``large_yaml`` are the octets in large files of
    YAML, which would be read faster as JSON.
    """

    files: int = 0
    objects: Mapping[str, int] = {}
    unread: Mapping[str, int] = {}
    passed_over: int = 0
    large_yaml: int = 0


class _NotJSON(ValueError):
    """The text is not one JSON document."""


class OtherKind(NamedTuple):
    """An object of a kind that topodns does not read."""

    group: str
    kind: str


class ListOf(NamedTuple):
    """A list of one kind, such as a NodeList: if it is empty, there are no such objects."""

    kind: str


class DumpEntry(NamedTuple):
    """What is on a line of a dump, counted from 1."""

    line: int
    item: Object | Finding | OtherKind | ListOf | Skipped


class _Document(NamedTuple):
    """A document as JSON, which begins on ``line``. ``is_checked``: no key stands twice in one mapping.

    ``typed`` is None if the text is not decoded yet.
    """

    text: bytes
    line: int
    is_checked: bool = False
    typed: _Typed | None = None


class _Typed(Struct):
    """What all objects and lists have in common. ``items`` is empty where there are none."""

    kind: str | None = None
    api_version: str | None = field(name="apiVersion", default=None)
    items: Raw = Raw(b"")


# Created on import: msgspec 0.22 crashes if two threads create a decoder at once.
_TYPED, _ITEMS = msgspec.json.Decoder(_Typed), msgspec.json.Decoder(list[Raw] | None)


def entries(
    data: bytes,
    *,
    file: str = "",
    only_json: bool = False,
    among_others: bool = False,
    resources: ByGroupKind = RESOURCES_BY_GROUP_KIND,
) -> Iterator[DumpEntry]:
    """Yield what is in a dump, in order. Raises ``NotADump``.

    *file* is named in commands. With *only_json*, a text that starts like JSON is never tried as YAML. *among_others*:
    the file lies in a folder, where a document that is no Kubernetes object is skipped. *resources* says how each kind
    is read.
    """
    text = dump_text.text_of(data, file)
    among_others = among_others and not dump_text.other_text(text)
    try:
        try:
            documents = _documents(text, only_json=only_json)
        except NotADump:
            found = dump_text.cleaned(text, file)
            if found is None:
                raise
            documents = _documents(found.text, only_json=only_json)
            finding = _unreadable("", "", "", f"{found.message}; the rest of each value is read", found.expected)
            yield DumpEntry(found.line, replace(finding, line=found.line, severity=WARNING))
        if not documents and among_others and text.strip():
            yield DumpEntry(1, Skipped("nothing but comments", OBJECT))
        elif not documents:  # such as the file of a kubectl that has just been started
            raise NotADump(f"empty, expected Kubernetes objects; {COMMAND} prints them")
        for number, document in enumerate(documents, 1):
            try:
                yield from _entries(document, resources)
            except NotAnObject as error:
                if not among_others:
                    raise NotADump(f"document {number}: {error}") from None
                yield DumpEntry(document.line, error.skipped)
    except NotADump as error:
        if what := dump_text.other_text(text):
            raise NotADump(f"{what}, {EXPECTED}; {COMMAND} prints a dump") from None
        raise error from None
    except RecursionError:
        raise NotADump("nested too deeply") from None


def _entries(document: _Document, resources: ByGroupKind) -> Iterator[DumpEntry]:
    """Yield what is in a document, a single object or a list.

    Raises ``NotADump``; ``NotAnObject`` before it yields anything.
    """
    try:
        typed = document.typed or _TYPED.decode(document.text)
    except msgspec.ValidationError as error:
        found, _, expected = error_words(error)[0].partition(", expected ")
        if expected != "object":
            raise NotAnObject(found, f"{expected} in a Kubernetes object or list") from None
        if not _is_array_of_objects(document.text):
            raise NotAnObject(found.replace("str", "text").replace("array", "a list")) from None
        typed = _Typed("List", items=Raw(document.text))  # as 'jq .items' prints it
    if typed.kind is None and typed.api_version is not None:  # kubectl prints the apiVersion first, and the kind last
        raise NotADump(CUT_OFF if bytes(typed.items) else f"no kind, {EXPECTED}; is it cut off?")
    if typed.kind is None:
        raise NotAnObject("no kind")
    walk = _Walk(resources, is_checked=document.is_checked)
    yield from walk.object(document.text, typed, document.line, "", "", None)


def _is_array_of_objects(text: bytes) -> bool:
    try:
        items = _ITEMS.decode(text)
        return bool(items) and _TYPED.decode(items[0]).kind is not None
    except msgspec.ValidationError:
        return False


class _Walk:
    """Reads the objects of one document."""

    def __init__(self, resources: ByGroupKind, *, is_checked: bool) -> None:
        self._resources = resources
        self._is_checked = is_checked

    def object(
        self, text: bytes, typed: _Typed, line: int, where: str, list_kind: str, list_version: str | None
    ) -> Iterator[DumpEntry]:
        """Yield an object, or the objects of a list; *list_kind* and *list_version* count if it states none itself."""
        kind, version = typed.kind or list_kind, typed.api_version or list_version
        if kind.endswith("List") and (inside := memoryview(typed.items)):
            yield from self._list(text, inside, line, where, kind.removesuffix("List"), version)
            return
        if not self._is_checked:
            check_keys(text, line)
        if not kind:
            message, expected = "object without a kind", "a kind such as Service"
            yield DumpEntry(line, _unreadable("object", where, "kind", message, expected))
            return
        group, slash, _ = (version or "v1").partition("/")
        resource = self._resources.get((group if slash else "", kind))
        if resource is None:
            yield DumpEntry(line, OtherKind(group if slash else "", kind))
            return
        decoded = decode_untrusted(resource, text, where)
        for finding in decoded.findings:
            yield DumpEntry(line, replace(finding, line=line))
        if decoded.built is not None:
            yield DumpEntry(line, decoded.built)

    def _list(
        self, text: bytes, inside: memoryview, line: int, where: str, kind: str, version: str | None
    ) -> Iterator[DumpEntry]:
        """Yield the objects of a list; *inside* is the text of its items."""
        position = text.find(bytes(inside[:ENOUGH]))
        if not self._is_checked and not _has_each_key_once(text[:position] + b"0" + text[position + len(inside) :]):
            check_keys(text, line)  # the keys of the list itself: those of its items are checked one by one
        if kind:
            yield DumpEntry(line, ListOf(kind))
        try:
            items = _ITEMS.decode(inside) or ()
        except msgspec.ValidationError as error:
            yield DumpEntry(line, _unreadable(f"{kind}List", where, "items", error_words(error)[0]))
            return
        counted = 0  # octets of the text whose lines are counted
        for number, item in enumerate(map(bytes, items)):
            between = _BETWEEN_ITEMS.match(text, position)
            assert between is not None  # it may be empty
            line, counted = line + text.count(b"\n", counted, between.end()), between.end()
            yield from self._item(item, line, f"{where}{'.' if where else ''}items[{number}]", kind, version)
            position = counted + len(item)

    def _item(self, item: bytes, line: int, where: str, list_kind: str, version: str | None) -> Iterator[DumpEntry]:
        try:
            typed = _TYPED.decode(item)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            message, path = error_words(error)
            yield DumpEntry(line, _unreadable(list_kind or "object", where, path, f"unreadable object: {message}"))
            return
        yield from self.object(item, typed, line, where, list_kind, version)


def check_keys(text: bytes, line: int) -> None:
    """Raise NotADump if a key stands twice in one mapping of a JSON text, which begins on *line*."""
    if _has_each_key_once(text):
        return
    open_mappings: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        if token[0] == b"{":
            open_mappings.append(set())
        elif token[0] == b"}":
            open_mappings.pop()
        elif token[2] is not None:
            key = json.loads(token[1])
            if key in open_mappings[-1]:
                line += text.count(b"\n", 0, token.start())
                raise NotADump(f"line {line}: {yaml_text.twice(key)}")
            open_mappings[-1].add(key)


def _has_each_key_once(text: bytes) -> bool:
    """Whether no key stands twice in one mapping of a JSON text. May say no without need, but does not take long."""
    # Written again, a text has fewer quotation marks if a key is lost. Only escaped ones might make up for that.
    try:
        return b"\\u0022" not in text and _quotes(msgspec.json.encode(msgspec.json.decode(text))) == _quotes(text)
    except msgspec.DecodeError:  # a number out of range, say
        return False


def _quotes(text: bytes) -> int:
    return text.count(b'"')


def _documents(text: bytes, *, only_json: bool) -> list[_Document]:
    """Return the documents of a dump as JSON. Raises NotADump."""
    start = text.lstrip()[:1]
    if start in _JSON_STARTS:
        line = text.count(b"\n", 0, text.index(start)) + 1
        try:
            if not text.isascii():
                text.decode()
            return [_Document(text.lstrip(), line, typed=_TYPED.decode(text))]
        except (msgspec.ValidationError, UnicodeDecodeError, msgspec.DecodeError):
            pass
        try:
            return _json_documents(text)
        except _NotJSON as error:
            if only_json:
                raise NotADump(f"{error}, expected JSON") from None
    try:
        return [_Document(document, line, is_checked=True) for document, line in yaml_text.documents(text)]
    except NotYAML as error:
        where = f"line {error.line}: " if error.line else ""
        if ", expected " in str(error):
            raise NotADump(f"{where}{error}") from None
        ends = "; the text ends here: is it cut off?" if error.line > text.rstrip().count(b"\n") else ""
        raise NotADump(f"{where}{error}, expected YAML{ends}") from None


def _json_documents(text: bytes) -> list[_Document]:
    """Return the documents of concatenated JSON. Raises _NotJSON, as for YAML in flow style, and NotADump."""
    documents, position, line = list[_Document](), 0, 1
    try:
        # Numbers stay text: Python refuses long ones.
        decoded, decoder = text.decode().rstrip(), json.JSONDecoder(parse_int=str)
    except UnicodeDecodeError as error:
        raise NotADump(f"byte {error.start}: not UTF-8, expected JSON or YAML") from None
    try:
        while position < len(decoded):
            start = _BETWEEN_DOCUMENTS.match(decoded, position).end()  # type: ignore[union-attr]  # it may be empty
            line += decoded.count("\n", position, start)
            _, position = decoder.raw_decode(decoded, start)
            documents.append(_checked(decoded[start:position].encode(), line))
            line += decoded.count("\n", start, position)
    except json.JSONDecodeError as error:
        if error.pos >= len(decoded) or error.msg.startswith("Unterminated string"):
            raise NotADump(f"line {error.lineno}: {CUT_OFF}") from None
        raise _NotJSON(f"line {error.lineno}: {error.msg}") from None
    return documents


def _checked(text: bytes, line: int) -> _Document:
    """Return one document. Raises _NotJSON for what Python takes for JSON, such as NaN."""
    try:
        return _Document(text, line, typed=_TYPED.decode(text))
    except msgspec.ValidationError:  # ``_entries`` says what it is
        return _Document(text, line)
    except msgspec.DecodeError as error:
        reason, _, position = str(error).removeprefix("JSON is malformed: ").partition(" (byte ")
        if position:
            line += text.count(b"\n", 0, int(position.rstrip(")")))
        raise _NotJSON(f"line {line}: {reason}") from None


def _unreadable(kind: str, name: str, path: str, message: str, expected: str = "") -> Finding:
    return ClusterCode.UnreadableObject.finding(kind, "", name, field=path, message=message, expected=expected)
