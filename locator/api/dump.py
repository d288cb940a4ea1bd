"""Reads the objects of a dump: YAML or JSON; single objects, lists, or streams of documents.

YAML is converted to JSON first, so that one decoder reads both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import yaml
from msgspec import Raw, Struct, field

from locator.api.decoding import RESOURCES_BY_GROUP_KIND, ByGroupKind, decode_untrusted, error_words
from locator.finding_codes import ClusterCode
from locator.model import ENDPOINTS, EndpointSlice, Finding, Object, Service

# Blocks of kubectl's YAML that topodns does not read, two thirds of a pod. A block is a key and all lines indented
# deeper. No label can be mistaken for one, since labels hold no blocks.
_UNREAD_BLOCKS = re.compile(
    rb"^( *)(?:managedFields|ownerReferences|containers|initContainers|ephemeralContainers|volumes|tolerations"
    rb"|affinity|securityContext|hostIPs|containerStatuses|initContainerStatuses|images|volumesInUse|volumesAttached"
    rb"|conditions(?=:\r?\n *-)):\r?\n(?:\1(?: .*|- .*)\r?\n|\r?\n)*",
    re.MULTILINE,
)
# A list as kubectl writes it. Its items start in the first column, so it can be cut between them: libyaml composes many
# small trees faster than a large one, in a fraction of the memory. A field indented by four spaces belongs to metadata,
# spec or status and is never a label.
_LIST = re.compile(rb"apiVersion: v1\nitems:\n(?=- )")
_ITEM = re.compile(rb"^- ", re.MULTILINE)
_LIST_END = re.compile(rb"^[^- \n]", re.MULTILINE)
_UNREAD_FIELDS = re.compile(
    rb"^    (?:uid|resourceVersion|generateName|dnsPolicy|enableServiceLinks|preemptionPolicy|restartPolicy"
    rb"|schedulerName|serviceAccount|serviceAccountName|terminationGracePeriodSeconds|hostIP|qosClass|startTime): .*\n",
    re.MULTILINE,
)
CHUNK = 50  # items that libyaml composes at a time
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_PLAIN: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


EXPECTED = "expected a Kubernetes object or list, as 'kubectl get ... -o yaml' or '-o json' prints it"
COMMAND = "'kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml'"  # what a dump is made by


class NotADump(ValueError):
    """The text is not a dump; the message says where, what was found and what was expected."""


class NotJSON(ValueError):
    """The document is not JSON, or not a Kubernetes object or list."""


class MalformedJSON(NotJSON):
    """The document is not JSON, or several JSON documents."""


class _Typed(Struct):
    """What all objects and lists have in common."""

    kind: str | None = None
    api_version: str | None = field(name="apiVersion", default=None)


class _Envelope(_Typed):
    items: list[Raw] | None = None


# Created on import, since threads share them: see ``decoding.RESOURCES``.
_TYPED, _ENVELOPES = msgspec.json.Decoder(_Typed), msgspec.json.Decoder(_Envelope)


def objects(
    data: bytes, *, only_json: bool = False, resources: ByGroupKind = RESOURCES_BY_GROUP_KIND
) -> Iterator[Object | Finding]:
    """Yield the objects of a dump, and the findings about them. Raises ``NotADump``.

    With *only_json*, a text that starts like JSON is never tried as YAML. *resources* says how each kind is read.
    """
    documents = 0
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            try:
                yield from decode(data, resources=resources)
                return
            except MalformedJSON:  # raised before the first object, so nothing is yielded twice
                pass
        for document, first in _documents(data, only_json=only_json):
            documents += 1
            yield from decode(document, first=first, resources=resources)
    except NotJSON as error:
        raise NotADump(f"document {documents or 1}: {error}") from None
    except RecursionError:
        raise NotADump("nested too deeply") from None
    if not documents:  # such as the file of a kubectl that has just been started
        raise NotADump(f"empty, expected Kubernetes objects; {COMMAND} prints them")


def services_by_endpoints(objects: Iterable[Object]) -> set[str]:
    """Return the keys of the Services whose Endpoints count in a dump: those that have no EndpointSlice in it."""
    services, sliced = set[str](), set[str | None]()
    for item in objects:
        if isinstance(item, Service):
            services.add(item.key)
        elif isinstance(item, EndpointSlice) and item.kind != ENDPOINTS:
            sliced.add(item.service_key)
    return services - sliced


def decode(
    document: bytes, *, first: int = 0, resources: ByGroupKind = RESOURCES_BY_GROUP_KIND
) -> Iterator[Object | Finding]:
    """Yield the objects of one JSON document, a single object or a list, and the findings about them.

    Skips the kinds that topodns does not read. Findings number the items of a list from *first*. Raises ``NotJSON``,
    before it yields anything.
    """
    try:
        envelope = _ENVELOPES.decode(document)
    except msgspec.ValidationError as error:
        found, _, expected = error_words(error)[0].partition(", ")
        if expected == "expected object":  # the whole document is something else, such as the table that kubectl prints
            raise NotJSON(f"{found.replace('str', 'text').replace('array', 'a list')}, {EXPECTED}") from None
        raise NotJSON(f"{found}, {expected} in a Kubernetes object or list") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedJSON(f"JSON is malformed ({error})") from None
    if envelope.kind is None:
        raise NotJSON(f"no kind, {EXPECTED}")
    if envelope.items is None or not envelope.kind.endswith("List"):
        yield from _object(document, "", envelope.kind, envelope.api_version, resources)
        return
    list_kind = envelope.kind.removesuffix("List")
    for position, item in enumerate(envelope.items, first):
        yield from _object(item, f"items[{position}]", list_kind, envelope.api_version, resources)


def _object(
    raw: Raw | bytes, where: str, list_kind: str, api_version: str | None, resources: ByGroupKind
) -> Iterator[Object | Finding]:
    """Yield one object or its findings; *list_kind* and *api_version* are those of its list, if it states none."""
    try:
        envelope = _TYPED.decode(raw)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        message, path = error_words(error)
        message = f"unreadable object: {message}"
        yield ClusterCode.UnreadableObject.finding(list_kind or "object", "", where, field=path, message=message)
        return
    kind = envelope.kind or list_kind
    if not kind:
        yield ClusterCode.UnreadableObject.finding(
            "object", "", where, field="kind", message="object without a kind", expected="a kind such as Service"
        )
        return
    group, slash, _ = (envelope.api_version or api_version or "v1").partition("/")
    resource = resources.get((group if slash else "", kind))
    if resource is None:
        return
    decoded = decode_untrusted(resource, raw, where)
    yield from decoded.findings
    if decoded.built is not None:
        yield decoded.built


def _documents(data: bytes, *, only_json: bool) -> list[tuple[bytes, int]]:
    """Return the documents of a dump as JSON, each with the number of its first item in the list it is cut from."""
    if data.lstrip()[:1] in (b"{", b"["):
        return [(document, 0) for document in _json_documents(data, only_json=only_json)]
    try:
        return [
            (msgspec.json.encode(document), first)
            for part, first in _chunks(_UNREAD_BLOCKS.sub(b"", data))
            for document in _yaml_documents(part)
            if document is not None
        ]
    except (yaml.YAMLError, ValueError, RecursionError):  # leaving out blocks may be the cause, and moves lines
        return [(msgspec.json.encode(document), 0) for document in _checked_yaml(data) if document is not None]


def _chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Cut a list as kubectl writes it into lists of CHUNK items; yield any other text unchanged."""
    head = _LIST.match(data)
    end = _LIST_END.search(data, head.end()) if head is not None else None
    if head is None or end is None or not data.startswith(b"kind: List\n", end.start()) or b"\n---" in data:
        yield data, 0
        return
    items = _UNREAD_FIELDS.sub(b"", data[head.end() : end.start()])
    starts = [match.start() for match in _ITEM.finditer(items)][::CHUNK]
    for number, (start, stop) in enumerate(pairwise((*starts, len(items)))):
        yield b"kind: List\nitems:\n" + items[start:stop], number * CHUNK


