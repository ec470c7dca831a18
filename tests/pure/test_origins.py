"""Which token each part of a text is from."""

import random

import pytest

from pyselfspec.speculate.output.sources import TaggedText, TokenTracker


def test_a_character_is_of_the_token_that_completes_it() -> None:
    origins = TokenTracker[str]()
    for i, byte in enumerate("aéb".encode()):
        origins.push(bytes([byte]), "wxyz"[i])
    assert origins.take("a") == [TaggedText("a", "w", "a"), TaggedText("", "x", "")]
    assert origins.take("éb") == [TaggedText("é", "y", "é"), TaggedText("b", "z", "b")]


def test_what_no_token_completes_is_of_the_last() -> None:
    origins = TokenTracker[str | None]()
    assert origins.take("?") == []
    origins.push(b"\xc3", None)
    assert origins.take("\ufffd") == [TaggedText("", None, ""), TaggedText("\ufffd", None)]


def test_text_that_is_held_back_is_of_its_token_when_it_comes() -> None:
    origins = TokenTracker[int]()
    origins.push(b"stop", 1)
    assert origins.take("") == []
    assert origins.take("st") == [TaggedText("st", 1, "stop")]
    assert origins.take("op") == [TaggedText("op", 1)]


@pytest.mark.parametrize("seed", range(20))
def test_any_text_cut_anywhere(seed: int) -> None:
    """Bytes are cut into tokens anywhere, characters into pieces anywhere."""
    rng = random.Random(seed)
    text = "".join(rng.choices("aß€\U0001f600 ", k=40))
    data, origins = text.encode(), TokenTracker[int]()
    want: list[int] = []  # of each character, the token that completes it
    given: list[int] = []
    begun: list[int] = []

    def take(piece: str) -> None:
        for part in origins.take(piece):
            given.extend([part.tag] * len(part.text))
            begun.extend([part.tag] * (part.token is not None))

    end = n_tokens = 0
    while end < len(data):
        start, end = end, min(end + rng.randint(1, 5), len(data))
        n_complete = len(data[:end].decode(errors="ignore"))
        want += [n_tokens] * (n_complete - len(want))
        origins.push(data[start:end], n_tokens)
        n_tokens += 1
        n_given = len(given)
        take(text[n_given : n_given + rng.randint(0, len(want) - n_given)])
    take(text[len(given) :])
    assert given == want, f"seed {seed}"
    assert begun == list(range(n_tokens)), f"seed {seed}"
