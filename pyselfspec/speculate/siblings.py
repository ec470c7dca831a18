"""Draft tokens besides a chain: the next likeliest ones where its own are not sure, each a branch
of one token, from logits that were computed anyway.

Of speculation trees (Miao et al., "SpecInfer", https://arxiv.org/abs/2305.09781; Cai et al.,
"Medusa", section 2.1.2, https://arxiv.org/abs/2401.10774) this is the part that takes no further
draft passes. A sibling counts where all tokens before it are right and it is, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul

from ..errors import ArgumentError
from ..runtime.context import Context
from .types import Draft, DraftLimit, Verdict

P_MIN = 0.01  # of a sibling: no row of a pass is as cheap as what a less likely one brings


def require(n: int, shortlist: int = 0) -> None:
    """Raise ArgumentError for what is no number of siblings, and where drafts do not see all
    tokens."""
    if n < 0:
        raise ArgumentError(f"n_siblings is 0 (none) or more, got {n}")
    if n and shortlist:
        raise ArgumentError(
            "n_siblings needs the probabilities of all tokens, and shortlist looks at some: give "
            "one of the two"
        )


N_PRIOR = 2.0  # siblings to be right, until which a drafter's own word counts for most


@dataclass(frozen=True, slots=True)
class Sibling:
    """i: index in the chain of the token that it stands beside. chance: to be accepted."""

    i: int
    token: int
    p: float
    chance: float


@dataclass(slots=True)
class Siblings:
    """Of the drafts of a drafter, one at a time.

    A drafter's probabilities say little of a token that it finds less likely, least of all where
    the text takes the likeliest tokens. So chances are scaled by how many siblings were right in
    this text, over how many should have been; that is known of those that were not verified, too.

    n_most: of them.
    """

    n_most: int
    _found: list[tuple[int, int, float]] = field(default_factory=list)  # index, token, probability
    _best: list[Sibling] = field(default_factory=list)
    _chain: Draft = field(default_factory=Draft)
    _n_expected: float = N_PRIOR
    _n_right: float = N_PRIOR

    def begin(self) -> None:
        """A new text."""
        self._n_expected = self._n_right = N_PRIOR
        self.start()

    def start(self) -> None:
        """A new draft."""
        self._found, self._best = [], []

    def wants(self, p: float, limit: DraftLimit) -> bool:
        """Whether there may be siblings of a token of this probability."""
        return self.n_most > 0 and limit.drawing is None and 1.0 - p >= P_MIN

    def offer(self, i: int, others: Sequence[tuple[int, float]]) -> None:
        """Other tokens in the place of the chain's token i, with their probabilities."""
        self._found += [(i, token, p) for token, p in others]

    def beside(self, draft: Draft, limit: DraftLimit, context: Context) -> Draft:
        """The chain with as many siblings as the limit takes and as there is room for in a pass,
        the likeliest first."""
        n_room = min(context.n_branches, context.pass_width - len(draft.tokens)) - 1
        probs = draft.probs or ()
        before = list(accumulate(probs, mul, initial=1.0))
        scale = self._n_right / self._n_expected
        all_found = [Sibling(i, t, p, before[i] * p) for i, t, p in self._found if i < len(probs)]
        self._chain = draft
        self._best = sorted(all_found, key=lambda each: -each.chance)[: self.n_most]
        best = self._best[: max(0, n_room)]
        best = best[: limit.n_siblings(draft, [scale * each.chance for each in best])]
        if not best:
            return draft
        return replace(
            draft,
            tokens=(*draft.tokens, *(each.token for each in best)),
            probs=(*probs, *(each.p for each in best)),
            parents=(*range(-1, len(probs) - 1), *(each.i - 1 for each in best)),
            n_siblings=len(best),
        )

    def accept(self, verdict: Verdict) -> None:
        """What became of the draft, its siblings in the order in which they were found best."""
        if not self._best:
            return  # and what was verified may be another drafter's
        n = len(self._chain.tokens)
        n_right = sum(i < n for i in verdict.path)
        taken = [self._best[i - n].token for i in verdict.path if i >= n]
        drawn = taken[0] if taken else verdict.next_token
        self._n_expected += sum(each.chance for each in self._best)
        self._n_right += any((each.i, each.token) == (n_right, drawn) for each in self._best)
        self.start()
