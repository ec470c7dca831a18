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
from .types import Draft, DraftLimit

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


@dataclass(slots=True)
class Siblings:
    """Of one draft.

    n_most: of them.
    """

    n_most: int
    _found: list[tuple[int, int, float]] = field(default_factory=list)  # index in the chain, token

    def wants(self, p: float) -> bool:
        """Whether there may be siblings of a token of this probability."""
        return self.n_most > 0 and 1.0 - p >= P_MIN

    def offer(self, i: int, others: Sequence[tuple[int, float]]) -> None:
        """Other tokens in the place of the chain's token i, with their probabilities."""
        self._found += [(i, token, p) for token, p in others]

    def beside(self, draft: Draft, limit: DraftLimit, context: Context) -> Draft:
        """The chain with as many siblings as the limit takes and as there is room for in a pass,
        the likeliest first."""
        n_room = min(context.n_branches, context.pass_width - len(draft.tokens)) - 1
        probs = draft.probs or ()
        before = list(accumulate(probs, mul, initial=1.0))
        offered = [(before[i] * p, i, token, p) for i, token, p in self._found if i < len(probs)]
        best = sorted(offered, key=lambda each: -each[0])[: max(0, min(self.n_most, n_room))]
        best = best[: limit.n_siblings(draft, [chance for chance, *_ in best])]
        if not best:
            return draft
        return replace(
            draft,
            tokens=(*draft.tokens, *(token for _, _, token, _ in best)),
            probs=(*probs, *(p for *_, p in best)),
            parents=(*range(-1, len(probs) - 1), *(i - 1 for _, i, _, _ in best)),
            n_siblings=len(best),
        )
