"""The C interface of indexes of n-grams refuses arguments that cannot be."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from pyselfspec.runtime.ffi.calls import BAD_ARGUMENT
from pyselfspec.runtime.ffi.load import native

TOKENS = (ctypes.c_int32 * 4)(7, 8, 7, 8)
FOUND, CHANCES = (ctypes.c_int32 * 12)(), (ctypes.c_double * 4)()
CHAIN = {
    **{"own": None, "earlier": None, "others": None, "end": TOKENS, "n_end": 4, "n_new": 0},
    **{"counts": (ctypes.c_double * 16)(*[0.5] * 16), "other_counts": (ctypes.c_double * 16)()},
    **{"forget": 1.0, "chance_min": 0.0, "n_max": 4, "tokens": FOUND, "chances": CHANCES},
}


def made(lengths: tuple[int, ...], first: int = 0, n_most: int = 99) -> int | None:
    values = (ctypes.c_int32 * len(lengths))(*lengths)
    handle: int | None = native.selfspec_ngrams_init(values, len(lengths), first, n_most)
    return handle


@pytest.fixture
def index() -> Iterator[int | None]:
    handle = made((1, 2))
    assert native.selfspec_ngrams_extend(handle, TOKENS, 4) == 0
    yield handle
    native.selfspec_ngrams_free(handle)


@pytest.mark.parametrize(
    ("lengths", "first", "n_most"),
    [
        *(((), 0, 9), ((0, 1), 0, 9), ((2, 1), 0, 9), ((1, 1), 0, 9), (tuple(range(1, 10)), 0, 9)),
        *(((1, 2), 2, 9), ((1, 2), -1, 9), ((1, 2), 0, -1), ((1, 2), 0, 1 << 24)),
    ],
)
def test_an_index_that_cannot_be(lengths: tuple[int, ...], first: int, n_most: int) -> None:
    assert made(lengths, first, n_most) is None


def test_nothing_is_freed_and_no_lengths_are_refused() -> None:
    native.selfspec_ngrams_free(None)
    assert native.selfspec_ngrams_init(None, 2, 0, 9) is None


def test_tokens_that_cannot_be(index: int) -> None:
    for args in ((None, TOKENS, 4), (index, None, 4), (index, TOKENS, -1)):
        assert native.selfspec_ngrams_extend(*args) == BAD_ARGUMENT
    assert native.selfspec_ngrams_extend(index, None, 0) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        *({"own": None}, {"end": None}, {"n_end": -1}, {"n_new": -1}, {"n_new": 5}),
        *({"counts": None}, {"other_counts": None}, {"n_max": -1}, {"tokens": None}),
        {"chances": None},
    ],
)
def test_a_chain_that_cannot_be(index: int, wrong: dict[str, object]) -> None:
    args = CHAIN | {"own": index} | wrong
    assert native.selfspec_ngrams_chain(*args.values()) == BAD_ARGUMENT


def test_a_chain_with_texts_of_other_lengths_is_refused(index: int) -> None:
    other = made((1, 3))
    for name in ("earlier", "others"):
        args = CHAIN | {"own": index, name: other}
        assert native.selfspec_ngrams_chain(*args.values()) == BAD_ARGUMENT
    native.selfspec_ngrams_free(other)


def test_a_chain_may_be_of_no_tokens_and_after_none(index: int) -> None:
    args = CHAIN | {"own": index}
    assert native.selfspec_ngrams_chain(*args.values()) == 4 and FOUND[:2] == [7, 8]
    args |= {"n_max": 0, "tokens": None, "chances": None}
    assert native.selfspec_ngrams_chain(*args.values()) == 0
    args = CHAIN | {"own": index, "end": None, "n_end": 0}
    assert native.selfspec_ngrams_chain(*args.values()) == 0


def test_others_that_cannot_be(index: int) -> None:
    wrong = ((None, TOKENS, 4, 7, 4, FOUND), (index, None, 4, 7, 4, FOUND))
    wrong += ((index, TOKENS, -1, 7, 4, FOUND), (index, TOKENS, 4, 7, -1, FOUND))
    for args in (*wrong, (index, TOKENS, 4, 7, 4, None)):
        assert native.selfspec_ngrams_others(*args) == BAD_ARGUMENT
    assert native.selfspec_ngrams_others(index, TOKENS, 4, 9, 4, FOUND) == 1
    assert native.selfspec_ngrams_others(index, TOKENS, 4, 7, 4, FOUND) == 0
