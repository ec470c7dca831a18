"""An account of the time that drafts have gained or lost: it bounds the loss. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

LOSS_SHARE = 0.02  # of the time of plain decoding that drafts may lose
LOSS_PASSES = 1.5  # plain passes that they may lose beyond it: a text has to begin somehow
RATE_MIN = 1 / 4  # of that share, where drafts gain nothing: a text may begin to repeat itself
FORGET = 0.98  # weight of a step that gained or lost relative to the next one


@dataclass(slots=True)
class Account:
    """The time that was taken beside that of plain decoding, in plain passes.

    While there is credit, a step may draft. So at most the credit is lost, and what the step that
    used it up has lost. Credit grows with the text, and more slowly where recent drafts have gained
    less than they have lost. Times of passes are those that the table of costs expects, which
    timings correct: single ones are disturbed by other programs.

    share: of the time of plain decoding that may be lost.
    n_kept: plain passes of gain that may be lost again.
    """

    share: float = LOSS_SHARE
    n_kept: float = inf
    _credit: float = LOSS_PASSES
    _gained: float = 1.0  # by recent steps that gained; as much as was lost, to begin with
    _lost: float = 1.0  # by recent steps that lost

    def add(self, n_tokens: float, us: float, plain_us: float) -> None:
        """Add a step that took us for n_tokens tokens."""
        gain = n_tokens - us / plain_us
        if gain:  # a plain step makes nothing less recent
            self._gained = FORGET * self._gained + max(gain, 0.0)
            self._lost = FORGET * self._lost + max(-gain, 0.0)
        credit = self._credit + n_tokens * self._rate + gain
        self._credit = min(credit, LOSS_PASSES + self.n_kept)

    def add_rests(self, n: int) -> None:
        """Add plain steps without drafts."""
        self.add(n, n, 1.0)

    def n_rests(self, us: float, plain_us: float) -> int:
        """Return the number of plain steps until the credit covers us, 0 if it does now."""
        return max(0, ceil((us / plain_us - self._credit) / self._rate))

    @property
    def _rate(self) -> float:
        """Credit for each token."""
        return self.share * min(1.0, max(RATE_MIN, self._gained / self._lost))
