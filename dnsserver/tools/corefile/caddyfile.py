# SPDX-License-Identifier: Apache-2.0

"""Parses a Corefile as CoreDNS does: server blocks, their keys and their directives.

Pure. Takes any text, and raises only ``Unparsable``. Does not read imported files or substitute environment variables,
because both belong to the machine that runs CoreDNS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from locator.printable import cut, quoted

IMPORT = "import"
MAX_IMPORTS = 10_000  # of snippets, as in CoreDNS: snippets may import each other
MAX_WORDS = 100_000  # far more than any Corefile has; nested snippets grow fast

_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORDS = re.compile(
    rf"""
    (?P<space> [{_SPACE}]+ )
  | (?P<comment> \#[^\n]* )
  | "(?P<quoted> [^"\\]*+(?:\\.[^"\\]*+)*+ )\\?(?:"|\Z)
  | (?P<plain> [^{_SPACE.replace(chr(13), "")}\#]+ )(?:\#[^{_SPACE}]*)?
    """,
    re.VERBOSE | re.DOTALL,
)


class Unparsable(Exception):
    """A text is not a Corefile. The message has the line, what was found and what was expected."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")


class Import(Struct, frozen=True, eq=False):
    """The import of a snippet: where it begins and ends in the text, the snippet's text, and the import around it."""

    start: int
    end: int
    body: str
    outer: Import | None


class Word(NamedTuple):
    """A word, and the numbers of its first and last line: a quoted word may span several lines.

    ``start`` and ``end`` are where it is in the text that it was read from, with its quotes. A word of a snippet knows
    the import that put it in its place.
    """

    text: str
    line: int
    last: int
    start: int = 0
    end: int = 0
    imported: Import | None = None


class Braces(NamedTuple):
    """The braces of a directive: the opening one, the first word after it, and the closing one."""

    opening: Word
    first: Word
    closing: Word


class Directive(NamedTuple):
    """A directive, such as a plugin, or a line of its block: the words of its line, and the lines of its own block.

    The lines of nested blocks are among the lines of the block.
    """

    words: tuple[Word, ...]
    body: tuple[Directive, ...] = ()
    braces: Braces | None = None

    @property
    def name(self) -> str:
        """The first word."""
        return self.words[0].text

    @property
    def arguments(self) -> tuple[str, ...]:
        """The other words of the line."""
        return tuple(word.text for word in self.words[1:])

    @property
    def line(self) -> int:
        """The number of the line."""
        return self.words[0].line

    @property
    def end(self) -> int:
        """The position after the directive, with its braces."""
        return self.braces.closing.end if self.braces else self.words[-1].end

    def lines(self, name: str) -> list[Directive]:
        """Return the lines of the block whose first word is *name*."""
        return [line for line in self.body if line.name == name]


class Block(NamedTuple):
    """A server block: its keys as written, its directives in order, and the first word in it, if there is one.

    An imported file is a directive named ``import``; outside all blocks, it is in a block without keys.
    """

    keys: tuple[str, ...]
    directives: tuple[Directive, ...]
    line: int
    first: Word | None = None


def parse(text: str) -> list[Block]:
    """Return the blocks of a Corefile with all imported snippets inserted. Raises Unparsable."""
    if "\0" in text:
        raise Unparsable(text.count("\n", 0, text.index("\0")) + 1, "a NUL octet found, expected text")
    return list(_CaddyfileParser(text).blocks())


def _words_of(text: str) -> Iterator[Word]:
    """Yield the words of a Corefile, without quotes and comments. Raises Unparsable."""
    line = 1
    for number, match in enumerate(_WORDS.finditer(text, text.startswith("\ufeff"))):
        if number > 2 * MAX_WORDS:
            raise Unparsable(line, f"more than {MAX_WORDS} words, expected a Corefile")
        first, line = line, line + match[0].count("\n")
        if match["quoted"] is not None:
            yield Word(match["quoted"].replace('\\"', '"'), first, line, *match.span())
        elif match["plain"] is not None:
            start, written = match.start("plain"), match["plain"].rstrip("\r")  # of a line's end
            yield Word(written.replace("\r", ""), first, first, start, start + len(written))


class _CaddyfileParser:
    """Parses words into blocks, and replaces each import of a snippet by the snippet's words."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = list(_words_of(text))
        self._at = 0
        self._imports = 0
        self._snippets: dict[str, tuple[list[Word], str]] = {}

    def blocks(self) -> Iterator[Block]:
        while self._at < len(self._words):
            first = self._words[self._at]
            if first.text == IMPORT:
                imported = self._import()
                if imported is not None:
                    yield Block((), (imported,), first.line)
                continue
            keys = self._keys()
            if not keys and not self._next_is("{"):
                continue
            if len(keys) == 1 and keys[0].startswith("(") and keys[0].endswith(")"):
                self._define(keys[0][1:-1], first.line)
            else:
                at = self._at + self._next_is("{")
                inside = self._words[at] if at < len(self._words) else None
                yield Block(tuple(keys), tuple(self._directives(first.line)), first.line, inside)

    def _keys(self) -> list[str]:
        """Read the keys of a block. They continue on the next line after a comma."""
        keys: list[str] = []
        more = False
        while self._at < len(self._words):
            word = self._words[self._at]
            if word.text == "{":
                if more:
                    raise Unparsable(word.line, "'{' found after a comma, expected another zone")
                return keys
            if keys and not more and self._begins_line(self._at):
                return keys
            if word.text == "}" and self._at + 1 == len(self._words):
                self._at += 1  # CoreDNS accepts one too many at the end of the file
                return []
            if word.text == "}":
                raise Unparsable(word.line, "'}' found, expected a zone: no '{' is open")
            if word.text.endswith("{"):  # CoreDNS reads it as a zone name, and refuses all queries
                raise Unparsable(word.line, f"{quoted(word.text)} found, expected a space before '{{'")
            more = word.text.endswith(",")
            if key := word.text.removesuffix(","):
                keys.append(key)
            self._at += 1
        if more:
            raise Unparsable(self._words[-1].last, "the end found after a comma, expected another zone")
        return keys

    def _define(self, name: str, line: int) -> None:
        """Read the definition of a snippet."""
        start, depth = self._at + 1, 0
        braces = self._next_is("{") and name not in self._snippets
        while braces and self._at < len(self._words) and (depth or self._at < start):
            word = self._words[self._at]
            self._at += 1
            depth += (word.text == "{") - (word.text == "}")
        if depth or not braces:
            raise Unparsable(line, f"({cut(name)}) found, expected one snippet of that name, in braces")
        words = self._words[start : self._at - 1]
        body = self._text[self._words[start - 1].end : self._words[self._at - 1].start]
        self._snippets[name] = words, body.strip()

    def _directives(self, line: int) -> Iterator[Directive]:
        """Read the directives of a block. Without braces, the block extends to the end of the file."""
        braces = self._next_is("{")
        self._at += braces
        while self._at < len(self._words):
            word = self._words[self._at]
            if word.text == "}":
                self._at += 1
                return
            if word.text == IMPORT:
                imported = self._import()
                if imported is not None:
                    yield imported
            else:
                yield self._directive()
        if braces and self._words[-1].text != "}":  # "}" of a directive also ends the block in CoreDNS
            raise Unparsable(line, "the block has no end, expected '}'")

    def _directive(self) -> Directive:
        name = self._words[self._at]
        self._at += 1
        words, body, depth = [name], list[list[Word]](), 0
        opened = name
        braces: Braces | None = None
        while self._at < len(self._words):
            word, fresh = self._words[self._at], self._begins_line(self._at)
            if not depth and word.text != "{" and fresh:
                break
            if word.text == IMPORT and fresh:
                imported = self._import()
                if imported is not None:
                    body.append(list(imported.words))
                continue
            self._at += 1
            if word.text == "{":
                depth += 1
                opened = word
                if depth == 1 and braces is None and self._at < len(self._words):
                    braces = Braces(word, self._words[self._at], word)
            elif word.text == "}":
                depth -= 1
                if depth < 0:
                    raise Unparsable(word.line, "'}' found, expected none in this line: no '{' is open")
                if not depth and braces is not None and braces.closing is braces.opening:
                    braces = braces._replace(closing=word)
            elif not depth and not body:
                words.append(word)
            elif body and body[-1][-1].last == word.line:
                body[-1].append(word)
            else:
                body.append([word])
        if depth:
            raise Unparsable(opened.line, f"the block of {cut(name.text)} has no end, expected '}}'")
        return Directive(tuple(words), tuple(Directive(tuple(line)) for line in body), braces)

    def _import(self) -> Directive | None:
        """Replace an import by its snippet and return None, or return the directive that imports a file."""
        word, end = self._words[self._at], self._at + 1
        while end < len(self._words) and not self._begins_line(end):
            end += 1
        arguments = self._words[self._at + 1 : end]
        if len(arguments) != 1 or not arguments[0].text:
            raise Unparsable(word.line, f"{len(arguments)} words after import, expected a snippet or a file")
        name = arguments[0]
        if name.text not in self._snippets:
            self._at = end
            return Directive((word, name))
        words, body = self._snippets[name.text]
        self._imports += 1
        if self._imports > MAX_IMPORTS or len(self._words) + len(words) > MAX_WORDS:
            raise Unparsable(word.line, f"import {cut(name.text)}: too many imports, expected no cycle")
        imported = Import(word.start, name.end, body, word.imported)
        self._words[self._at : end] = [word._replace(imported=imported) for word in words]
        return None

    def _next_is(self, text: str) -> bool:
        return self._at < len(self._words) and self._words[self._at].text == text

    def _begins_line(self, at: int) -> bool:
        return at == 0 or self._words[at - 1].last < self._words[at].line
