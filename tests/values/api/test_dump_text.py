# SPDX-License-Identifier: Apache-2.0

"""The text of a dump: YAML and JSON mean what kubectl takes them for, or a message names the line and what helps."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import tarfile
import time
import tracemalloc
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.api import yaml_text
from locator.api.dump import DumpEntry, ListOf, OtherKind, Skipped, entries
from locator.api.dump_text import MAX_OCTETS, NotADump, unpacked
from locator.model import ERROR, WARNING, EndpointSlice, Finding, Namespace, Node, Object, Service
from tests.kit.random_cluster import world

Item = Mapping[str, Any]
COMMAND = "'kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml'"


def objects_in(found: Iterable[DumpEntry]) -> list[Object]:
    return [item for _, item in found if not isinstance(item, Finding | OtherKind | ListOf | Skipped)]


def read(text: str | bytes, **options: Any) -> list[DumpEntry]:
    return list(entries(text.encode() if isinstance(text, str) else text, **options))


def refused(text: str | bytes, **options: Any) -> str:
    with pytest.raises(NotADump) as caught:
        read(text, **options)
    assert str(caught.value).isprintable()
    return str(caught.value)


def listed(items: Sequence[Item], kind: str = "List") -> Item:
    return {"apiVersion": "v1", "items": list(items), "kind": kind, "metadata": {"resourceVersion": ""}}


# What YAML means


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("~", None), ("", None), ("null", None), ("Null", None), ("'null'", "null"), ("!!str null", "null"),
        ("true", True), ("False", False), ("'true'", "true"), ('"true"', "true"), ("yes", True),
        ("Off", False), ("'no'", "no"),
        ("!!str yes", "yes"), ('!!bool "on"', True), ('!!int "80"', 80), ("!!int a", "a"), ("!!null ''", None),
        ("y", "y"), ("N", "N"), ("!mine 7", "7"), ("!!binary aGk=", "hi"), ("!!binary a", "a"), ("yEs", "yEs"),
        ("7", 7), ("-7", -7), ("'7'", "7"), ("1.5", "1.5"), ("'1.5'", "1.5"), ("1e3", "1e3"), ("0x1f", 31),
        ("0120", 80), ("-0b11", -3), ("0o17", 15), ("08", "08"), ("0x_", "0x_"), ("1_000", 1000), ("+1", 1),
        ("18446744073709551615", 2**64 - 1), ("18446744073709551616", "18446744073709551616"),
        ("9" * 5000, "9" * 5000), ("-9223372036854775809", "-9223372036854775809"),
        ("-", [None]), ("2026-01-01", "2026-01-01"),
        ("[a, {b: 1}]", ["a", {"b": 1}]), ("[\n]", []), ("{}", {}), ("|\n  a\n  b\n", "a\nb\n"),
        (">-\n  a\n  b\n", "a b"), ('"\\e\\u263a\\0"', "\x1b\u263a\0"), ("'it''s'", "it's"), ("a\n  b", "a b"),
        ("\U0001f600", "\U0001f600"), ("&x 7", 7), ("[&x a, *x]", ["a", "a"]),
        ("[&x {a: 1}, *x]", [{"a": 1}, {"a": 1}]),
        ("{a: &m {b: 1}, c: {<<: *m}}", {"a": {"b": 1}, "c": {"b": 1}}),
        ("{a: &m {b: 1, d: 2}, c: {b: 3, <<: *m}}", {"a": {"b": 1, "d": 2}, "c": {"b": 3, "d": 2}}),
        ("[&m {b: 1}, &n {b: 2, c: 3}, {<<: [*m, *n]}]", [{"b": 1}, {"b": 2, "c": 3}, {"b": 1, "c": 3}]),
        ('{&m "<<": 1, b: {*m : {x: 1}}}', {"<<": 1, "b": {"<<": {"x": 1}}}),
        ('{a: &m {b: 1}, c: {!!merge "<<": *m}}', {"a": {"b": 1}, "c": {"b": 1}}),
        ("{'<<': 1}", {"<<": 1}), ("{&k a: 1, b: *k}", {"a": 1, "b": "a"}), ("{? a : 1}", {"a": 1}),
        ("{1: a, true: b}", {"1": "a", "true": "b"}),
    ],
)  # fmt: skip
def test_values(text: str, value: object) -> None:
    """Values are what kubectl reads, but that fractions, which no field of ours has, stay text."""
    ((document, _),) = yaml_text.documents(
        f"%YAML 1.1\n---\nkey: {text}\n...\n".encode() if text != "-" else b"key:\n-\n"
    )
    assert json.loads(document) == {"key": value}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=5), VALUES), st.sampled_from([None, True, False]), st.integers(1, 8))
def test_whatever_yaml_is_printed_is_read(value: dict[str, Any], flow: bool | None, indent: int) -> None:
    """Strings stay strings, numbers numbers, in each style of YAML."""
    text = yaml.safe_dump(value, default_flow_style=flow, indent=indent)
    ((document, _),) = yaml_text.documents(text.encode())
    assert json.loads(document) == value


# Keys that stand twice

TWICE = {
    # what: (text, line of the second, words)
    "lists-one-after-another": (
        yaml.safe_dump(listed([])) + yaml.safe_dump(listed([])), 6, "the key apiVersion .* line '---' is missing"),
    "objects-one-after-another": ("kind: Node\nmetadata: {name: a}\nkind: Node\n", 3, "line '---' is missing"),
    "in-an-item": ("kind: List\nitems:\n- kind: Node\n  metadata: {}\n  metadata: {}\n", 5, "the key metadata"),
    "in-an-inner-list": ("kind: List\nitems:\n- kind: List\n  items: []\n  items: []\n", 5, "the key items"),
    "deep": ("kind: Node\nmetadata:\n  labels:\n    a: b\n    a: c\n", 5, "the key a stands twice"),
    "in-a-kind-that-nobody-reads": ("kind: ConfigMap\ndata: {a: b,\n a: c}\n", 3, "the key a"),
    "quoted-and-not": ("kind: Node\nmetadata:\n  name: a\n  'name': b\n", 4, "the key name"),
    "merge-keys": ("kind: Node\nx: &x {a: 1}\ny:\n  <<: *x\n  <<: *x\n", 5, "the key <<"),
    "json": ('{"kind": "Node",\n"metadata": {"name": "a",\n\n"name": "b"}}', 4, "the key name"),
    "json-top": ('{"kind": "Node",\n"kind": "Pod"}', 2, "the key kind"),
    "json-list": ('{"kind": "List",\n"items": [{"kind": "Node"}],\n"items": []}', 3, "the key items"),
    "json-item": (
        '{"kind": "List", "items": [\n{"kind": "A"},\n{"kind": "B", "a": {"x":\n1, "x": 2}}]}', 4, "the key x"),
    "json-with-another-spelling": ('{"kind": "Node",\n"a": 1,\n"\\u0061": "\\u0022\\u0022"}', 3, "the key a"),
    "json-documents": ('{"kind": "A"}\n{"kind": "B",\n "kind": "C"}', 3, "the key kind"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "words"), TWICE.values(), ids=TWICE)
def test_a_key_that_stands_twice(text: str, line: int, words: str) -> None:
    """None of the two wins in silence, at any depth, in YAML and in JSON."""
    message = refused(text)
    assert message.startswith(f"line {line}: ")
    assert re.search(words, message) and "cut off" not in message, message


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_copied_key_never_passes(data: st.DataObject) -> None:
    """Wherever in a JSON object a member is written again: it is found."""
    value = data.draw(st.dictionaries(st.text(max_size=4), VALUES, min_size=1))
    value = {"kind": "ConfigMap", "data": value}

    def written(part: Any) -> list[str]:
        """Return the text of a value, and a text for each key in it that is written twice."""
        if isinstance(part, list):
            inner = [written(item) for item in part]
            once = [texts[0] for texts in inner]
            changed = [[*once[:n], other, *once[n + 1 :]] for n, texts in enumerate(inner) for other in texts[1:]]
            return [json.dumps(part), *(f"[{', '.join(items)}]" for items in changed)]
        if not isinstance(part, dict):
            return [json.dumps(part)]
        found = [json.dumps(part)]
        members = {key: written(item) for key, item in part.items()}
        for key, texts in members.items():
            once = [f"{json.dumps(k)}: {t[0]}" for k, t in members.items()]
            found.append("{" + ", ".join([*once, f"{json.dumps(key)}: {texts[0]}"]) + "}")
            for other in texts[1:]:
                one = [f"{json.dumps(k)}: {other if k == key else t[0]}" for k, t in members.items()]
                found.append("{" + ", ".join(one) + "}")
        return found

    whole, *twice = written(value)
    assert [item for _, item in read(whole)] == [OtherKind("", "ConfigMap")]
    assert "stands twice" in refused(data.draw(st.sampled_from(twice)))


# Aliases


def test_a_bomb_of_aliases_is_refused() -> None:
    """Ten aliases of ten aliases ... would take terabytes as JSON; a message comes at once."""
    lines = ["apiVersion: v1", "kind: Service", "metadata:", "  a0: &a0 {k: xxxxxxxxxxxxxxxxxxxxxxxxxxxxx}"]
    lines += [f"  a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "too many aliases" in refused("\n".join(lines))
    merged = ["kind: Service", "a0: &a0 {k: xxxxxxxxxxxxxx}"]
    merged += [f"a{n}: &a{n} {{{', '.join(f'b{m}: *a{n - 1}' for m in range(10))}}}" for n in range(1, 12)]
    assert "too many aliases" in refused("\n".join(merged))


def test_an_alias_of_what_it_is_in() -> None:
    """YAML could mean a circle, JSON cannot."""
    assert refused("kind: Node\nmetadata: &m {labels: *m}\n").startswith("line 2: no anchor &m before *m")
    assert refused("kind: A\nx: &x 1\n---\nkind: B\ny: *x\n").startswith("line 5: no anchor &x"), "of another document"


@pytest.mark.parametrize(
    ("text", "in_place"),
    [
        ("x: &c {team: 7}\nlabels: *c\n", "x: {team: 7}\nlabels: {team: '7'}\n"),
        ("labels: &c {team: 7, n: }\nx: *c\n", "labels: {team: '7', n: ~}\nx: {team: 7, n: ~}\n"),
        ("t: &t 7\nlabels: {team: *t}\nport: *t\n", "t: 7\nlabels: {team: '7'}\nport: 7\n"),
        ("labels: {team: &t 7}\nport: *t\n", "labels: {team: '7'}\nport: 7\n"),
        ("x: &c {team: 7}\nlabels: {<<: *c, b: 0x1f}\n", "x: {team: 7}\nlabels: {team: '7', b: '0x1f'}\n"),
        ("labels: &c {team: 7}\nx: {<<: *c}\n", "labels: {team: '7'}\nx: {team: 7}\n"),
        ("labels: {a: q, b: ~, <<: {a: 1, b: 2, c: 3}}\n", "labels: {a: q, b: ~, c: '3'}\n"),
        (
            "x: &x {a: 1, c: 5}\ny: &y {<<: *x, a: yes}\nlabels: *y\n",
            "x: {a: 1, c: 5}\ny: {a: true, c: 5}\nlabels: {a: 'yes', c: '5'}\n",
        ),
        (
            "x: &x {a: 1}\nlabels: {<<: [*x, {a: 2, b: 2}]}\ny: &l [*x]\nselector: {<<: *l}\n",
            "x: {a: 1}\nlabels: {a: '1', b: '2'}\ny: [{a: 1}]\nselector: {a: '1'}\n",
        ),
        ("n: &n 7\nm: {*n : 1}\n", "n: 7\nm: {'7': 1}\n"),
        ("m: {&n 7 : *n}\nlabels: {a: *n}\n", "m: {'7': 7}\nlabels: {a: '7'}\n"),
    ],
    ids=[
        "mapping",
        "mapping-from-labels",
        "scalar",
        "scalar-from-labels",
        "merged",
        "merged-from-labels",
        "merged-in-place",
        "merged-twice",
        "merged-lists",
        "key",
        "anchored-key",
    ],
)
def test_an_alias_means_what_stood_in_its_place(text: str, in_place: str) -> None:
    """The values of labels are text, other numbers are not, wherever the anchor is."""
    ((found, _),), ((expected, _),) = (list(yaml_text.documents(spelt.encode())) for spelt in (text, in_place))
    assert json.loads(found) == json.loads(expected)


KEYS = st.sampled_from(["labels", "annotations", "selector", "ports", "team"])
SCALARS = st.sampled_from([7, 31, True, None, "a", "7", "on", -3])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_aliases_are_read_as_if_they_were_written_out(data: st.DataObject) -> None:
    """What PyYAML prints with anchors means the same as without them."""
    shared: list[Any] = []

    def drawn(depth: int) -> Any:
        if shared and data.draw(st.integers(0, 2)) == 0:
            return data.draw(st.sampled_from(shared))
        if depth == 0 or data.draw(st.booleans()):
            return data.draw(SCALARS)
        shared.append(made := {key: drawn(depth - 1) for key in data.draw(st.lists(KEYS, max_size=3, unique=True))})
        return made

    value = {key: drawn(3) for key in ("x", "labels", "spec")}
    written_out = yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False)
    found, expected = (
        [json.loads(document) for document, _ in yaml_text.documents(text.encode())]
        for text in (yaml.safe_dump(value, sort_keys=False), written_out)
    )
    assert found == expected


MERGED = """apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: &meta {name: db, namespace: shop}
  spec: {clusterIP: None, ports: [{port: 5432}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {<<: *meta, name: db-x, labels: {kubernetes.io/service-name: db}}
  addressType: IPv4
"""


def test_merge_keys_in_an_object() -> None:
    """An object written by hand takes its namespace from another one."""
    found = objects_in(read(MERGED))
    assert [(type(item), item.key) for item in found] == [(Service, "shop/db"), (EndpointSlice, "shop/db-x")]


# Lists

NAMES = st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), unique=True, max_size=8)


def nested(names: Sequence[str], data: st.DataObject, depth: int = 3) -> Item:
    """Return a List of nodes, some of which lie in Lists within it."""
    items: list[Item] = []
    rest = list(names)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        part, rest = rest[:size], rest[size:]
        if size == 1 or not depth:
            items += [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in part]
        elif data.draw(st.booleans()):
            items.append(listed([{"metadata": {"name": name}} for name in part], "NodeList"))
        else:
            items.append(nested(part, data, depth - 1))
    return listed(items)


@settings(max_examples=100, deadline=None)
@given(NAMES, st.data())
def test_lists_in_lists(names: list[str], data: st.DataObject) -> None:
    """Objects are read at any depth, in order, and each knows its line."""
    whole = nested(names, data)
    for text in (yaml.safe_dump(whole), json.dumps(whole), json.dumps(whole, indent=4), yaml.safe_dump_all([whole])):
        found = [(line, item) for line, item in read(text) if isinstance(item, Node)]
        assert [node.name for _, node in found] == names
        lines = text.splitlines()
        for line, node in found:
            assert f"{node.name}" in "".join(lines[line - 1 : line + 6])


def test_lines_in_lists() -> None:
    """An object begins where its first key or its bracket stands."""
    text = json.dumps(listed([{"kind": "Node", "metadata": {"name": name}} for name in "abc"]), indent=1)
    found = {item.name: line for line, item in read(f"\n\n{text}") if isinstance(item, Node)}
    begins = [number for number, line in enumerate(text.splitlines(), 3) if line == "  {"]
    assert list(found.values()) == begins
    text = "# dump\n---\nkind: List\nitems:\n- kind: NodeList\n  items:\n\n"
    text += "  - metadata: {name: a}\n  - metadata: {name: b}\n"
    text += "---\nkind: Node\nmetadata: {name: c}\n"
    assert {item.name: line for line, item in read(text) if isinstance(item, Node)} == {"a": 8, "b": 9, "c": 11}


def test_an_empty_list_says_that_there_is_none() -> None:
    """That is what 'kubectl get nodes -o json' prints of no node; a List without a kind says nothing."""
    assert [item for _, item in read(json.dumps(listed([], "NodeList")))] == [ListOf("Node")]
    assert [item for _, item in read(json.dumps(listed([])))] == []


# Other encodings, and what is no text

OBJECT = "apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\nspec: {clusterIP: None}\n"


def tar(name: str, mode: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        info = tarfile.TarInfo(name)
        info.size = len(OBJECT)
        archive.addfile(info, io.BytesIO(OBJECT.encode()))
    return packed.getvalue()


NO_TEXT = {
    # what: (octets, words, command)
    "gzip": (gzip.compress(OBJECT.encode()), "compressed by gzip", "gunzip -c 'my dump'"),
    "tar": (tar("a.yaml", "w"), "a tar archive", "tar -xf 'my dump'"),
    "tar-gz": (tar("a.yaml", "w:gz"), "a tar archive compressed by gzip", "tar -xf 'my dump'"),
    "bzip2": (b"BZh91AY&SY", "bzip2", "bunzip2 -c 'my dump'"),
    "xz": (b"\xfd7zXZ\x00", "xz", "xz -dc 'my dump'"),
    "zip": (b"PK\x03\x04\x14", "zip", "unzip 'my dump'"),
    "utf-16-mark": (codecs.BOM_UTF16_LE + OBJECT.encode("utf-16le"), "UTF-16,", "iconv -f UTF-16 -t UTF-8 'my dump'"),
    "utf-16-be-mark": (codecs.BOM_UTF16_BE + OBJECT.encode("utf-16be"), "UTF-16,", "iconv -f UTF-16 -t UTF-8"),
    "utf-16-le": (OBJECT.encode("utf-16le"), "UTF-16LE", "iconv -f UTF-16LE -t UTF-8 'my dump'"),
    "utf-16-be": (OBJECT.encode("utf-16be"), "UTF-16BE", "iconv -f UTF-16BE -t UTF-8 'my dump'"),
    "utf-32": (OBJECT.encode("utf-32le"), "UTF-32LE", "iconv -f UTF-32LE"),
    "utf-32-mark": (OBJECT.encode("utf-32"), "UTF-32", "iconv -f UTF-32 "),
    "binary": (bytes(range(1, 256)) * 4, "octets that are no text", ""),
    "table": (b"NAME    READY   STATUS\nweb-0   1/1     Running\n", "a table found", COMMAND),
    "table-of-all": (b"NAMESPACE   NAME    READY\nshop   web-0   1/1\n", "a table found", COMMAND),
    "description": (b"Name:         web-0\nNamespace:    shop\n", "kubectl describe", COMMAND),
    "names": (b"namespace/default\nnamespace/shop\n", "-o name", COMMAND),
    "refusal": (b"Error from server (Forbidden): no \x1b[31m\n", "Error from server (Forbidden)", COMMAND),
    "nothing-found": (b"No resources found\n", "No resources found", COMMAND),
    "page": (b"<!DOCTYPE html><html></html>", "HTML", COMMAND),
    "empty": (b"", "empty", COMMAND),
    "comment": (b"# nothing\n", "empty", COMMAND),
}  # fmt: skip


@pytest.mark.parametrize(("octets", "words", "command"), NO_TEXT.values(), ids=NO_TEXT)
@pytest.mark.parametrize("only_json", [False, True], ids=["yaml", "json"])
def test_what_is_no_text(octets: bytes, words: str, command: str, only_json: bool) -> None:
    """The message names what it is and the command that helps, for a file and for standard input."""
    message = refused(octets, file="my dump", only_json=only_json)
    assert words in message and command in message
    if command != COMMAND:
        assert command.replace(" 'my dump'", "") in refused(octets, only_json=only_json)


ANNOTATED = f"{OBJECT}x: 1\n".replace("name: db", "annotations: {owner: Jose}, name: db")


@pytest.mark.parametrize("text", [ANNOTATED, json.dumps(yaml.safe_load(ANNOTATED), indent=1)], ids=["yaml", "json"])
@pytest.mark.parametrize(
    ("octets", "words", "command"),
    [
        (b"\xe9", "octet 0xe9 is no text in UTF-8;", "iconv -f LATIN1 -t UTF-8 x.json"),
        (b"\xff\xfe", "octet 0xff is no text in UTF-8 (and 1 more);", "iconv -f LATIN1 -t UTF-8 x.json"),
        (b"\xed\xa0\x80", "octet 0xed is no text in UTF-8 (and 2 more);", "iconv -f LATIN1 -t UTF-8 x.json"),
        (b"\x07", "control character 0x07 found;", "'tr -d \"\\007\" < x.json'"),
        (b"\xef\xbf\xbd\x07\xe9", "control character 0x07 found (and 1 more);", "tr -d"),
    ],
)
def test_an_octet_costs_a_value(text: str, octets: bytes, words: str, command: str) -> None:
    """Not its object: the Service is read, and a warning names the line."""
    changed = text.encode().replace(b"Jose", b"Jos" + octets)
    (first, *others) = read(changed, file="x.json")
    assert isinstance(first.item, Finding) and first.item.severity == WARNING
    assert first.line == changed.count(b"\n", 0, changed.index(octets)) + 1
    assert words in first.item.message and command in first.item.expected
    assert [item.key for item in objects_in(others)] == ["shop/db"]


@pytest.mark.parametrize("only_json", [False, True], ids=["yaml", "json"])
def test_an_escape_costs_a_value(only_json: bool) -> None:
    """As Python's json writes what no other program can read; a whole character, or a backslash before it, is none."""
    whole = '{"kind": "Namespace",\n"metadata": {"name": "a", "labels": {"a":\n"x\\\\ud83d \\ud83d\\ude00%s"}}}'
    for before in ("", '{"kind": "Secret"}\n'):
        assert len(objects_in(read(before + whole % "", only_json=only_json))) == 1
        (first, *others) = read(before + whole % "\\ud83d", only_json=only_json)
        assert isinstance(first.item, Finding) and first.line == 3 + before.count("\n")
        assert first.item.message.startswith("half a character, \\ud83d, found; the rest of each")
        assert [item.key for item in objects_in(others)] == ["a"]


def test_a_number_costs_nothing() -> None:
    """However long it is, and in concatenated JSON, too. NaN is no JSON: the message has its line."""
    for number in ("9" * 5000, "1e999", "-" + "9" * 25):
        text = f'{{"kind": "Namespace", "x": {number}, "metadata": {{"name": "a"}}}}\n'
        assert [item.key for item in objects_in(read(text * 2, only_json=True))] == ["a", "a"]
    text = '{"kind": "Secret"}\n{"kind": "Namespace",\n"metadata": {"name": "a", "uid":\nNaN}}'
    assert refused(text, only_json=True) == "line 4: invalid character, expected JSON"


def test_documents_one_after_another_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 'jq -c .items[]' prints them: twice as many take twice as long."""
    lengths = list[int]()

    class Text(str):
        def __getitem__(self, key: Any) -> str:
            lengths.append(len(part := super().__getitem__(key)))
            return part

        def rstrip(self, characters: str | None = None) -> str:
            return Text(super().rstrip(characters))

    class Octets(bytes):
        def decode(self, *args: Any, **options: Any) -> str:
            return Text(super().decode(*args, **options))

    monkeypatch.setattr("locator.api.dump_text.text_of", lambda data, file: Octets(data))
    text = '{"kind": "Namespace", "metadata": {"name": "a"}}\n' * 100
    assert len(objects_in(read(text))) == 100
    assert sum(lengths) <= len(text)


def test_a_mark_of_utf_8_is_no_text() -> None:
    """As Windows editors write it."""
    for text in (OBJECT, json.dumps(yaml.safe_load(OBJECT))):
        assert [item.key for item in objects_in(read(codecs.BOM_UTF8 + text.encode()))] == ["shop/db"]


def test_messages_command_no_terminal() -> None:
    """What stands in a dump is shown, not obeyed."""
    assert "\\x1b[31m" in refused('{"kind": "Node", "\\u001b[31m": 1, "\\u001b[31m": 2}')
    node = {"kind": "Node", "metadata": {"name": "a\x1b[31m\nerror  b"}, "status": {"addresses": [{"address": 7}]}}
    (finding,) = [item for _, item in read(json.dumps(node)) if isinstance(item, Finding)]
    assert str(finding).isprintable()


# Dumps that are cut off


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", [lambda items: yaml.safe_dump(listed(items)), lambda items: json.dumps(listed(items)),
                                  lambda items: json.dumps(listed(items), indent=4) + "\n"],
                         ids=["yaml", "json", "json-indented"])  # fmt: skip
def test_a_dump_that_is_cut_off(seed: int, form: Any) -> None:
    """Wherever kubectl's list ends too early, it is refused, and the message says that it may be cut off."""
    items = world(seed).items[:12]
    whole = form(items).encode()
    end = len(whole.rstrip()) if whole.startswith(b"{") else whole.index(b"\nkind: List") + len("\nkind: List")
    number = len(objects_in(read(whole)))
    for length in (*range(0, end, max(1, end // 300)), *range(end - 40, end)):
        try:
            found = objects_in(read(whole[:length]))
        except NotADump as error:
            message = str(error)
            said = any(words in message for words in ("cut off", "line ", "no kind", "empty", "text found"))
        else:
            said, message = len(found) < number, "fewer objects"
        assert said, (length, message)


def test_a_gzip_file_that_is_cut_off() -> None:
    """gzip knows its end; a dump in several pieces is one."""
    packed = gzip.compress(OBJECT.encode())
    assert unpacked(packed, "a.yaml.gz", MAX_OCTETS) == OBJECT.encode()
    assert unpacked(packed + packed, "a.yaml.gz", MAX_OCTETS) == 2 * OBJECT.encode()
    for length in range(len(packed)):
        with pytest.raises(NotADump, match=r"cut off: .*'gunzip -t a\.yaml\.gz'|not compressed by gzip"):
            unpacked(packed[:length], "a.yaml.gz", MAX_OCTETS)
    with pytest.raises(NotADump, match="not compressed by gzip"):
        unpacked(OBJECT.encode(), "a.yaml.gz", MAX_OCTETS)
    with pytest.raises(NotADump, match="not as gzip writes it"):
        unpacked(packed[:20] + b"\0" * 8 + packed[28:], "a.yaml.gz", MAX_OCTETS)


def test_what_stands_behind_gzip() -> None:
    """Zeros are padding; text would be lost in silence."""
    packed = gzip.compress(OBJECT.encode())
    assert unpacked(packed + bytes(1000), "a.yaml.gz", MAX_OCTETS) == OBJECT.encode()
    for more in (b"---\n" + OBJECT.encode(), b"\0\0" + packed, b"\n"):
        with pytest.raises(NotADump, match="octets found after what gzip wrote, expected"):
            unpacked(packed + more, "a.yaml.gz", MAX_OCTETS)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=300) | st.integers(0, 1 << 18).map(bytes), min_size=1, max_size=6))
def test_gzip_files_that_are_joined(parts: list[bytes]) -> None:
    """Wherever one ends, and the pieces in which it is read."""
    assert unpacked(b"".join(map(gzip.compress, parts)), "a.yaml.gz", MAX_OCTETS) == b"".join(parts)


DEPTH = 10_000
NESTED = {
    "lists": "[" * DEPTH + "]" * DEPTH,
    "mappings": '{"a":' * DEPTH + "1" + "}" * DEPTH,
    "in-a-list-of-objects": '{"kind": "List", "items": [{"kind": "Service", "spec": '
    + "[" * DEPTH
    + "]" * DEPTH
    + "}]}",
    "without-an-end": "[" * DEPTH,
}


@pytest.mark.parametrize("text", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("only_json", [True, False], ids=["json", "yaml"])
def test_what_is_nested_deeply_is_refused(text: str, only_json: bool) -> None:
    """Neither library's recursion ends the process."""
    message = refused(text if only_json else f"# YAML\n{text}", only_json=only_json)
    assert "nested too deeply" in message or "line 1" in message or "line 2" in message


def test_many_anchors_are_refused() -> None:
    """What has an anchor stays in memory until its document ends."""
    assert "more than 100,000 anchors in a document" in refused("".join(f"- &a{n} {{}}\n" for n in range(100_001)))


SLOW = {
    "escapes": '{"kind": "Service", "a": "\\u0022' + "\\\\" * 500_000 + '"}',
    "names": "a/b\n" * 500_000 + "!",
    "letters": "a" * 1_000_000 + "\n",
    "digits": '{"kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": ' + "9" * 1_000_000 + "}]}}",
    "digits-in-yaml": "kind: Service\nmetadata: {name: a}\nspec: {ports: [{port: " + "9" * 1_000_000 + "}]}\n",
    "sexagesimals": "kind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 1" + ":59" * 300_000 + "}]}\n",
}


@pytest.mark.parametrize("text", SLOW.values(), ids=SLOW)
def test_no_text_is_slow_to_read(text: str) -> None:
    """Nothing that is looked for, and no number, takes more time or memory than its length accounts for."""
    tracemalloc.start()
    began = time.process_time()
    with suppress(NotADump):
        read(text)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - began < 5 and most < 40 * len(text)


def test_a_gzip_bomb_is_refused() -> None:
    """A file that would fill the memory is refused before it does."""
    with pytest.raises(NotADump, match="more than 4 GiB in all that is read, unpacked; expected a dump"):
        unpacked(zlib.compress(bytes(1 << 26), wbits=31), "a.yaml.gz", 1 << 20)
    with pytest.raises(NotADump, match="more than 300 times as large unpacked, expected a dump"):
        unpacked(zlib.compress(bytes(1 << 28), wbits=31), "a.yaml.gz", MAX_OCTETS)


# Kinds


def test_kinds_that_nobody_reads_are_told() -> None:
    """The reader counts them; of ours in a group that does not have them, it says more."""
    text = yaml.safe_dump_all([
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}},
        {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "a"}},
        {"apiVersion": "core/v1", "kind": "Service", "metadata": {"name": "a"}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}},
    ])  # fmt: skip
    unread = [OtherKind("", "Secret"), OtherKind("serving.knative.dev", "Service"), OtherKind("core", "Service")]
    assert [item for _, item in read(text)] == [*unread, Namespace("a")]


