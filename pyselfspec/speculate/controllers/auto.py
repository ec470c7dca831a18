"""Drafts as long as it pays, and not at all where it does not.

Of all draft lengths and probabilities to stop at, takes those with the most expected tokens per
microsecond, from the costs of passes and the acceptance, both corrected while generating. Where
that is hardly more than plain decoding, decodes plainly and probes: one draft token now and then,
in a small share of the time.

The maximum is flat, so one choice does for some steps.
"""

from __future__ import annotations

import math

import numpy as np

from ...costs.table import Costs, CostTable
from ...costs.timed import TimedCosts
from ..types import DraftLimit, Step
from ._acceptance import EDGES, Acceptance, Rows
from ._decision import Decision, Rule
from ._memory import Memory

GAIN_MIN = 0.02  # expected gain that makes drafting worth the trouble
P_KEEP_MIN = 0.2  # a rule that keeps fewer tokens is mostly probing
SURE = 0.98  # upper bound on sustained acceptance: where it does not pay, nothing will
PROBE_SHARE = 0.005  # of the time
PROBE_COST_MIN = 0.05  # in plain tokens: two passes cost more than timings of each say
LOSS_MAX = 1.0  # plain tokens that a choice may lose before it is made anew
N_PLAIN = 2  # steps that time plain decoding before anything is compared with it
N_BETWEEN = 256  # steps between two timings of plain decoding while drafting
N_REPLAN, N_REPLAN_PLAIN = 16, 64  # steps that a choice to draft, or not to, lasts at most

PLAIN = DraftLimit(0)
PROBE_VERIFIED = DraftLimit(1)
PROBE = DraftLimit(1, p_min=math.inf)  # it is dropped: the next token tells if it was right


def decide(costs: Costs, acceptance: Acceptance, n_most: int) -> Decision:
    """The best of all rules that draft up to n_most tokens.

    Takes the tokens of a draft as independent: each is kept if its probability allows, and then
    accepted at the rate of its row. Arrays are [N_PROB, n_most].
    """
    share, rate = acceptance.rows()
    kept, right = _at_least(share), _at_least(share * rate)
    n = np.arange(1, n_most + 1)
    verify_us = np.array(costs.verify_us[: n_most + 1])
    all_kept = kept**n
    last_dropped = all_kept / kept - all_kept
    us = np.cumsum(last_dropped * (n * costs.token_us + verify_us[:-1]), axis=1)
    us += all_kept * (n * costs.token_us + costs.last_us + verify_us[1:])
    tokens = 1 + np.cumsum(right**n, axis=1)
    speeds = np.where(kept >= P_KEEP_MIN, tokens / us, 0.0)
    row, i = np.unravel_index(speeds.argmax(), us.shape)
    p_min = EDGES[row - 1] if row else 0.0
    best = Rule(int(i) + 1, p_min, float(tokens[row, i]), float(us[row, i]))
    plain = Rule(0, 0.0, 1.0, costs.plain_us)
    pays = best.speed >= (1 + GAIN_MIN) * plain.speed
    return Decision(best if pays else plain, best, costs)


def _at_least(rows: Rows) -> Rows:
    """Sums of each row of probability and all above, [N_PROB, 1]."""
    sums: Rows = rows[::-1].cumsum()[:0:-1, None]
    return sums


def probe(costs: Costs, acceptance: Acceptance) -> DraftLimit:
    """What a probe may do: verify its token if that is likely to be worth its cost."""
    share, rate = acceptance.rows()
    cost_us = costs.step_us(1, 1) - costs.step_us(1, 0)
    return PROBE_VERIFIED if share @ rate * costs.plain_us > cost_us else PROBE


class Auto:
    """The default controller."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._n_past = self._n_steps = self._n_tokens = 0
        self._next_plain = 0 if memory.timings.n_new(0, 0) else N_BETWEEN  # in steps
        self._next_probe = 0.0  # in tokens
        self._plan()

    def explain(self) -> Decision:
        return self.decision

    def limit(self, n_past: int) -> DraftLimit:
        self._n_past = n_past
        if self._n_steps >= self._next_plain:
            return PLAIN
        if self._n_steps >= self._replan_at:
            self._plan()
        probes = not self.decision.drafts and self._n_tokens >= self._next_probe
        return self._probe if probes else self._limit

    def observe(self, step: Step) -> None:
        self._n_steps += 1
        self._n_tokens += len(step.tokens)
        self.memory.timings.observe(
            self._n_past,
            step.draft.n_proposed,
            step.n_drafted,
            step.draft.draft_us,
            step.verify_us,
        )
        if step.draft.n_proposed:
            self.memory.acceptance.observe(step)
            us = step.draft.draft_us + step.verify_us
            self._gain += len(step.tokens) - us / self.decision.costs.plain_us
            if self._gain < -LOSS_MAX:
                self._replan_at = self._n_steps
            if not self.decision.drafts:
                self._probed(step)
        elif self._n_steps >= N_PLAIN or self._next_plain:
            self._next_plain = self._n_steps + N_BETWEEN

    def _probed(self, step: Step) -> None:
        """A right token may have changed the case, and if it was verified, it has paid."""
        if any(right for _, right in step.outcomes):
            self._replan_at = self._n_steps
        if not step.n_accepted:
            costs = self.decision.costs
            cost = costs.step_us(step.draft.n_proposed, step.n_drafted) / costs.plain_us - 1
            self._next_probe = self._n_tokens + max(cost, PROBE_COST_MIN) / PROBE_SHARE

    def _plan(self) -> None:
        self._gain = 0.0
        costs = self.memory.timings.at(self._n_past)
        self.decision = decide(costs, self.memory.acceptance, self.memory.timings.n_known)
        self._probe = probe(costs, self.memory.acceptance)
        if costs.speedup(SURE)[0] < 1 + GAIN_MIN:
            self._probe = PLAIN
        rule = self.decision.rule
        self._limit = DraftLimit(rule.n_max, rule.p_min)
        lasts = N_REPLAN if rule.n_max else N_REPLAN_PLAIN
        self._replan_at = self._n_steps + max(1, min(lasts, self._n_steps // 2))


def make(costs: CostTable, memory: Memory | None = None) -> Auto:
    return Auto(memory or Memory(TimedCosts(costs)))
