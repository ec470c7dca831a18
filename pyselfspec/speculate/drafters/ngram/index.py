"""Indexes of n-grams over texts, and chains of tokens that followed the same n-gram before. They
are kept and searched in C++, see native/ngrams/.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ....costs.chances import FORGET, LENGTHS, Chances, Match
from ....runtime.ffi import ngram_calls
from ....runtime.sequence_table import n_common

N_TOKENS = 2**16  # most tokens of a text that are indexed; about 6 MB
BETWEEN = -1  # no token: stands between texts, and is never copied
_N_ROW_IDS = 2**31 - 2  # ids of rows of pictures in an index


class Copy(NamedTuple):
    """A token that followed a match."""

    token: int
    match: Match


class NgramIndex:
    """The n-grams of a growing text, and what followed them.

    n_most: tokens after so many are ignored.
    first: index of the shortest length that is looked up.
    """

    def __init__(self, n_most: int = N_TOKENS, first: int = 0) -> None:
        self._handle = ngram_calls.init(LENGTHS, first, n_most)
        # a text in a cycle of garbage is closed after finalizers have been called, except those of
        # what the garbage collector does not track, such as arrays
        self._alive = np.empty(0)
        freed = weakref.finalize(self._alive, ngram_calls.free, self._handle)
        freed.atexit = False  # texts that a program left unfinished are closed after that

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        ngram_calls.extend(self._handle, _ids(tokens))

    def chain(
        self,
        text: Sequence[int],
        n_new: int,
        n_max: int,
        *,
        chances: Chances,
        chance_min: float = 0.0,
        earlier: NgramIndex | None = None,
        corpus: NgramIndex | None = None,
        other_chances: Chances | None = None,
    ) -> tuple[list[int], list[float]]:
        """Append the last n_new tokens of a text, and return at most n_max tokens that may follow,
        with the probability of each that it is accepted if those before it are. Tokens from other
        texts count only after a longer match, and if they are more likely accepted.

        If there are new tokens, they are compared with the chain of the last call that had some,
        and chances are learned from that.

        text: its last tokens; those of the longest n-gram are enough.
        chance_min: the chain ends where the probability that all of it is accepted falls below
            this. A first token that is less likely is only learned from.
        """
        others = earlier._handle if earlier else None, corpus._handle if corpus else None
        return ngram_calls.chain(
            (self._handle, *others),
            _ids(text),
            n_new,
            chances.outcomes,
            (other_chances or chances).outcomes,
            FORGET,
            chance_min,
            n_max,
        )

    def others(self, end: Sequence[int], token: int, n_max: int) -> list[Copy]:
        """Return at most n_max other tokens that have followed the end of the text, longest matches
        first, then most frequent first."""
        found = ngram_calls.others(self._handle, _ids(end), token, n_max)
        rows = zip(found[::3], found[1::3], found[2::3], strict=True)
        return [Copy(other, (length, sureness)) for other, length, sureness in rows]


def _ids(tokens: Sequence[int]) -> array[int]:
    """Return tokens with 32 bits each. Longer ones, which are ids of rows of pictures or no tokens
    at all, are shortened to others below 0."""
    try:
        return array("i", tokens)
    except OverflowError:
        return array(
            "i", [t if abs(t) <= _N_ROW_IDS else BETWEEN - 1 + t % -_N_ROW_IDS for t in tokens]
        )


class EarlierTexts:
    """Earlier texts, one after the other. When they exceed n_kept tokens, the older half is
    dropped.

    tokens: of the texts to begin with.
    """

    def __init__(self, tokens: Sequence[int] = (), n_kept: int = N_TOKENS) -> None:
        self._n_kept = n_kept
        self._last: Sequence[int] = ()
        self.tokens = array("i")
        self.index = NgramIndex()
        self._extend(tokens)

    def add(self, text: Sequence[int]) -> list[int]:
        """Add a text and return its new tokens: the turns of a conversation share a prefix."""
        n = n_common(self._last, text)
        new = list(text[n if 2 * n > len(self._last) else 0 :])
        self._last = list(text)
        self._extend(new)
        return new

    def _extend(self, tokens: Sequence[int]) -> None:
        tokens = _ids(tokens)
        self.tokens.extend(tokens)
        if len(self.tokens) > self._n_kept:
            self.tokens = self.tokens[-(self._n_kept + 1) // 2 :]
            self.index, tokens = NgramIndex(), self.tokens
        self.index.extend(tokens)
