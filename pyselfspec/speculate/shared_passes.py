"""Passes that several texts share: how long they take, how many draft tokens of each text they
verify, and whether tokens are looked up at all. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from ..costs.account import Account
from ..costs.speedup import speedup
from ..costs.table import Costs, CostTable, at_width
from ..costs.timed import TimedCosts
from ..util.pass_width import MAX_PASS_WIDTH
from .types import Step

# Numbers of rows, of which each needs a prepared graph, as with COPY_LENGTHS.
WIDTHS = frozenset((*range(1, 9), 10, 12, 16, 20, 24, MAX_PASS_WIDTH))
GAIN_MIN = 0.05  # least expected gain for which to draft; of many widths the best looks too good
N_KEPT = 512  # passes after which a width that was not used is forgotten
N_LASTS = 8  # passes for which corrected times are kept
N_LOOK_UPS = 9  # times of looking tokens up that count, by their median
LOSS_SHARE = 0.01  # of the time of plain decoding that drafts may lose
LOOK_UP_COST = 1.4  # of its time: what else a step does then in Python (measured with eight texts)
N_GAINED = 20  # passes of gain that may be lost again


class SharedPasses:
    """Learns the times of shared passes, and keeps account of what drafts gain and lose there.

    There is one account for all texts, since a draft keeps all of them waiting.

    us: times of passes over 1, 2, ... tokens in microseconds, to begin with.
    n_most: most rows of a pass with draft tokens.
    full_us: expected times of passes over 1, 2, ... n_most rows.
    n_rests: steps for which no text should look tokens up.
    """

    def __init__(self, us: Sequence[float], n_most: int) -> None:
        full = tuple(at_width(us, n) for n in range(1, n_most + 1))
        self._timings = TimedCosts(CostTable((Costs(0, full, full, 0.0, 0.0),)), N_KEPT)
        self._n_since = 0  # passes since full_us was computed
        self._account = Account(LOSS_SHARE, N_GAINED)
        self._look_ups: deque[float] = deque(maxlen=N_LOOK_UPS)
        self.full_us = full
        self.n_rests = 0

    def observe(self, n_rows: int, us: float) -> None:
        """Learn from the time of a pass through all blocks whose rows all have logits."""
        if n_rows > len(self.full_us):
            return
        self._timings.observe(0, 0, 0, 0.0, us, n_rows - 1)
        self._n_since += 1
        if self._n_since >= N_LASTS:
            self._n_since = 0
            self.full_us = self._timings.at(0).rising().full_us

    def n_verified(self, n_rows: int, chances: Sequence[Sequence[float]]) -> list[int]:
        """Return how many draft tokens of each text to verify: of all texts the most likely ones,
        as many as give the most expected tokens per time.

        n_rows: rows of the pass without draft tokens. Those of a prompt count as tokens of a text.
        chances: for each text the probabilities that its first 1, 2, ... draft tokens are accepted.
        """
        offered = sorted(
            (-chance, i, text) for text, each in enumerate(chances) for i, chance in enumerate(each)
        )
        n_verified = [0] * len(chances)
        n_room = len(self.full_us) - n_rows
        if not offered or n_room <= 0:
            return n_verified
        best, tokens = 0, float(n_rows)
        fastest = speedup(tokens * (1 + GAIN_MIN), self.full_us[n_rows - 1])
        for n, (negative, _, _) in enumerate(offered[:n_room], 1):
            tokens -= negative
            speed = speedup(tokens, self.full_us[n_rows + n - 1])
            if n_rows + n in WIDTHS and speed > fastest:
                best, fastest = n, speed
        for _, _, text in offered[:best]:
            n_verified[text] += 1
        return n_verified

    def settle(self, steps: Sequence[Step], added_us: float) -> None:
        """Add the steps that a pass has finished to the account.

        added_us: by which draft tokens have made the pass longer.
        """
        asked = [step.draft for step in steps if step.draft.draft_us]
        look_ups = [draft.draft_us for draft in asked if not draft.n_passed_or_dropped]
        self._look_ups += look_ups
        look_up_us = LOOK_UP_COST * median(self._look_ups) if self._look_ups else 0.0
        # draft passes of several texts are shared, or the others wait for them
        drafting_us = max((d.draft_us for d in asked if d.n_passed_or_dropped), default=0)
        plain_us = at_width(self.full_us, len(steps))
        us = plain_us + added_us + len(look_ups) * look_up_us + drafting_us
        self._account.add(sum(len(step.tokens) for step in steps) / len(steps), us, plain_us)
        self.n_rests = self._account.n_rests(len(steps) * look_up_us, plain_us)