def _json_documents(data: bytes, *, only_json: bool) -> list[bytes]:
    """Return the documents of a text that starts with a bracket: concatenated JSON, or YAML in flow style."""
    documents, position = [], 0
    try:
        text, decoder = data.decode().rstrip(), json.JSONDecoder()
        while position < len(text):
            start = position + len(text[position:]) - len(text[position:].lstrip())
            _, position = decoder.raw_decode(text, start)
            documents.append(text[start:position].encode())
    except UnicodeDecodeError as error:
        raise NotADump(f"byte {error.start}: not UTF-8, expected JSON or YAML") from None
    except json.JSONDecodeError as error:
        if only_json:
            raise NotADump(f"line {error.lineno}: {error.msg}, expected JSON") from None
        return [msgspec.json.encode(document) for document in _checked_yaml(data)]
    return documents


def _checked_yaml(data: bytes) -> list[Any]:
    """Return the documents of a whole text in YAML. Raises NotADump with the line of an error."""
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


class _Loader(yaml.CBaseLoader):  # libyaml, which all wheels of PyYAML contain
    """Composes documents; the tag of a scalar says only whether it is unquoted."""

    def resolve(self, kind: type[Any], value: Any, implicit: Any) -> Any:
        """Return the tag of a node without an explicit one; *implicit[0]* is true for an unquoted scalar."""
        return _UNQUOTED if kind is yaml.ScalarNode and implicit[0] else None


def _yaml_documents(data: bytes) -> Iterator[Any]:
    return map(_plain, yaml.compose_all(data, Loader=_Loader))


def _plain(node: Any) -> Any:
    """Return a composed node as JSON types (YAML 1.2, core schema, but fractions stay text)."""
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
    return [_plain(item) for item in node.value]
