"""Siblings: alternatives to the uncertain tokens of a chain, from logits that were computed anyway.
Each is a branch of one token.

Of speculation trees (Miao et al., "SpecInfer", https://arxiv.org/abs/2305.09781; Cai et al.,
"Medusa", section 2.1.2, https://arxiv.org/abs/2401.10774) this is the part that takes no further
draft passes. A sibling is accepted if it and all tokens before it are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul

from ...errors import ArgumentError
from ...runtime.context import Context
from ..limits import DraftLimit
from ..types import Draft, DraftToken, Kind, Verdict

P_MIN = 0.01  # of a sibling: a less likely one brings less than a row of a pass costs


def require(n: int, shortlist: int = 0) -> None:
    """Raise ArgumentError for a negative number of siblings, and for siblings with a short list."""
    if n < 0:
        raise ArgumentError(f"n_siblings is 0 (none) or more, got {n}")
    if n and shortlist:
        raise ArgumentError(
            "n_siblings needs the probabilities of all tokens, and shortlist looks at some: give "
            "one of the two"
        )


N_PRIOR = 2.0  # weight of the drafter's own probabilities, in accepted siblings


@dataclass(frozen=True, slots=True)
class Sibling:
    """A candidate for a sibling.

    i: index in the chain of the token that it is an alternative to.
    p: the drafter's probability, if all tokens before it are accepted.
    chance: the drafter's probability that it is accepted.
    """

    i: int
    token: int
    p: float
    chance: float


@dataclass(slots=True)
class Siblings:
    """The siblings of a drafter's drafts, one draft at a time.

    A drafter's probabilities of less likely tokens are unreliable, most of all when the target
    decodes greedily. So chances are scaled by how many siblings were right in this text, divided by
    how many were expected to be. Siblings that were not verified count too: the target's token
    tells whether they were right.

    n_most: most siblings of a draft; 0: none.
    """

    n_most: int
    _found: list[tuple[int, int, float]] = field(default_factory=list)  # index, token, probability
    _best: list[Sibling] = field(default_factory=list)
    _chain: Draft = field(default_factory=Draft)
    _n_expected: float = N_PRIOR
    _n_right: float = N_PRIOR

    def begin(self) -> None:
        """Begin a text."""
        self._n_expected = self._n_right = N_PRIOR
        self.start()

    def start(self) -> None:
        """Begin a draft."""
        self._found, self._best = [], []

    def wants(self, p: float, limit: DraftLimit) -> bool:
        """Return whether to look for siblings of a token of this probability."""
        return self.n_most > 0 and limit.draw is None and 1.0 - p >= P_MIN

    def offer(self, i: int, others: Sequence[tuple[int, float]]) -> None:
        """Add candidates: other tokens in place of the chain's token i, and their probabilities."""
        self._found += [(i, token, p) for token, p in others]

    def beside(self, draft: Draft, limit: DraftLimit, context: Context) -> Draft:
        """Return the chain with as many siblings as the limit allows and a pass has room for, most
        likely first."""
        n_room = min(context.n_branches, context.pass_width - len(draft.tokens)) - 1
        tokens, probs = draft.tokens, draft.probs
        before = list(accumulate(probs, mul, initial=1.0))
        scale = self._n_right / self._n_expected
        all_found = [Sibling(i, t, p, before[i] * p) for i, t, p in self._found if i < len(probs)]
        self._chain = draft
        self._best = sorted(all_found, key=lambda each: -each.chance)[: self.n_most]
        best = self._best[: max(0, n_room)]
        best = best[: limit.n_siblings(draft, [scale * each.chance for each in best])]
        if not best:
            return draft
        siblings = (
            DraftToken(each.token, each.p, each.i - 1, tokens[each.i].source, kind=Kind.SIBLING)
            for each in best
        )
        return replace(draft, tokens=(*tokens, *siblings))

    def accept(self, verdict: Verdict) -> None:
        """Learn from the verdict on the draft."""
        if not self._best:
            return  # the verdict may be on a draft of another drafter
        n = len(self._chain.tokens)
        n_right = sum(i < n for i in verdict.path)
        taken = [self._best[i - n].token for i in verdict.path if i >= n]
        drawn = taken[0] if taken else verdict.next_token
        self._n_expected += sum(each.chance for each in self._best)
        self._n_right += any((each.i, each.token) == (n_right, drawn) for each in self._best)
        self.start()
