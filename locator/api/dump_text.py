# SPDX-License-Identifier: Apache-2.0

"""Says whether the octets of a file can be the text of a dump, and names what they are instead.

What people keep beside a dump, or make of it, has a message of its own: which command turns it into a dump.
"""

from __future__ import annotations

import codecs
import io
import re
import zlib
from typing import Any, NamedTuple

from locator.model import and_more
from locator.printable import printable, shell_words

COMMAND = "'kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml'"  # what a dump is made by

MAX_OCTETS = 4 << 30  # of all files together, unpacked: more than twice the JSON of 150,000 pods
# A dump becomes ten to thirty times as large by unpacking, a file that is made to fill the memory a thousand times.
MAX_RATIO, RATIO_FROM = 300, 1 << 26  # octets
SMALLEST, LARGEST = 1 << 9, 1 << 16  # octets that are unpacked at once: they become 1000 times as many at most
TAR_AT, TAR_WORD = 257, b"ustar"  # where a tar archive says what it is (POSIX.1-1988)
GZIP = b"\x1f\x8b"

# What a file begins with -> what it is, and the command that unpacks it.
_PACKED = {
    GZIP: ("compressed by gzip", "gunzip -c {file}", "prints it as text"),
    b"PK\x03\x04": ("a zip archive", "unzip {file}", "unpacks it; --snapshot also reads a folder"),
    b"BZh": ("compressed by bzip2", "bunzip2 -c {file}", "prints it as text"),
    b"\xfd7zXZ": ("compressed by xz", "xz -dc {file}", "prints it as text"),
    b"\x28\xb5\x2f\xfd": ("compressed by Zstandard", "zstd -dc {file}", "prints it as text"),
}
_ARCHIVE = ("a tar archive", "tar -xf {file}", "unpacks it; --snapshot also reads a folder")
_WIDE_MARKS = {  # byte order marks; the longer ones first, since one begins like a shorter one
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip
# How texts begin that kubectl prints where no dump was asked for, or that others print in its place.
_OTHER_TEXTS = (
    (re.compile(rb"(?:NAME|NAMESPACE|LAST SEEN)[ \t]+[A-Z]|(?:NAMESPACE|NAME)[ \t]*\n"),
     "a table found, as 'kubectl get' prints it without -o yaml"),
    (re.compile(rb"Name:[ \t]+\S+\r?\n(?:[A-Z][A-Za-z -]*:|$)"), "a text of 'kubectl describe' found"),
    (re.compile(rb"[a-z.]+/[a-z0-9.-]+\r?\n(?:[a-z.]++/[a-z0-9.-]++\r?\n)*+\Z"),
     "names found, as 'kubectl get -o name' prints them"),
    (re.compile(rb"(?:error: |Error from server|Unable to connect to the server|The connection to the server"
                rb"|No resources found)[^\r\n]*"), "a message of kubectl found ({})"),
    (re.compile(rb"(?i:<!doctype html|<html)"), "a page in HTML found"),
)  # fmt: skip
# What is to be replaced in a text, and what looks like it. Wrong is what YAML does not call printable (1.2, section
# 5.1), which JSON needs for no value; and half a character, as JSON writes those that need two escapes.
_WRONG = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\\\"
    "|(\\\\u[dD][89a-fA-F][0-9a-fA-F]{2}|[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff])"
)
_OCTETS = 0xDC00  # what Python makes of the octet 0, if it is no UTF-8
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TEXT_SHARE = 0.9  # of the characters of a text; otherwise it is something else