def test_a_document_among_others_that_is_none() -> None:
    """A bundle has many files that are no Kubernetes objects: one of them is a finding there, not the end."""
    for text in ('{"a": 1}', "[1, 2]", "7", '{"apiVersion": "v1", "kind": 7}', "[{}]", "# x\n", "null", "---\n---\n"):
        refused(text)
        ((_, skipped),) = read(text, among_others=True)
        assert isinstance(skipped, Skipped) and "expected" not in skipped.expected
    for text in ("a: [", "NAME   READY\n", "", "\n", '{"a": 1', "apiVersion: v1\nitems:\n- kind: Node\n"):
        refused(text, among_others=True)


@pytest.mark.parametrize("among_others", [False, True], ids=["named", "in-a-folder"])
def test_an_array_of_objects(among_others: bool) -> None:
    """As 'jq .items' prints the objects of a List, in JSON and in YAML."""
    items = [{"kind": "Node", "metadata": {"name": name}} for name in "ab"]
    for text in (json.dumps(items), json.dumps(items, indent=1), yaml.safe_dump(items)):
        found = [(line, item) for line, item in read(f"\n{text}", among_others=among_others) if isinstance(item, Node)]
        assert [node.name for _, node in found] == ["a", "b"]
        assert all(f"{node.name}" in "".join(text.splitlines()[line - 2 : line + 4]) for line, node in found)
    twice = '[{"kind": "Node", "metadata": {"name": "a",\n"name": "b"}}]'
    assert refused(twice, among_others=among_others).startswith("line 2: the key name stands twice")


def test_an_error_in_one_object_is_no_end() -> None:
    """Objects that are none, and those with bad fields, are findings with their lines."""
    text = "kind: List\nitems:\n- 7\n- kind: Node\n- {kind: Node, metadata: {name: a}}\n- {metadata: {name: b}}\n"
    found = read(text)
    findings = [(line, item.severity) for line, item in found if isinstance(item, Finding)]
    assert findings == [(3, ERROR), (4, ERROR), (6, ERROR)] and len(objects_in(found)) == 1
