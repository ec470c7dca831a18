"""Drafts as long as it pays, and not at all where it does not.

What was looked up is known with its chances before it is decided: each step takes as much of it as
promises most tokens per microsecond, see _choice.py.

Of drafts that take passes only the acceptance is known. Of all their lengths and probabilities to
stop at, takes those with the most expected tokens per microsecond, from the costs of passes and the
acceptance, both corrected while generating. Where that is hardly more than plain decoding, drafts
none and probes: one draft token now and then, in a small share of the time. The maximum is flat, so
one rule does for some steps.

Beside other texts the time that drafts add is counted for all of them, see Costs.among; what their
shared passes took teaches nothing about passes of one text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from ...costs.table import N_WIDTH, Costs, CostTable
from ...costs.timed import TimedCosts
from ..types import Company, DraftLimit, Step
from ._acceptance import EDGES, Acceptance, Rows
from ._choice import GAIN_MIN, Choice
from ._decision import Decision, Rule
from ._memory import Memory

P_KEEP_MIN = 0.2  # a rule that keeps fewer tokens is mostly probing
SURE = 0.98  # upper bound on sustained acceptance: where it does not pay, nothing will
PROBE_SHARE = 0.005  # of the time
PROBE_COST_MIN = 0.05  # in plain tokens: two passes cost more than timings of each say
LOSS_MAX = 1.0  # plain tokens that a choice may lose before it is made anew
N_PLAIN = 2  # steps that time plain decoding before drafts are compared with it
N_FIRST = 8  # steps after which these two are made; mostly there was nothing to copy before
N_BETWEEN = 256  # steps between two timings of plain decoding while drafting
N_MET = 8  # passes whose other texts count, about
N_REPLAN, N_REPLAN_PLAIN = 16, 64  # steps that a choice to draft, or not to, lasts at most

PLAIN = DraftLimit(0)


def decide(costs: Costs, acceptance: Acceptance, n_most: int) -> Decision:
    """The best of all rules that draft up to n_most tokens, or plain decoding."""
    plain = Rule(0, 0.0, 1.0, costs.plain_us)
    if costs.only_copies:
        return Decision(plain, None, costs)
    best = best_rule(costs, acceptance, n_most)
    pays = best.speed >= (1 + GAIN_MIN) * plain.speed
    return Decision(best if pays else plain, best, costs)


def best_rule(costs: Costs, acceptance: Acceptance, n_most: int, n_copied: int = 0) -> Rule:
    """The best of all rules that draft up to n_most tokens behind so many copied ones, if these are
    right.

    Takes the tokens of a draft as independent: each is kept if its probability allows, and then
    accepted at the rate of its row. Arrays are [N_PROB, n_most].
    """
    share, rate = acceptance.rows()
    kept, right = _at_least(share), _at_least(share * rate)
    n = np.arange(1, n_most + 1)
    verify_us = np.array(costs.verify_us[n_copied : n_copied + n_most + 1])
    first_us = costs.drafting_us(1, 0, n_copied) - costs.token_us  # more than other tokens cost
    all_kept = kept**n
    last_dropped = all_kept / kept - all_kept
    draft_us = first_us + n * costs.token_us
    us = np.cumsum(last_dropped * (draft_us + verify_us[:-1]), axis=1)
    us += all_kept * (draft_us + costs.last_us + verify_us[1:])
    tokens = 1 + np.cumsum(right**n, axis=1)
    speeds = np.where(kept >= P_KEEP_MIN, (n_copied + tokens) / us, 0.0)
    row, i = np.unravel_index(speeds.argmax(), us.shape)
    p_min = EDGES[row - 1] if row else 0.0
    return Rule(int(i) + 1, p_min, float(tokens[row, i]), float(us[row, i]))


def _at_least(rows: Rows) -> Rows:
    """Sums of each row of probability and all above, [N_PROB, 1]."""
    sums: Rows = rows[::-1].cumsum()[:0:-1, None]
    return sums


def probe_p_min(costs: Costs, acceptance: Acceptance) -> float:
    """Verify the token of a probe if that is likely to be worth its cost; else it is dropped, and
    the next token tells if it was right."""
    share, rate = acceptance.rows()
    cost_us = costs.step_us(1, 1) - costs.step_us(1, 0)
    return 0.0 if share @ rate * costs.plain_us > cost_us else math.inf


class Auto:
    """The default controller."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._n_past = self._n_steps = self._n_tokens = 0
        self._n_texts = self._n_rows = 0.0  # of others in recent passes
        self._n_untimed = 0 if memory.timings.knows_plain else N_PLAIN  # plain steps to be made
        self._next_plain = N_FIRST if self._n_untimed else N_BETWEEN  # in steps
        self._next_probe = 0.0  # in tokens
        self._plan()

    def explain(self) -> Decision:
        return self.decision

    def limit(self, n_past: int) -> DraftLimit:
        self._n_past = n_past
        if self._n_steps >= self._next_plain and not self._n_texts:
            return PLAIN
        if self._n_steps >= self._replan_at:
            self._plan()
        if self._n_untimed and not self._n_texts:
            return replace(self._limit, n_max=0, behind=None)
        probes = not self.decision.drafts and self._n_tokens >= self._next_probe
        return self._probe if probes else self._limit

    def observe(self, step: Step) -> None:
        draft, n_copied = step.draft, step.draft.n_copied
        n_proposed = draft.n_proposed - n_copied
        self._n_steps += 1
        self._n_tokens += len(step.tokens)
        self._meet(step.company)
        if not step.company.n_texts:
            self._time(step)
        if n_proposed:
            self.memory.acceptance.observe(step.outcomes[n_copied:])
            if not self.decision.drafts:
                self._probed(step)

    def _meet(self, company: Company) -> None:
        """Others bring more and fewer rows from pass to pass; that there are any counts at once."""
        if (company.n_texts > 0) != (self._n_texts > 0):
            self._n_texts, self._n_rows = map(float, company)
            self._replan_at = self._n_steps
        else:
            self._n_texts += (company.n_texts - self._n_texts) / N_MET
            self._n_rows += (company.n_rows - self._n_rows) / N_MET

    def _time(self, step: Step) -> None:
        draft, n_copied = step.draft, step.draft.n_copied
        self.memory.timings.observe(
            self._n_past,
            draft.n_proposed - n_copied,
            step.n_drafted - n_copied,
            draft.draft_us,
            step.verify_us,
            n_copied,
            draft.n_siblings,
        )
        if draft.n_proposed:
            self._gain += len(step.tokens) - step.us / self.decision.costs.plain_us
            if self._gain < -LOSS_MAX:
                self._replan_at = self._n_steps
        else:
            self._n_untimed = max(0, self._n_untimed - 1)
            if not self._n_untimed:
                self._next_plain = self._n_steps + N_BETWEEN

    def _probed(self, step: Step) -> None:
        """A right token may have changed the case, and if it was verified, it has paid."""
        if any(right for _, right in step.outcomes):
            self._replan_at = self._n_steps
        if not step.n_accepted:
            costs = self.decision.costs
            us = costs.step_us(step.draft.n_proposed, step.n_drafted) + step.draft.late_us
            cost = us / costs.plain_us - 1
            self._next_probe = self._n_tokens + max(cost, PROBE_COST_MIN) / PROBE_SHARE

    def _plan(self) -> None:
        self._gain = 0.0
        timings, acceptance = self.memory.timings, self.memory.acceptance
        costs = timings.at(self._n_past).among(round(self._n_texts), round(self._n_rows))
        n_most = timings.n_known
        self.decision = decide(costs, acceptance, n_most)
        rule = self.decision.rule
        self._limit = Choice(
            rule.n_max,
            rule.p_min,
            n_copies=timings.n_copies_known,
            costs=costs,
            behind=_behind(rule, costs, acceptance, n_most) if rule.n_max else None,
        )
        self._probe = self._limit
        if self.decision.best is not None and costs.speedup(SURE)[0] >= 1 + GAIN_MIN:
            self._probe = replace(self._limit, n_max=1, p_min=probe_p_min(costs, acceptance))
        lasts = N_REPLAN if rule.n_max else N_REPLAN_PLAIN
        self._replan_at = self._n_steps + max(1, min(lasts, self._n_steps // 2))


def _behind(rule: Rule, costs: Costs, acceptance: Acceptance, n_most: int) -> Callable[[int], Rule]:
    """The rules for drafts behind copies, found when they are asked for."""

    @cache
    def behind(n_copied: int) -> Rule:
        n = min(n_most, N_WIDTH - 1 - n_copied)
        return best_rule(costs, acceptance, n, n_copied) if n_copied else rule

    return behind


def make(costs: CostTable, memory: Memory | None = None) -> Auto:
    return Auto(memory or Memory(TimedCosts(costs)))
