# SPDX-License-Identifier: Apache-2.0

"""The two forms of a watch's events, JSON and protobuf, as far as the stand-in has to change what was recorded.

A JSON event is a line. A protobuf event is a frame: its length in four octets, then ``meta/v1.WatchEvent`` {1: type,
2: {1: object}}; the object is ``k8s\\0`` and ``runtime.Unknown`` {1: kind and version, 2: the message, ...}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
TYPE, OBJECT = 1, 2  # of WatchEvent
RAW = 1  # of RawExtension
MESSAGE = 2  # of Unknown
METADATA = 1  # of every object
VERSION, ANNOTATIONS = 6, 12  # of ObjectMeta


def split(form: str, body: bytes) -> list[bytes]:
    """Return the events of a response. Raises ValueError if one is cut."""
    if form == JSON:
        return body.splitlines(keepends=True)
    events = []
    while body:
        end = 4 + int.from_bytes(body[:4])
        if end > len(body):
            raise ValueError("an event is cut")
        events.append(body[:end])
        body = body[end:]
    return events


def type_of(form: str, event: bytes) -> str:
    """Return an event's type, such as ADDED."""
    if form == JSON:
        return str(json.loads(event)["type"])
    return next(content(whole) for number, whole in fields(event[4:]) if number == TYPE).decode()


def object_of(form: str, event: bytes) -> bytes:
    """Return the object in an event, as it stands there."""
    if form == JSON:
        return event[event.index(b'"object":') + len(b'"object":') : event.rindex(b"}")]
    extension = next(content(whole) for number, whole in fields(event[4:]) if number == OBJECT)
    return next(content(whole) for number, whole in fields(extension) if number == RAW)


def event(form: str, kind: str, item: bytes) -> bytes:
    """Return the event of the type *kind* with an object as from ``object_of``."""
    if form == JSON:
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), item)
    body = field(TYPE, kind.encode()) + field(OBJECT, field(RAW, item))
    return len(body).to_bytes(4) + body


def with_version(form: str, item: bytes, version: str) -> bytes:
    """Return an object with another resourceVersion; a JSON object is encoded anew, in the same order."""
    if form == JSON:
        decoded = json.loads(item)
        decoded["metadata"]["resourceVersion"] = version
        return compact(decoded)

    def renewed(message: bytes) -> bytes:
        return replaced(message, METADATA, lambda meta: replaced(meta, VERSION, lambda _: version.encode()))

    return MAGIC + replaced(item[len(MAGIC) :], MESSAGE, renewed)


def with_annotation(form: str, item: bytes, key: str, value: str) -> bytes:
    """Return an object with one annotation more; it has some already."""
    if form == JSON:
        decoded = json.loads(item)
        decoded["metadata"]["annotations"][key] = value
        return compact(decoded)
    entry = field(ANNOTATIONS, field(1, key.encode()) + field(2, value.encode()))

    def renewed(message: bytes) -> bytes:
        return replaced(message, METADATA, lambda meta: meta + entry)

    return MAGIC + replaced(item[len(MAGIC) :], MESSAGE, renewed)


def without_annotations(form: str, item: bytes) -> bytes:
    """Return an object without annotations: the bookmark at the end of a list becomes one as they come later."""
    if form == JSON:
        decoded = json.loads(item)
        del decoded["metadata"]["annotations"]
        return compact(decoded)

    def renewed(message: bytes) -> bytes:
        return replaced(message, METADATA, _plain)

    return MAGIC + replaced(item[len(MAGIC) :], MESSAGE, renewed)


def split_list(form: str, item: bytes, name: str, number: int) -> tuple[bytes, bytes, bytes]:
    """Return what stands before a repeated field in an object, its first entry, and what stands behind the field.

    Of protobuf, the first part is that of the message alone: ``joined`` puts the object together.
    """
    if form == JSON:
        decoded = json.loads(item)
        entries, decoded[name] = decoded[name], []
        empty = compact(decoded)
        at = empty.index(b'"%b":[' % name.encode()) + len(name) + 4
        return empty[:at], compact(entries[0]), empty[at:]
    message = next(content(whole) for at, whole in fields(item[len(MAGIC) :]) if at == MESSAGE)
    found = list(fields(message))
    first, last = (numbers.index(number) for numbers in ([n for n, _ in found], [n for n, _ in reversed(found)]))
    before = b"".join(whole for _, whole in found[:first])
    behind = b"".join(whole for _, whole in found[len(found) - last :])
    return before, found[first][1], behind


def joined(form: str, item: bytes, parts: tuple[bytes, Sequence[bytes], bytes]) -> bytes:
    """Return *item* with the parts of ``split_list`` in the place of its own: before, entries, behind."""
    before, entries, behind = parts
    if form == JSON:
        return before + b",".join(entries) + behind
    return MAGIC + replaced(item[len(MAGIC) :], MESSAGE, lambda _: before + b"".join(entries) + behind)


def compact(decoded: Any) -> bytes:
    """Return JSON without spaces, as the API server writes it."""
    return json.dumps(decoded, separators=(",", ":"), ensure_ascii=False).encode()


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each field of a protobuf message: its number, and the field whole."""
    at = 0
    while at < len(message):
        tag, behind = _varint(message, at)
        end = behind
        if tag & 7 == 0:
            end = _varint(message, behind)[1]
        elif tag & 7 == 2:
            length, end = _varint(message, behind)
            end += length
        else:
            raise ValueError(f"wire type {tag & 7}: none of Kubernetes' fields here has it")
        yield tag >> 3, message[at:end]
        at = end


def content(whole: bytes) -> bytes:
    """Return the content of a field with a length."""
    length, begin = _varint(whole, _varint(whole, 0)[1])
    return whole[begin : begin + length]


def field(number: int, data: bytes) -> bytes:
    """Return a field with a length."""
    return _encoded(number << 3 | 2) + _encoded(len(data)) + data


def replaced(message: bytes, number: int, change: Any) -> bytes:
    """Return a message with the content of one field changed."""
    return b"".join(
        field(number, change(content(whole))) if found == number else whole for found, whole in fields(message)
    )


def _plain(meta: bytes) -> bytes:
    return b"".join(whole for number, whole in fields(meta) if number != ANNOTATIONS)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    number = shift = 0
    while True:
        octet = message[at]
        number |= (octet & 127) << shift
        at, shift = at + 1, shift + 7
        if octet < 128:
            return number, at


def _encoded(number: int) -> bytes:
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    octets.append(number)
    return bytes(octets)
