# SPDX-License-Identifier: Apache-2.0

"""A Corefile with the positions of its words, and the ways to change a part of it and nothing else.

Pure. Every change returns the whole new text. White space, comments and the ends of lines stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dnsserver.settings.values import ListenAddress
from dnsserver.tools.corefile.caddyfile import IMPORT, Block, Directive, Word, parse, words_of
from dnsserver.tools.corefile.stub_zones import server_of, stubs_of, zones_named

_INDENT = "    "


class Span(NamedTuple):
    """A part of the text."""

    start: int
    end: int


class CorefileText:
    """A Corefile. *to* and *zones* say which blocks are meant to ask topodns, as in ``stubs_of``."""

    def __init__(self, text: str, to: Sequence[ListenAddress], zones: Sequence[str]) -> None:
        self.text, self.to = text, to
        self.words = list(words_of(text))
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.servers = [server_of(block) for block in parse(text) if block.keys]
        self.stubs = list(stubs_of(self.servers, to=to, zones=[zones_named(zone)[0] for zone in zones]))

    # --- Where things are ---

    def extent(self, block: Block) -> tuple[int, int]:
        """Return the numbers of the first word inside a block, and of the first after it: its brace, or the end."""
        at = next(n for n, word in enumerate(self.words) if word.line >= block.line and word.text != "}")
        while at < len(self.words) and self.words[at].text != "{":
            at += 1
            before = self.words[at - 1]
            if at < len(self.words) and self.words[at].line > before.last and not before.text.endswith(","):
                break
        return self._inside(at) if self._opens(at) else (at, len(self.words))

    def _opens(self, at: int) -> bool:
        return at < len(self.words) and self.words[at].text == "{"

    def _inside(self, opened: int) -> tuple[int, int]:
        """Return the numbers of the first word inside the braces that the word *opened* is, and of the closing one."""
        depth = 0
        for closed in range(opened, len(self.words)):
            depth += (self.words[closed].text == "{") - (self.words[closed].text == "}")
            if not depth:
                return opened + 1, closed
        return opened + 1, len(self.words)

    def place(self, block: Block, directive: Directive) -> int | None:
        """Return the number of a directive's first word in its block; None if it comes from a snippet."""
        return self.line_at(block, directive.line, directive.name)

    def line_at(self, block: Block, line: int, first: str) -> int | None:
        """Return the number of the word that begins a line of a block; None if the line comes from a snippet."""
        start, end = self.extent(block)
        return next((n for n in range(start, end) if self.words[n].line == line and self.words[n].text == first), None)

    def argument_words(self, at: int) -> list[Word]:
        """Return the words of the line that begins with the word *at*, without the brace that opens its block."""
        line = [self.words[at]]
        for word in self.words[at + 1 :]:
            if word.line != line[-1].last or word.text in ("{", "}"):
                break
            line.append(word)
        return line

    def span(self, directive: Directive, at: int) -> Span:
        """Return where a directive is, with its braces."""
        words = self.argument_words(at)
        following = at + len(words)
        if self._opens(following):
            end = self._inside(following)[1]
            return Span(words[0].start, self.words[min(end, len(self.words) - 1)].end)
        return Span(words[0].start, words[-1].end)

    def indent(self, word: Word) -> str:
        """Return the white space before a word that begins its line, else that of most Corefiles."""
        before = self.text[self._line_start(word.start) : word.start]
        return before if before and before.isspace() else _INDENT

    def _line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def _line_end(self, at: int) -> int:
        """Return the position after the end of the line."""
        return end + 1 if (end := self.text.find("\n", at)) >= 0 else len(self.text)

    # --- Changes ---

    def put(self, span: Span, new: str) -> str:
        """Return the text with *new* in place of a part."""
        return self.text[: span.start] + new + self.text[span.end :]

    def put_word(self, word: Word, new: str) -> str:
        """Return the text with *new* in place of a word."""
        return self.put_words([(word, new)])

    def put_words(self, changes: Iterable[tuple[Word, str]]) -> str:
        """Return the text with other words in place of some."""
        text = self.text
        for word, new in sorted(changes, key=lambda change: change[0].start, reverse=True):
            text = text[: word.start] + new + text[word.end :]
        return text

    def lines_of(self, span: Span) -> Span:
        """Return the whole lines of a part, if nothing but a comment is beside it there; else the part."""
        start, end = self._line_start(span.start), self._line_end(span.end)
        alone = not self.text[start : span.start].strip() and re.match(r"\s*(#|$)", self.text[span.end : end])
        return Span(start, end) if alone else span

    def without(self, span: Span) -> str:
        """Return the text without a part, and without its lines if nothing else is there."""
        return self.put(self.lines_of(span), "")

    def before(self, at: int, *lines: str) -> str:
        """Return the text with lines before the word *at*, indented like it."""
        word = self.words[at]
        start, indent = self._line_start(word.start), self.indent(word)
        if not self.text[start : word.start].strip():
            return self.put(Span(start, start), "".join(f"{indent}{line}{self.newline}" for line in lines))
        ends = len(self.text[start : word.start].rstrip()) + start
        return self.put(Span(ends, word.start), "".join(f"{self.newline}{indent}{line}" for line in (*lines, "")))

    def added(self, block: str) -> str:
        """Return the text with a block at its end."""
        end = "" if not self.text or self.text.endswith("\n") else self.newline
        return self.text + end + block.replace("\n", self.newline)

    def on_top(self, block: Block, line: str) -> str:
        """Return the text with a line as the first of a block."""
        first = self.extent(block)[0]
        return self.before(first, line) if first < len(self.words) else self.added(f"{line}\n")

    def with_option(self, at: int, option: str) -> str:
        """Return the text with a line in the braces of the directive whose first word is *at*."""
        words = self.argument_words(at)
        following = at + len(words)
        indent = self.indent(self.words[at])
        unit = "\t" if indent.startswith("\t") else _INDENT
        if not self._opens(following):
            braces = f" {{{self.newline}{indent}{unit}{option}{self.newline}{indent}}}"
            return self.put(Span(words[-1].end, words[-1].end), braces)
        inside, closing = self._inside(following)
        if inside < closing:
            return self.before(inside, option)
        end = self.words[following].end
        return self.put(
            Span(end, self.words[closing].start), f"{self.newline}{indent}{unit}{option}{self.newline}{indent}"
        )

    def imported(self, block: Block, line: int) -> str | None:
        """Return the text with the snippet that has a *line* in place of its import in a block; None if none has it."""
        start, end = self.extent(block)
        for at in range(start, end):
            name = self._import_at(at)
            snippet = name and self._snippet(name)
            if snippet and self._has(name, line, set()):
                inside, closing = snippet
                body = self.text[self.words[inside - 1].end : self.words[closing].start].strip()
                return self.put(Span(self.words[at].start, self.words[at + 1].end), body)
        return None

    def _import_at(self, at: int) -> str:
        """Return the name of the snippet that the word *at* imports, empty if it imports none."""
        begins = at == 0 or self.words[at - 1].last < self.words[at].line or self.words[at - 1].text == "{"
        imports = begins and self.words[at].text == IMPORT and at + 1 < len(self.words)
        return self.words[at + 1].text if imports else ""

    def _snippet(self, name: str) -> tuple[int, int] | None:
        at = next((n for n, word in enumerate(self.words) if word.text == f"({name})"), None)
        return None if at is None else self._inside(at + 1)

    def _has(self, name: str, line: int, seen: set[str]) -> bool:
        """Whether a snippet has a line, or imports one that has it."""
        snippet = None if name in seen else self._snippet(name)
        if snippet is None:
            return False
        inside, closing = snippet
        own = any(self.words[at].line == line for at in range(inside, closing))
        nested = (self._import_at(at) for at in range(inside, closing))
        return own or any(self._has(other, line, seen | {name}) for other in nested if other)
