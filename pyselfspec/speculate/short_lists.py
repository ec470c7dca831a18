"""Short lists of tokens for drafts to look at instead of the whole vocabulary, kept up to date by
the texts of a context: what they are made of, what the model thought likely where a draft was
rejected, and at first the most frequent tokens.

A token that is not in the list cannot be drafted; the pass that checks looks at all, so the text is
the same. The probability of a draft token is that among the list, which is higher than among all by
what the list leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from ..runtime.context import Context
from ..runtime.short_list import ShortList
from .types import Verdict


def require(n: int) -> None:
    """Raise ArgumentError for what is no length of a list."""
    if n < 0:
        raise ArgumentError(f"shortlist is 0 (all tokens) or more, got {n}")


def of(context: Context, n: int) -> ShortList | None:
    """That of n tokens for all texts of a context; None where n is 0 or all of the vocabulary."""
    n_vocab = context.model.n_vocab
    if not 0 < n < n_vocab:
        return None
    return context.once(("short list", n), lambda: ShortList(n, n_vocab))


class Shortened:
    """What a drafter does for its short list in one text; with None nothing."""

    def __init__(self, tokens: ShortList | None) -> None:
        self.tokens = tokens
        self._n_seen = 0  # tokens of the text

    @property
    def identity(self) -> Mapping[str, Any]:
        """Its part in a drafter's identity."""
        return {} if self.tokens is None else {"shortlist": len(self.tokens)}

    def share(self, n_vocab: int) -> float:
        """Of the head's rows, those that are read."""
        return 1.0 if self.tokens is None else len(self.tokens) / n_vocab

    def begin(self, history: Sequence[int]) -> None:
        self._n_seen = 0
        self.saw(history)

    def saw(self, history: Sequence[int]) -> None:
        """The text so far."""
        if self.tokens is not None:
            self.tokens.add(history[self._n_seen :])
            self._n_seen = len(history)

    def hear(self, verdict: Verdict, rows: range, best: Callable[[int], int]) -> None:
        """See ``drafters.Hears``: what the model thought likely behind tokens that it rejected."""
        if self.tokens is not None:
            self.tokens.add(best(row) for row in rows if row > verdict.n_accepted)
