"""Short lists of tokens that drafts choose from instead of the whole vocabulary. A list starts with
the most frequent tokens; the texts of a context add their own tokens, and those that the model
found most likely after rejected draft tokens.

A token outside the list cannot be drafted. Verification passes compute all logits, so the text does
not change. The probability of a draft token is relative to the list, so it is too high. Draft
tokens that are drawn come from the list, too: other tokens have probability 0 in the distribution
that residual sampling goes by, which is exact with any such distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import ArgumentError
from ...runtime.context import Context
from ...runtime.passes import Head
from ...runtime.short_list import ShortList
from ..context_state import kept
from ..types import Draft, Verdict


def require(n: int) -> None:
    """Raise ArgumentError for a negative length."""
    if n < 0:
        raise ArgumentError(f"shortlist is 0 (all tokens) or more, got {n}")


def of(context: Context, n: int) -> ShortList | None:
    """Return the list of n tokens shared by all texts of a context; None if n is 0 or the whole
    vocabulary."""
    n_vocab = context.model.n_vocab
    if not 0 < n < n_vocab:
        return None
    return kept(context, ShortList, n, lambda: ShortList(n, n_vocab))


class Shortened:
    """Keeps a drafter's short list up to date for one text.

    tokens: the list; None: the drafter has none.
    """

    def __init__(self, tokens: ShortList | None) -> None:
        self.tokens = tokens
        self._n_seen = 0  # tokens of the text

    def share(self, n_vocab: int) -> float:
        """Return the part of the output layer's rows that is read, 0..1."""
        return 1.0 if self.tokens is None else len(self.tokens) / n_vocab

    def head(self, best: Head, *, needs_logits: bool) -> Head:
        """Return the kind of output of draft passes; passes over a list leave its logits anyway.

        best: the kind where only the most likely token is needed.
        """
        if self.tokens is not None:
            return "best"
        return "logits" if needs_logits else best

    def begin(self, history: Sequence[int]) -> None:
        self._n_seen = 0
        self.update(history)

    def update(self, history: Sequence[int]) -> None:
        """Add the new tokens of the text."""
        if self.tokens is not None:
            self.tokens.add(history[self._n_seen :])
            self._n_seen = len(history)

    def on_verified(self, draft: Draft, verdict: Verdict, best: Callable[[int], int]) -> None:
        """Add the most likely tokens after rejected ones, see ``Drafter.on_verified``."""
        if self.tokens is not None:
            rejected = range(verdict.n_accepted + 1, len(draft.tokens) + 1)
            self.tokens.add(best(row) for row in rejected)
