"""Passes that several texts share: how long they take, how many draft tokens of each text they
verify, and whether tokens are looked up at all. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from ..costs.account import Account
from ..costs.speedup import speedup
from ..costs.table import Costs, CostTable, at_width
from ..costs.timed import N_TIMED, TimedCosts
from ..util.pass_width import MAX_PASS_WIDTH
from .types import Step

# Numbers of rows, of which each needs a prepared graph, as with COPY_LENGTHS.
WIDTHS = frozenset((*range(1, 9), 10, 12, 16, 20, 24, MAX_PASS_WIDTH))
GAIN_MIN = 0.05  # least expected gain for which to draft; of many widths the best looks too good
N_KEPT = 512  # timings after which a width that was not used is forgotten
N_LASTS = 8  # timings for which corrected times are kept
N_TIMES = 9  # times between passes that count, by their median
N_FIRST = 3  # passes that time what plain steps take between passes, before any text looks up
LOSS_SHARE = 0.01  # of the time of plain decoding that drafts may lose
N_GAINED = 5  # passes of gain that may be lost again


class SharedPasses:
    """Learns the times of shared passes, and keeps account of what drafts gain and lose there.

    There is one account for all texts, since a draft keeps all of them waiting.

    us: times of passes over 1, 2, ... tokens in microseconds, to begin with.
    n_most: most rows of a pass with draft tokens. n_preparing: see Context.
    full_us: expected times of passes over 1, 2, ... n_most rows.
    n_rests: steps for which no text should look tokens up.
    """

    def __init__(self, us: Sequence[float], n_most: int, n_preparing: int) -> None:
        full = tuple(at_width(us, n) for n in range(1, n_most + 1))
        table = CostTable((Costs(0, full, full, 0.0, 0.0),))
        self._timings = TimedCosts(table, N_KEPT, n_preparing)
        self._n_since = 0  # timings since full_us was computed
        self._n_same = 0  # passes of as many rows, one after the other
        self._n_rows = 0  # of the last pass
        self._account = Account(LOSS_SHARE, N_GAINED)
        self._plain: deque[float] = deque(maxlen=N_TIMES)  # between passes, for each text
        self._look_ups: deque[float] = deque(maxlen=N_TIMES)  # what each look-up adds to that
        # by number of texts: whether draft tokens would pay if all were right
        self._can_gain: dict[int, bool] = {}
        self.full_us = full
        self.n_rests = N_FIRST

    def observe(self, n_rows: int, us: float) -> None:
        """Learn from the time of a pass through all blocks whose rows all have logits."""
        self._n_same = self._n_same + 1 if n_rows == self._n_rows else 0
        self._n_rows = n_rows
        if n_rows > len(self.full_us) or self._n_same % N_TIMED:
            return
        self._timings.observe(0, 0, 0, 0.0, us, n_rows - 1)
        self._n_since += 1
        if self._n_since >= N_LASTS:
            self._n_since = 0
            self.full_us = self._timings.at(0).rising().full_us
            self._can_gain.clear()

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
        between_us = len(chances) * _median(self._plain)
        fastest = speedup(tokens * (1 + GAIN_MIN), self.full_us[n_rows - 1] + between_us)
        for n, (negative, _, _) in enumerate(offered[:n_room], 1):
            tokens -= negative
            speed = speedup(tokens, self.full_us[n_rows + n - 1] + between_us)
            if n_rows + n in WIDTHS and speed > fastest:
                best, fastest = n, speed
        for _, _, text in offered[:best]:
            n_verified[text] += 1
        return n_verified

    def settle(self, steps: Sequence[Step], added_us: float, between_us: float) -> None:
        """Add the steps that a pass has finished to the account.

        added_us: by which draft tokens have made the pass longer.
        between_us: time that the steps have taken beside the pass.
        """
        n_texts = len(steps)
        removal_us = sum(step.removal_us for step in steps)
        asked = [step.draft for step in steps if step.draft.draft_us]
        n_look_ups = sum(not draft.n_passed_or_dropped for draft in asked)
        if not asked:
            self._plain.append(between_us / n_texts)
        between_plain_us = n_texts * _median(self._plain)
        if n_look_ups:
            look_ups_us = between_us - between_plain_us - removal_us
            self._look_ups.append(look_ups_us / n_look_ups)
        look_up_us = max(0.0, _median(self._look_ups))
        # draft passes of several texts are shared, or the others wait for them
        drafting_us = max((d.draft_us for d in asked if d.n_passed_or_dropped), default=0)
        plain_us = at_width(self.full_us, n_texts) + between_plain_us
        us = plain_us + added_us + n_look_ups * look_up_us + drafting_us + removal_us
        self._account.add(sum(len(step.tokens) for step in steps) / n_texts, us, plain_us)
        if n_texts not in self._can_gain:
            sure = [(1.0,) * len(self.full_us), *[()] * (n_texts - 1)]
            self._can_gain[n_texts] = any(self.n_verified(n_texts, sure))
        n_rests = self._account.n_rests(n_texts * look_up_us, plain_us)
        self.n_rests = max(n_rests, N_FIRST - len(self._plain), int(not self._can_gain[n_texts]))


def _median(us: Sequence[float]) -> float:
    return median(us) if us else 0.0
