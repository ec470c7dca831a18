"""A draft that grows token by token, as far as its limit allows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..limits import DraftDecision, DraftLimit, Pick
from ..types import Draft, DraftToken


class Chain:
    """A draft without branches, and whether it goes on.

    start: its first tokens. source: the drafter of the others. is_eog: tells whether a token ends
        the text.

    tokens, dropped: see Draft. is_open: whether another token is wanted.
    """

    def __init__(
        self, start: Draft, limit: DraftLimit, is_eog: Callable[[int], bool], source: str
    ) -> None:
        self.tokens = list(start.tokens)
        self.dropped: DraftToken | None = None
        self.is_open = True
        self._limit = limit
        self._is_eog = is_eog
        self._source = source
        self._probs: list[float] = []  # of the tokens after the first ones

    def add(self, pick: Pick) -> None:
        """Add a token, or drop it, as the limit decides."""
        self._probs.append(pick.p)
        after = self._limit.after(self._probs)
        is_eog = self._is_eog(pick.token)
        parent = len(self.tokens) - 1
        # an end of the text need not be drafted: the verification pass draws that token anyway;
        # but whether a drawn token is dropped must not depend on the token
        if after is DraftDecision.DROP or (is_eog and pick.distribution is None):
            self.dropped = DraftToken(pick.likeliest, pick.p, parent, self._source)
            self.is_open = False
            return
        drafted = DraftToken(pick.token, pick.p, parent, self._source, pick.distribution)
        self.tokens.append(drafted)
        self.is_open = after is DraftDecision.GO_ON and not is_eog

    def draft(self) -> Draft:
        return Draft(tuple(self.tokens), dropped=self.dropped)


def extended(
    start: Draft,
    picks: Iterable[Pick],
    limit: DraftLimit,
    is_eog: Callable[[int], bool],
    source: str,
) -> Draft:
    """Return a draft that begins with the chain ``start`` and goes on with picks as far as the
    limit allows.

    picks: computed only as needed. The others are as in Chain.
    """
    chain = Chain(start, limit, is_eog, source)
    for pick in picks:
        chain.add(pick)
        if not chain.is_open:
            break
    return chain.draft()