class NotADump(ValueError):
    """The text is not a dump; the message says where, what was found and what was expected."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Cleaned(NamedTuple):
    """A text with a replacement character for each octet or character that no text has.

    ``line`` is that of the first of these, ``message`` says what was found, ``expected`` what should be there.
    """

    text: bytes
    line: int
    message: str
    expected: str


def too_large() -> NotADump:
    """Return what is wrong with files of more than MAX_OCTETS."""
    return NotADump(f"more than {MAX_OCTETS >> 30} GiB in all that is read, unpacked; expected a dump")


def unpacked(data: bytes, file: str, most: int) -> bytes:
    """Return the content of a file whose name says that it is compressed by gzip. Raises NotADump.

    It may have *most* octets.
    """
    result, position = io.BytesIO(), 0  # its value is no copy
    try:
        while not position or data.startswith(GZIP, position):  # gzip files can be joined
            unpacker, size = zlib.decompressobj(wbits=31), SMALLEST
            while not unpacker.eof:
                if position >= len(data):
                    tests = shell("gunzip -t {file}", file)
                    raise NotADump(f"cut off: the end of what gzip wrote is missing; {tests} tests it")
                result.write(unpacker.decompress(data[position : position + size]))
                position, size = position + size, min(2 * size, LARGEST)
                if result.tell() > most:
                    raise too_large()
                if result.tell() > max(RATIO_FROM, MAX_RATIO * position):
                    raise NotADump(f"more than {MAX_RATIO} times as large unpacked, expected a dump")
            position = min(position, len(data)) - len(unpacker.unused_data)
    except zlib.error as error:
        reason = f"not as gzip writes it ({error})" if data.startswith(GZIP) else "not compressed by gzip"
        raise NotADump(f"{reason}, expected that of a file whose name ends in .gz") from None
    if rest := len(data[position:].strip(b"\0")):  # gzip allows padding
        raise NotADump(f"{rest} octets found after what gzip wrote, expected that all of the file is compressed")
    return result.getvalue()


def text_of(data: bytes, file: str = "") -> bytes:
    """Return *data* without a mark of UTF-8 at its beginning. Raises NotADump if it is no text in UTF-8 or ASCII.

    Single octets may still be wrong, which ``cleaned`` replaces. *file* is named in commands, empty for standard input.
    """
    packed = next((packed for beginning, packed in _PACKED.items() if data.startswith(beginning)), None)
    if packed is not None or data.startswith(TAR_WORD, TAR_AT):
        what, command, does = packed or _ARCHIVE
        if data.startswith(GZIP) and _is_tar(zlib.decompressobj(wbits=31), data):
            what, command, does = f"{_ARCHIVE[0]} {what}", *_ARCHIVE[1:]
        raise NotADump(f"{what}, expected YAML or JSON; {shell(command, file)} {does}")
    if encoding := _wide(data):
        converts = shell(f"iconv -f {encoding} -t UTF-8 {{file}}", file)
        raise NotADump(f"{encoding}, expected UTF-8; {converts} prints it so (in PowerShell, '>' writes UTF-16)")
    return data.removeprefix(codecs.BOM_UTF8)


def cleaned(text: bytes, file: str) -> Cleaned | None:
    """Return a text in which single octets or characters are replaced, None if nothing is wrong. Raises NotADump.

    A dump with a value in Latin-1 is read but for that value. *file* is named in commands.
    """
    decoded, first, number = text.decode(errors="surrogateescape"), None, 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal first, number
        if match[1] is None:
            return match[0]
        first, number = first or match, number + 1
        return REPLACEMENT

    clean = _WRONG.sub(replaced, decoded)
    if first is None:
        return None
    if number > len(clean) * (1 - TEXT_SHARE):
        raise NotADump("octets that are no text, expected YAML or JSON in UTF-8")
    what, expected = _wrong(first[0], file)
    return Cleaned(clean.encode(), decoded.count("\n", 0, first.start()) + 1, what + and_more(number), expected)


def _wrong(found: str, file: str) -> tuple[str, str]:
    """Return what was found where a text should be, and what is expected."""
    if len(found) > 1:
        return f"half a character, {found}, found", "both halves of it, or none"
    code = ord(found)
    if _OCTETS <= code < _OCTETS + 256:
        converts = shell("iconv -f LATIN1 -t UTF-8 {file}", file)
        return f"octet 0x{code - _OCTETS:02x} is no text in UTF-8", f"UTF-8; {converts} converts Latin-1"
    removes = shell(f'tr -d "\\{code:03o}"{" < {file}" if file else ""}', file)
    expected = f"a text without it; {removes} removes it" if code < 0x80 else "a text without it"
    return f"control character 0x{code:02x} found", expected


def other_text(text: bytes) -> str:
    """Return what a text is that is no dump, "" if it is nothing that people take for one."""
    for pattern, what in _OTHER_TEXTS:
        if match := pattern.match(text.lstrip()):
            return what.format(match[0].decode(errors="replace").strip())
    return ""


def _is_tar(unpacker: Any, data: bytes) -> bool:
    try:
        beginning: bytes = unpacker.decompress(data, 512)
    except zlib.error:
        return False
    return beginning.startswith(TAR_WORD, TAR_AT)


def _wide(data: bytes) -> str:
    """Return the encoding of a text that has two or four octets for each character, "" for others."""
    for mark, encoding in _WIDE_MARKS.items():
        if data.startswith(mark):
            return encoding
    beginning = data[:64]
    if len(beginning) < 4 or b"\0" not in beginning:
        return ""
    zeros = [sum(octet == 0 for octet in beginning[n::4]) * 8 > len(beginning) for n in range(4)]  # mostly zero
    patterns = {(0, 1, 0, 1): "UTF-16LE", (1, 0, 1, 0): "UTF-16BE", (0, 1, 1, 1): "UTF-32LE", (1, 1, 1, 0): "UTF-32BE"}
    return patterns.get((zeros[0] * 1, zeros[1] * 1, zeros[2] * 1, zeros[3] * 1), "")


def shell(command: str, file: str) -> str:
    """Return a command for a shell, which reads standard input if *file* is empty."""
    return f"'{command.replace('{file}', shell_words(file) if file else '').strip()}'"
