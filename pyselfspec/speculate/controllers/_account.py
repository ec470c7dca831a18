"""An account of the time that drafts have gained or lost in a text: it bounds the loss. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

LOSS_SHARE = 0.02  # of the time of plain decoding that drafts may lose
LOSS_PASSES = 1.5  # plain passes that they may lose beyond it: a text has to begin somehow
IN_BATCH = 0.5  # of both in a batch, where drafts gain less


@dataclass(slots=True)
class Account:
    """The time that a text has taken beside that of plain decoding, in microseconds.

    While there is credit, a step may draft. So a text loses at most the credit and what the step
    that used it up has lost. Times of passes are those that the table of costs expects, which
    timings correct: single ones are disturbed by other programs.
    """

    _plain_us: float = 0.0  # of the same tokens without drafts
    _lost_us: float = 0.0  # beyond it; below 0: gained

    def add(self, n_tokens: int, us: float, plain_us: float) -> None:
        """Add a step that took us for n_tokens tokens."""
        self._plain_us += n_tokens * plain_us
        self._lost_us += us - n_tokens * plain_us

    def n_rests(self, us: float, plain_us: float, *, in_batch: bool = False) -> int:
        """Return the number of plain steps until the credit covers us, 0 if it does now."""
        part = IN_BATCH if in_batch else 1.0
        credit_us = part * (LOSS_SHARE * self._plain_us + LOSS_PASSES * plain_us) - self._lost_us
        return max(0, ceil((us - credit_us) / (part * LOSS_SHARE * plain_us)))
