"""An account of the time that drafts have gained or lost: it bounds the loss. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

LOSS_SHARE = 0.02  # of the time of plain decoding that drafts may lose
LOSS_PASSES = 1.5  # plain passes that they may lose beyond it: a text has to begin somehow


@dataclass(slots=True)
class Account:
    """The time that was taken beside that of plain decoding, in microseconds.

    While there is credit, a step may draft. So at most the credit is lost, and what the step that
    used it up has lost. Times of passes are those that the table of costs expects, which timings
    correct: single ones are disturbed by other programs.

    share: of the time of plain decoding that may be lost.
    n_kept: plain passes of gain that may be lost again.
    """

    share: float = LOSS_SHARE
    n_kept: float = inf
    _plain_us: float = 0.0  # of the same tokens without drafts
    _lost_us: float = 0.0  # beyond it; below 0: gained

    def add(self, n_tokens: float, us: float, plain_us: float) -> None:
        """Add a step that took us for n_tokens tokens."""
        self._plain_us += n_tokens * plain_us
        lost_us = self._lost_us + us - n_tokens * plain_us
        self._lost_us = max(lost_us, self.share * self._plain_us - self.n_kept * plain_us)

    def n_rests(self, us: float, plain_us: float) -> int:
        """Return the number of plain steps until the credit covers us, 0 if it does now."""
        credit_us = self.share * self._plain_us + LOSS_PASSES * plain_us - self._lost_us
        return max(0, ceil((us - credit_us) / (self.share * plain_us)))
