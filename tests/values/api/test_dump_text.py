# SPDX-License-Identifier: Apache-2.0

"""The text of a dump: YAML and JSON mean what kubectl takes them for, or a message names the line and what helps."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.api import yaml_text
from locator.api.dump import ListOf, OtherKind, Skipped
from locator.model import ERROR, Finding, Namespace, Node
from tests.kit.api_objects import Item
from tests.kit.dump_entries import listed, objects_in, read, refused


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


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=5), VALUES), st.sampled_from([None, True, False]), st.integers(1, 8))
def test_whatever_yaml_is_printed_is_read(value: dict[str, Any], flow: bool | None, indent: int) -> None:
    """Strings stay strings, numbers numbers, in each style of YAML."""
    text = yaml.safe_dump(value, default_flow_style=flow, indent=indent)
    ((document, _),) = yaml_text.documents(text.encode())
    assert json.loads(document) == value


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


@settings(max_examples=60)
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


IN_PLACE = {
    "mapping-from-labels": (
        "labels: &c {team: 7, n: }\nx: *c\n", "labels: {team: '7', n: ~}\nx: {team: 7, n: ~}\n"),
    "merged": ("x: &c {team: 7}\nlabels: {<<: *c, b: 0x1f}\n", "x: {team: 7}\nlabels: {team: '7', b: '0x1f'}\n"),
    "merged-from-labels": ("labels: &c {team: 7}\nx: {<<: *c}\n", "labels: {team: '7'}\nx: {team: 7}\n"),
    "merged-in-place": ("labels: {a: q, b: ~, <<: {a: 1, b: 2, c: 3}}\n", "labels: {a: q, b: ~, c: '3'}\n"),
    "merged-twice": ("x: &x {a: 1, c: 5}\ny: &y {<<: *x, a: yes}\nlabels: *y\n",
                     "x: {a: 1, c: 5}\ny: {a: true, c: 5}\nlabels: {a: 'yes', c: '5'}\n"),
    "merged-lists": ("x: &x {a: 1}\nlabels: {<<: [*x, {a: 2, b: 2}]}\ny: &l [*x]\nselector: {<<: *l}\n",
                     "x: {a: 1}\nlabels: {a: '1', b: '2'}\ny: [{a: 1}]\nselector: {a: '1'}\n"),
    "key": ("n: &n 7\nm: {*n : 1}\n", "n: 7\nm: {'7': 1}\n"),
    "anchored-key": ("m: {&n 7 : *n}\nlabels: {a: *n}\n", "m: {'7': 7}\nlabels: {a: '7'}\n"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "in_place"), IN_PLACE.values(), ids=IN_PLACE)
def test_an_alias_means_what_stood_in_its_place(text: str, in_place: str) -> None:
    """The values of labels are text, other numbers are not, wherever the anchor is."""
    ((found, _),), ((expected, _),) = (list(yaml_text.documents(spelt.encode())) for spelt in (text, in_place))
    assert json.loads(found) == json.loads(expected)


KEYS = st.sampled_from(["labels", "annotations", "selector", "ports", "team"])
SCALARS = st.sampled_from([7, 31, True, None, "a", "7", "on", -3])


@settings(max_examples=50)
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


@settings(max_examples=50)
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


def test_messages_command_no_terminal() -> None:
    """What stands in a dump is shown, not obeyed."""
    assert "\\x1b[31m" in refused('{"kind": "Node", "\\u001b[31m": 1, "\\u001b[31m": 2}')
    node = {"kind": "Node", "metadata": {"name": "a\x1b[31m\nerror  b"}, "status": {"addresses": [{"address": 7}]}}
    (finding,) = [item for _, item in read(json.dumps(node)) if isinstance(item, Finding)]
    assert str(finding).isprintable()


def test_kinds_that_nobody_reads_are_told() -> None:
    """The reader counts them; of ours in a group that does not have them, it says more."""
    text = yaml.safe_dump_all([
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}},
        {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "a"}},
        {"apiVersion": "core/v1", "kind": "Service", "metadata": {"name": "a"}},
        {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "Pod", "metadata": {"name": "a"}},
        {"apiVersion": "v1", "kind": "ConfigMapList", "items": [{"metadata": {"name": "a"}}]},
        {"apiVersion": "v1", "kind": "List", "items": []},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}},
    ])  # fmt: skip
    unread = [OtherKind("", "Secret"), OtherKind("serving.knative.dev", "Service"), OtherKind("core", "Service")]
    of_a_list = (ListOf("ConfigMap"), OtherKind("", "ConfigMap"))
    found = [*unread, OtherKind("metrics.k8s.io", "Pod"), *of_a_list, Namespace("a")]
    assert [item for _, item in read(text)] == found


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
