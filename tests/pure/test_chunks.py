"""Cutting a text into chunks."""

import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.selection import chunks


def test_chunks_follow_each_other_and_begin_with_the_start_token():
    assert chunks.cut(range(11), 4, 99) == [(99, 1, 2, 3), (99, 5, 6, 7)]
    assert chunks.cut(range(11), 4, None) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert len(chunks.cut(range(8), 8, None)) == 1


def test_a_text_shorter_than_a_chunk_is_refused():
    with pytest.raises(ArgumentError, match="7 tokens, one chunk takes 8"):
        chunks.cut(range(7), 8, None)


def test_chunks_too_short_to_score_are_refused():
    with pytest.raises(ArgumentError, match="4 tokens or more, got 3"):
        chunks.cut(range(70), 3, None)
