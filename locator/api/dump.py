"""The text of a dump to objects: YAML or JSON, single objects, lists, streams of documents.

YAML becomes JSON first, so that one decoder reads both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import yaml
from msgspec import Raw, Struct, field

from locator.api.decoding import RESOURCES_BY_GROUP_KIND, decode_untrusted, error_words
from locator.finding_codes import ClusterCode
from locator.model import Finding, Object

# Blocks of kubectl's YAML that nobody reads, two thirds of a pod. A block is its key and all
# lines indented deeper; labels hold no blocks, so no label can be mistaken for one.
_SKIMMED = re.compile(
    rb"^( *)(?:managedFields|ownerReferences|containers|initContainers|ephemeralContainers|volumes|tolerations"
    rb"|affinity|securityContext|hostIPs|containerStatuses|initContainerStatuses|images|volumesInUse|volumesAttached"
    rb"|conditions(?=:\r?\n *-)):\r?\n(?:\1(?: .*|- .*)\r?\n|\r?\n)*",
    re.MULTILINE,
)
# A list as kubectl writes it. Its items begin at the margin, so that it can be cut between them:
# many small trees are made faster than a large one, in a fraction of the memory. And what stands
# four spaces deep is of metadata, spec or status, never a label.
_LIST = re.compile(rb"apiVersion: v1\nitems:\n(?=- )")
_ITEM = re.compile(rb"^- ", re.MULTILINE)
_LIST_END = re.compile(rb"^[^- \n]", re.MULTILINE)
_LIST_SKIMMED = re.compile(
    rb"^    (?:uid|resourceVersion|generateName|dnsPolicy|enableServiceLinks|preemptionPolicy|restartPolicy"
    rb"|schedulerName|serviceAccount|serviceAccountName|terminationGracePeriodSeconds|hostIP|qosClass|startTime): .*\n",
    re.MULTILINE,
)
CHUNK = 50  # items composed at a time
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_PLAIN: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class NotADump(ValueError):
    """A text that holds no Kubernetes objects: says where, what was found, and what was expected."""


class NotJSON(ValueError):
    """A document that is no JSON, or no Kubernetes object or list of them."""


class MalformedJSON(NotJSON):
    """A document that is not even JSON, or more than one."""


class _Typed(Struct):
    """What every object and every list has in common."""

    kind: str | None = None
    api_version: str | None = field(name="apiVersion", default=None)


class _Envelope(_Typed):
    items: list[Raw] | None = None


def objects(data: bytes, *, only_json: bool = False) -> Iterator[Object | Finding]:
    """Yield the objects of a text, with what is wrong in them. Raises ``NotADump``.

    *only_json* says that a text which begins like JSON is nothing else.
    """
    documents = 0
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            try:
                yield from decode(data)
                return
            except MalformedJSON:  # said before the first object: not one document of JSON
                pass
        for document, first in _documents(data, only_json=only_json):
            documents += 1
            yield from decode(document, first=first)
    except NotJSON as error:
        raise NotADump(f"document {documents or 1}: {error}") from None
    except RecursionError:
        raise NotADump("nested too deeply") from None
    if not documents:  # such as a file that kubectl is about to write into
        raise NotADump("nothing in it, expected Kubernetes objects")


def decode(document: bytes, *, first: int = 0) -> Iterator[Object | Finding]:
    """Yield the objects of one JSON document, a single object or a list, with what is wrong in them.

    Kinds that nobody reads are passed over. *first* is the number of a list's first item, for
    findings. Raises ``NotJSON`` if the document is none, before it yields anything.
    """
    try:
        envelope = msgspec.json.decode(document, type=_Envelope)
    except msgspec.ValidationError as error:
        raise NotJSON(f"{error_words(error)[0]} in what should be a Kubernetes object or list") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedJSON(f"JSON is malformed ({error})") from None
    if envelope.kind is None:
        raise NotJSON("no kind: this is no Kubernetes object or list")
    if envelope.items is None or not envelope.kind.endswith("List"):
        yield from _object(document, "", envelope.kind, envelope.api_version)
        return
    listed = envelope.kind.removesuffix("List")
    for position, item in enumerate(envelope.items, first):
        yield from _object(item, f"items[{position}]", listed, envelope.api_version)


def _object(raw: Raw | bytes, where: str, listed: str, api_version: str | None) -> Iterator[Object | Finding]:
    """Yield one object; *listed* and *api_version* are what the list around it says."""
    try:
        envelope = msgspec.json.decode(raw, type=_Typed)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        message, path = error_words(error)
        message = f"unreadable object: {message}"
        yield ClusterCode.UnreadableObject.finding(listed or "object", "", where, field=path, message=message)
        return
    kind = envelope.kind or listed
    if not kind:
        yield ClusterCode.UnreadableObject.finding(
            "object", "", where, field="kind", message="object without a kind", expected="such as Service"
        )
        return
    group, slash, _ = (envelope.api_version or api_version or "v1").partition("/")
    reader = RESOURCES_BY_GROUP_KIND.get((group if slash else "", kind))
    if reader is None:
        return
    decoded = decode_untrusted(reader, raw, where)
    yield from decoded.findings
    if decoded.built is not None:
        yield decoded.built


def _documents(data: bytes, *, only_json: bool) -> list[tuple[bytes, int]]:
    """Return each document of a text as JSON, with the number of its first item in the list it is cut from."""
    if data.lstrip()[:1] in (b"{", b"["):
        return [(document, 0) for document in _flow(data, only_json=only_json)]
    try:
        return [
            (msgspec.json.encode(document), first)
            for part, first in _parts(_SKIMMED.sub(b"", data))
            for document in _yaml_documents(part)
            if document is not None
        ]
    except (yaml.YAMLError, ValueError, RecursionError):  # what was left out may be the reason, and moved the lines
        return [(msgspec.json.encode(document), 0) for document in _whole_yaml(data) if document is not None]


def _parts(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Cut a list as kubectl writes it into lists of some items each; anything else stays whole."""
    head = _LIST.match(data)
    end = _LIST_END.search(data, head.end()) if head is not None else None
    if head is None or end is None or not data.startswith(b"kind: List\n", end.start()) or b"\n---" in data:
        yield data, 0
        return
    items = _LIST_SKIMMED.sub(b"", data[head.end() : end.start()])
    starts = [match.start() for match in _ITEM.finditer(items)][::CHUNK]
    for number, (start, stop) in enumerate(pairwise((*starts, len(items)))):
        yield b"kind: List\nitems:\n" + items[start:stop], number * CHUNK


