# SPDX-License-Identifier: Apache-2.0

"""The chunked transfer coding: what a body holds, however its octets arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.cluster.responses import MAX_SIZE_LINE, Dechunker


def coded(contents: list[bytes], extension: bytes = b"", end: bytes = b"0\r\n\r\n") -> bytes:
    """Return a body of chunks, as RFC 9112, section 7.1, has it."""
    return b"".join(b"%x%s\r\n%s\r\n" % (len(content), extension, content) for content in contents) + end


@given(
    contents=st.lists(st.binary(min_size=1) | st.just(b"x" * 300)),
    extension=st.sampled_from((b"", b";name=value", b" ; a")),
    end=st.sampled_from((b"0\r\n\r\n", b"00;last\r\nTrailer: value\r\n\r\n")),
    cuts=st.lists(st.integers(0, 2000)),
)
def test_the_content_is_the_same_however_it_arrives(
    contents: list[bytes], extension: bytes, end: bytes, cuts: list[int]
) -> None:
    """Chunks are cut anywhere: within their sizes, within their line ends."""
    body = coded(contents, extension, end)
    places = sorted({0, len(body), *(min(cut, len(body)) for cut in cuts)})
    dechunker = Dechunker()
    assert b"".join(dechunker.take(body[start:stop]) for start, stop in pairwise(places)) == b"".join(contents)
    assert dechunker.over


def test_it_is_over_with_the_last_chunk_alone() -> None:
    """A body that ends before it is one that broke off."""
    dechunker = Dechunker()
    assert dechunker.take(coded([b"one"], end=b"")) == b"one"
    assert not dechunker.over
    assert (dechunker.take(b"0\r\n"), dechunker.over) == (b"", True)


def test_content_comes_as_soon_as_it_arrives() -> None:
    """A watch must not wait for the rest of a chunk."""
    assert Dechunker().take(b"5\r\nab") == b"ab"


@pytest.mark.parametrize("body", [b"x\r\n", b"\r\n", b"-3\r\nabc", b"3" * (MAX_SIZE_LINE + 1)])
def test_what_is_not_chunked_is_refused(body: bytes) -> None:
    """The answer counts as broken off, and memory is bounded."""
    with pytest.raises(ValueError):
        Dechunker().take(body)
