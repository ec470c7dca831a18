"""What followed the last tokens before: an index over a text that grows. Pure.

For every length of n-gram it knows where that n-gram ended last, and from each end the one before
it, so that a token costs a few look-ups whatever the length of the text. Saxena, "Prompt Lookup
Decoding", https://github.com/apoorvumang/prompt-lookup-decoding, copies after the latest match of
one length; here all recent matches of the longest length that has any are counted, as in Oliaro et
al., "SuffixDecoding", section 3, https://arxiv.org/abs/2411.04975.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..runtime.ledger import n_common

LENGTHS = (1, 2, 3, 4, 6, 8, 12)
N_MATCHES = 8  # that count, the latest ones
N_TOKENS = 2**16  # of a text that are indexed; about 60 MB

Match = tuple[int, int]  # index of the length in LENGTHS, and how sure the matches are


class Copy(NamedTuple):
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
        """The text goes on with these; beyond N_TOKENS they are ignored."""
        for token in tokens[: N_TOKENS - len(self._text)]:
            self._text.append(token)
            end = len(self._text)
            for length, last, before in zip(LENGTHS, self._last, self._before, strict=True):
                if end < length:
                    before.append(0)
                    continue
                key = hash(tuple(self._text[end - length :]))
                before.append(last.get(key, 0))
                last[key] = end

    def following(self, context: Sequence[int], beyond: int = -1) -> Copy | None:
        """The token that follows most of the latest matches of the context's end.

        beyond: index of a length; only longer matches count.
        """
        longest, found = max(self._matches(context), default=(-1, 0))
        if longest <= beyond:
            return None
        tokens = self._continuations(longest, found)
        counts = Counter(tokens)
        token = max(counts, key=counts.__getitem__)  # of several the latest
        return Copy(token, (longest, _sureness(counts[token], len(tokens))))

    def others(self, context: Sequence[int], token: int, n: int) -> list[Copy]:
        """At most n tokens besides this one that have followed the context's end: those after the
        longest matches first, of these the most frequent."""
        found: list[Copy] = []
        seen = {token}
        for i, end in reversed(list(self._matches(context))):
            tokens = self._continuations(i, end)
            for other, count in Counter(tokens).most_common():
                if other not in seen:
                    seen.add(other)
                    found.append(Copy(other, (i, _sureness(count, len(tokens)))))
            if len(found) >= n:
                break
        return found[:n]

    def _matches(self, context: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Index of a length and where the context's end of this length ended last, the shortest
        first: what has no match has no longer one either."""
        for i, length in enumerate(LENGTHS):
            end = self._last_end(i, context[-length:]) if length <= len(context) else 0
            if not end:
                break
            yield i, end

    def _last_end(self, i: int, ngram: Sequence[int]) -> int:
        """Where an n-gram ended last with something behind it, 0 for nowhere."""
        end = self._last[i].get(hash(tuple(ngram)), 0)
        return self._before[i][end - 1] if end and end == len(self._text) else end

    def _continuations(self, i: int, end: int) -> list[int]:
        """What followed the latest ends of an n-gram, from this one back, the latest first."""
        tokens: list[int] = []
        while end and len(tokens) < N_MATCHES:
            tokens.append(self._text[end])
            end = self._before[i][end - 1]
        return tokens


def _sureness(n: int, n_all: int) -> int:
    """0: one match; 1: they are split; 2: most agree; 3: all agree."""
    if n_all == 1:
        return 0
    return 3 if n == n_all else 2 if 2 * n > n_all else 1


class Memory:
    """Earlier texts, one after the other; of more than n_kept tokens the older half is forgotten.

    tokens: of texts to begin with.
    """

    def __init__(self, tokens: Sequence[int] = (), n_kept: int = N_TOKENS) -> None:
        self._n_kept = n_kept
        self._last: Sequence[int] = ()
        self.tokens: list[int] = []
        self._index = NgramIndex()
        self._extend(tokens)

    def add(self, text: Sequence[int]) -> list[int]:
        """Returns what is new of a text: a conversation begins as it did at its last turn."""
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
        """As NgramIndex.following."""
        return self._index.following(context, beyond)


N_SURENESS = 4
N_PRIOR = 4.0  # outcomes that the expectation without outcomes is worth
FORGET = 0.995  # weight of an outcome when the next one of its kind comes
PRIOR = (0.2, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85)  # by length


Counts = tuple[tuple[tuple[float, float], ...], ...]  # right, all; by length and sureness
N_KEPT = 50.0  # outcomes of a kind that are kept for another run: it may find them otherwise


class Chances:
    """How often what the matches say is right, by the kind of match: learned while generating.

    prior: what is expected without outcomes, over what is expected of matches in the same text.
    counts: to begin with, see ``counts``.
    """

    def __init__(self, prior: float = 1.0, counts: Counts | None = None) -> None:
        if counts is None:
            counts = tuple(((N_PRIOR * prior * p, N_PRIOR),) * N_SURENESS for p in PRIOR)
        self._right = [[right for right, _ in row] for row in counts]
        self._all = [[n for _, n in row] for row in counts]

    def of(self, match: Match) -> float:
        i, sureness = match
        return self._right[i][sureness] / self._all[i][sureness]

    def observe(self, match: Match, right: bool) -> None:
        i, sureness = match
        self._right[i][sureness] = FORGET * self._right[i][sureness] + right
        self._all[i][sureness] = FORGET * self._all[i][sureness] + 1

    @property
    def counts(self) -> Counts:
        """For another run, at most N_KEPT of a kind, and never more right than there are."""
        return tuple(
            tuple(_kept(right, n) for right, n in zip(*row, strict=True))
            for row in zip(self._right, self._all, strict=True)
        )


def _kept(right: float, n: float) -> tuple[float, float]:
    kept = min(N_KEPT, n)
    return min(kept, kept / n * right), kept
