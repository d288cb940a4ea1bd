# SPDX-License-Identifier: Apache-2.0

"""What is given for a dump and is none, is damaged, or would fill the memory: a message says so at once."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import tarfile
import time
import tracemalloc
import zlib
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.api.dump_text import MAX_OCTETS, NotADump, unpacked
from locator.model import WARNING, Finding
from tests.kit.dump_entries import listed, objects_in, read, refused
from tests.kit.random_cluster import world

COMMAND = "'kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml'"
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


def test_a_mark_of_utf_8_is_no_text() -> None:
    """As Windows editors write it."""
    for text in (OBJECT, json.dumps(yaml.safe_load(OBJECT))):
        assert [item.key for item in objects_in(read(codecs.BOM_UTF8 + text.encode()))] == ["shop/db"]


@pytest.mark.parametrize("form", [lambda items: yaml.safe_dump(listed(items)), lambda items: json.dumps(listed(items)),
                                  lambda items: json.dumps(listed(items), indent=4) + "\n"],
                         ids=["yaml", "json", "json-indented"])  # fmt: skip
def test_a_dump_that_is_cut_off(form: Any) -> None:
    """Wherever kubectl's list ends too early, it is refused, and the message says that it may be cut off."""
    items = world(0).items[:6]
    whole = form(items).encode()
    end = len(whole.rstrip()) if whole.startswith(b"{") else whole.index(b"\nkind: List") + len("\nkind: List")
    number = len(objects_in(read(whole)))
    for length in (*range(0, end, max(1, end // 100)), *range(end - 40, end)):
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


@settings(max_examples=50)
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
        unpacked(zlib.compress(bytes(1 << 22), wbits=31), "a.yaml.gz", 1 << 20)
    with pytest.raises(NotADump, match="more than 300 times as large unpacked, expected a dump"):
        unpacked(zlib.compress(bytes(1 << 27), wbits=31), "a.yaml.gz", MAX_OCTETS)


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
