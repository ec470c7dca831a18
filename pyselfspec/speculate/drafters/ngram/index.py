"""An index of n-grams over a growing text. Pure.

For every n-gram it stores where it last ended, and for each end the one before it, so that a token
costs a few look-ups whatever the length of the text. Saxena, "Prompt Lookup
Decoding", https://github.com/apoorvumang/prompt-lookup-decoding, copies after the latest match of
one length; here all recent matches of the longest length that has any are counted, as in Oliaro et
al., "SuffixDecoding", section 3, https://arxiv.org/abs/2411.04975.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ....costs.chances import LENGTHS, Match
from ....runtime.sequence_table import n_common

N_MATCHES = 8  # latest matches that count
N_TOKENS = 2**16  # most tokens of a text that are indexed; about 60 MB


class Copy(NamedTuple):
    """A token that followed a match."""

    token: int
    match: Match


class NgramIndex:
    def __init__(self) -> None:
        self._text: list[int] = []
        self._last: list[dict[int, int]] = [{} for _ in LENGTHS]  # where an n-gram ended last
        self._before: list[array[int]] = [array("i") for _ in LENGTHS]  # by end: the one before

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text; those after N_TOKENS are ignored."""
        text = self._text
        start = len(text)
        text += tokens[: N_TOKENS - start]
        for length, last, before in zip(LENGTHS, self._last, self._before, strict=True):
            for end in range(start + 1, len(text) + 1):
                if end < length:
                    before.append(0)
                    continue
                key = hash(tuple(text[end - length : end]))
                before.append(last.get(key, 0))
                last[key] = end

    def following(self, context: Sequence[int], beyond: int = -1, shortest: int = 0) -> Copy | None:
        """Return the token that follows most of the latest matches of the context's end.

        beyond: index of a length; only longer matches count.
        shortest: index of a length at which to begin the search: the match of the token before,
            if this index found that one; else 0.
        """
        matches = self._matches(context, max(shortest, beyond + 1))
        if not matches:  # if there is a shorter one, the match of the token before ended the text
            return self.following(context, beyond) if shortest else None
        longest, found = matches[-1]
        tokens = self._continuations(longest, found)
        if len(tokens) == 1:
            return Copy(tokens[0], (longest, 0))
        token = max(tokens, key=tokens.count)  # of several the latest
        return Copy(token, (longest, sureness(tokens.count(token), len(tokens))))

    def others(self, context: Sequence[int], token: int, n: int) -> list[Copy]:
        """Return at most n other tokens that have followed the context's end, longest matches
        first, then most frequent first."""
        found: list[Copy] = []
        seen = {token}
        for i, end in reversed(self._matches(context)):
            tokens = self._continuations(i, end)
            for other, count in Counter(tokens).most_common():
                if other not in seen:
                    seen.add(other)
                    found.append(Copy(other, (i, sureness(count, len(tokens)))))
            if len(found) >= n:
                break
        return found[:n]

    def _matches(self, context: Sequence[int], shortest: int = 0) -> list[tuple[int, int]]:
        """Return the index of each length and where the context's end of this length last ended
        with a token after it, shortest first. An n-gram without a match has no longer match
        either."""
        found: list[tuple[int, int]] = []
        for i in range(shortest, len(LENGTHS)):
            if LENGTHS[i] > len(context):
                break
            end = self._last[i].get(hash(tuple(context[-LENGTHS[i] :])), 0)
            if end and end == len(self._text):
                end = self._before[i][end - 1]
            if not end:
                break
            found.append((i, end))
        return found

    def _continuations(self, i: int, end: int) -> list[int]:
        """Return the tokens after the latest ends of an n-gram, from this one back, latest
        first."""
        tokens: list[int] = []
        while end and len(tokens) < N_MATCHES:
            tokens.append(self._text[end])
            end = self._before[i][end - 1]
        return tokens


def sureness(n: int, n_all: int) -> int:
    """Return 0 for one match, 1 for matches that differ, 2 if most agree, 3 if all agree."""
    if n_all == 1:
        return 0
    return 3 if n == n_all else 2 if 2 * n > n_all else 1


class EarlierTexts:
    """Earlier texts, one after the other. When they exceed n_kept tokens, the older half is
    dropped.

    tokens: of the texts to begin with.
    """

    def __init__(self, tokens: Sequence[int] = (), n_kept: int = N_TOKENS) -> None:
        self._n_kept = n_kept
        self._last: Sequence[int] = ()
        self.tokens: list[int] = []
        self._index = NgramIndex()
        self._extend(tokens)

    def add(self, text: Sequence[int]) -> list[int]:
        """Add a text and return its new tokens: the turns of a conversation share a prefix."""
        n = n_common(self._last, text)
        new = list(text[n if 2 * n > len(self._last) else 0 :])
        self._last = list(text)
        self._extend(new)
        return new

    def _extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        if len(self.tokens) > self._n_kept:
            self.tokens = self.tokens[-(self._n_kept + 1) // 2 :]
            self._index, tokens = NgramIndex(), self.tokens
        self._index.extend(tokens)

    def following(self, context: Sequence[int], beyond: int = -1) -> Copy | None:
        """See ``NgramIndex.following``."""
        return self._index.following(context, beyond)