def _flow(data: bytes, *, only_json: bool) -> list[bytes]:
    """Return the documents of what begins with a brace: concatenated JSON, or YAML's flow style."""
    documents, position = [], 0
    try:
        text, decoder = data.decode().rstrip(), json.JSONDecoder()
        while position < len(text):
            start = position + len(text[position:]) - len(text[position:].lstrip())
            _, position = decoder.raw_decode(text, start)
            documents.append(text[start:position].encode())
    except UnicodeDecodeError as error:
        raise NotADump(f"byte {error.start}: no UTF-8, expected JSON or YAML") from None
    except json.JSONDecodeError as error:
        if only_json:
            raise NotADump(f"line {error.lineno}: {error.msg}, expected JSON") from None
        return [msgspec.json.encode(document) for document in _whole_yaml(data)]
    return documents


def _whole_yaml(data: bytes) -> list[Any]:
    try:
        return list(_yaml_documents(data))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise NotADump(f"{line}{error.problem or error.context}, expected YAML") from None
    except yaml.reader.ReaderError as error:
        raise NotADump(f"byte {error.position}: {error.reason}, expected YAML") from None
    except (yaml.YAMLError, ValueError) as error:
        raise NotADump(f"{error}, expected YAML") from None


_UNQUOTED: Any = object()


class _Loader(yaml.CBaseLoader):  # libyaml's; PyYAML's wheels always have it
    """Composes documents, and notes of each scalar only whether it stood without quotes."""

    def resolve(self, kind: type[Any], value: Any, implicit: Any) -> Any:
        """Return the tag of a node that states none; *implicit* is true first for a scalar without quotes."""
        return _UNQUOTED if kind is yaml.ScalarNode and implicit[0] else None


def _yaml_documents(data: bytes) -> Iterator[Any]:
    return map(_plain, yaml.compose_all(data, Loader=_Loader))


def _plain(node: Any) -> Any:
    """Return a composed node as JSON's types (YAML 1.2's core schema, with fractions left as text)."""
    if node.__class__ is yaml.ScalarNode:
        value: str = node.value
        if node.tag is _UNQUOTED:
            if value in _PLAIN:
                return _PLAIN[value]
            if _INTEGER.fullmatch(value):
                return int(value)
        return value
    if node.__class__ is yaml.MappingNode:
        return {str(key.value): _plain(value) for key, value in node.value}
    return [_plain(each) for each in node.value]
