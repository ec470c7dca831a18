"""Texts are cut only where llama.cpp would find the same special tokens in the parts.

The oracle searches as tokenizer_st_partition does: for the longest token first, in all texts that
are left.
"""

import random

import pytest

from pyselfspec.runtime.pieces import Pieces

Parts = list[tuple[str, bool]]  # a text, and whether it is a special token


def partition(text: str, strips: dict[str, tuple[bool, bool]]) -> Parts:
    parts: Parts = [(text, False)] if text else []
    for token in sorted(strips, key=len, reverse=True):
        before, behind = strips[token]
        found: Parts = []
        for part, is_token in parts:
            while not is_token and (at := part.find(token)) >= 0:
                left, part = part[:at], part[at + len(token) :]
                left = left.rstrip() if before else left
                part = part.lstrip() if behind else part
                found += [(left, False)] if left else []
                found.append((token, True))
            found += [(part, is_token)] if part else []
        parts = found
    return parts


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_pieces_are_those_of_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    n_cuts = 0
    for _ in range(200):
        letters = rng.choice(["ab ", "a<>|", "ab\n <>"])
        tokens = {"".join(rng.choices(letters, k=rng.randint(1, 5))) for _ in range(4)}
        strips = {token: (rng.random() < 0.3, rng.random() < 0.3) for token in tokens}
        words = [*tokens, *letters, *letters]
        text = "".join(rng.choices(words, k=rng.randint(0, 40)))
        pieces = list(Pieces({k: v[1] for k, v in strips.items()}).of(text, rng.randint(1, 9)))
        assert "".join(pieces) == text
        n_cuts += len(pieces) - 1
        found = [part for piece in pieces for part in partition(piece, strips)]
        assert found == partition(text, strips), (text, strips, pieces)
    assert n_cuts > 100


def test_texts_without_special_tokens_are_whole() -> None:
    assert list(Pieces({}).of("a" * 50, 5)) == ["a" * 50]
    assert list(Pieces({"<x>": False}).of("a" * 50, 5)) == ["a" * 50]
    assert list(Pieces({"<x>": False}).of("", 5)) == [""]


def test_pieces_of_special_tokens_are_short() -> None:
    pieces = list(Pieces({"<x>": False, "<": False}).of("<x>" * 1000, 30))
    assert {len(piece) for piece in pieces[:-1]} == {33}
