"""The default controller: drafts as many tokens as pay off, or none.

Looked-up tokens and their probabilities are known before the decision: each step takes the number
with the most expected tokens per microsecond, see _choice.py.

For draft passes only the acceptance rate is known. Of all lengths and thresholds it chooses those
with the most expected tokens per microsecond, from the costs of passes and the acceptance rate,
both corrected while generating. If the gain over plain decoding is too small, it does not draft but
probes: one draft token now and then, in a small share of the time. The maximum is flat, so a rule
is kept for some steps.

In a batch the time that drafts add counts for all texts, see Costs.in_batch, and the pass decides
how many of the looked-up tokens of all texts are verified, see speculate/shared_passes.py.

No text loses much: what drafts have lost is paid back before the next one, see costs/account.py.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from operator import mul
from statistics import median

from ...costs.account import Account
from ...costs.speedup import GAIN_MIN, best_length, least_chance
from ...costs.table import N_WIDTH, Costs, CostTable
from ...costs.timed import N_TIMED, TimedCosts
from ...util.pass_width import MAX_DRAFT
from ..limits import DraftLimit
from ..types import DraftOrigin, Step
from ._acceptance import Acceptance, Learned
from ._choice import Choice
from ._decision import Decision, Rule, best_rule, decide

SURE = 0.98  # upper bound on the acceptance rate: if it does not pay, no draft pass does
PROBE_SHARE = 0.005  # of the time
PROBE_COST_MIN = 0.05  # least cost of a probe in plain tokens: timings underestimate it
LOSS_MAX = 1.0  # loss in plain tokens after which a plan is made anew
N_FIRST = 8  # steps after which plain decoding is timed, if none was plain before
N_BETWEEN = 256  # steps between two timings of plain decoding while drafting
N_LOADS = 8  # recent passes whose batch load counts, about
N_REPLAN, N_REPLAN_PLAIN = 16, 64  # most steps that a plan to draft, or not to, lasts

N_LOOK_UPS = 5  # timings that count; their median, since other programs disturb single ones

PLAIN = DraftLimit(0)
REST = DraftLimit(0, rests=True)


def probe_p_min(costs: Costs, acceptance: Acceptance) -> float:
    """Return the p_min of a probe: 0 if verifying its token is expected to pay, else infinity; then
    the token is dropped, and the target's token tells whether it was right."""
    chance = sum(map(mul, *acceptance.rows()))
    cost_us = costs.step_us(1, 1) - costs.step_us(1, 0)
    return 0.0 if chance * costs.plain_us > cost_us else math.inf


class Auto:
    """The default controller."""

    def __init__(self, memory: Learned) -> None:
        self.memory = memory
        self._n_past = self._n_steps = self._n_tokens = 0
        self._n_sequences = self._n_rows = 0.0  # mean batch load of recent passes
        self._shared_us: tuple[float, ...] = ()  # of shared passes, by rows
        self._account = Account()
        self._look_ups: deque[float] = deque(maxlen=N_LOOK_UPS)  # recent times in microseconds
        self._look_up_us = 0.0  # their median
        self._own_us = 0.0  # spent in the last observe(), part of the next step
        self._n_rests = 0  # steps for which the drafter is not asked
        # plain steps still to be timed before drafts are compared with them
        timings = memory.timings
        self._n_untimed = 0 if timings.knows_plain else timings.n_preparing + 1
        self._next_plain = N_FIRST if self._n_untimed else N_BETWEEN  # in steps
        self._next_probe = 0.0  # in tokens
        self._plan()

    def explain(self) -> Decision:
        return self.decision

    def limit(self, n_past: int) -> DraftLimit:
        self._n_past = n_past
        if self._n_rests:
            return REST
        if self._n_steps >= self._next_plain and not self._n_sequences:
            return PLAIN
        if self._n_steps >= self._replan_at:
            self._plan()
        if self._n_untimed and not self._n_sequences:
            # copies take no draft passes, and are timed by their width
            return replace(self._limit, n_max=0, rule_after=None)
        probes = not self.decision.drafts and self._n_tokens >= self._next_probe
        return self._probe if probes else self._limit

    def observe(self, step: Step) -> None:
        self._n_steps += 1
        self._n_tokens += len(step.tokens)
        load = step.batch_load
        if self._n_rests and (load.n_sequences > 0) == (self._n_sequences > 0):
            self._n_rests = max(self._n_rests - 1, load.n_rests)
            return
        start_ns = time.perf_counter_ns()
        if load.n_sequences or self._n_sequences:
            self._observe_load(step)
        if step.draft.n_passed_or_dropped:
            self._observe_outcomes(step)
        if load.n_sequences:
            self._n_rests = 0 if step.n_accepted else load.n_rests
        else:
            if not (step.draft.is_empty and self._is_timed_enough):
                self._observe_times(step)
            self._add_to_account(step)
        self._own_us = (time.perf_counter_ns() - start_ns) / 1000

    @property
    def _is_timed_enough(self) -> bool:
        """Whether this step needs no timing if it drafts nothing."""
        waits = self._n_untimed > 0 or self._n_steps % N_TIMED == 0
        return self.decision.costs.only_copies and not waits

    def _add_to_account(self, step: Step) -> None:
        """Add the step to the account, at expected costs: of looking tokens up, the median. Rest
        until there is credit."""
        draft, costs = step.draft, self.decision.costs
        n_proposed, us = draft.n_passed_or_dropped, costs.plain_us
        if not draft.is_empty:
            us = costs.step_us(n_proposed, draft.n_passed, draft.n_copied)
        if draft.draft_us and not n_proposed:
            self._look_ups.append(draft.draft_us + self._own_us)
            self._look_up_us = median(self._look_ups)
            us += self._look_up_us
        if step.n_accepted < step.n_drafted:
            us += costs.removal_us
        self._account.add(len(step.tokens), us, costs.plain_us)
        self._n_rests = self._account.n_rests(self._look_up_us, costs.plain_us)
        self._account.add_rests(self._n_rests)

    def _observe_outcomes(self, step: Step) -> None:
        outcomes = step.outcomes
        self.memory.acceptance.observe(
            (each.p, right) for each, right in outcomes if each.origin is DraftOrigin.PASSED
        )
        if not self.decision.drafts:
            self._observe_probe(step, any(right for _, right in outcomes))

    def _observe_load(self, step: Step) -> None:
        """Average the load, but react at once when a batch begins or ends."""
        batch_load = step.batch_load
        self._shared_us = batch_load.full_us
        if (batch_load.n_sequences > 0) != (self._n_sequences > 0):
            self._n_sequences, self._n_rows = map(float, batch_load[:2])
            self._replan_at, self._n_rests = self._n_steps, 0
        else:
            self._n_sequences += (batch_load.n_sequences - self._n_sequences) / N_LOADS
            self._n_rows += (batch_load.n_rows - self._n_rows) / N_LOADS

    def _observe_times(self, step: Step) -> None:
        draft = step.draft
        self.memory.timings.observe(
            self._n_past,
            draft.n_passed_or_dropped,
            draft.n_passed,
            draft.draft_us,
            step.verify_us,
            draft.n_copied,
            step.removal_us,
        )
        if not draft.is_empty:
            self._gain += len(step.tokens) - step.us / self.decision.costs.plain_us
            if self._gain < -LOSS_MAX:
                self._replan_at = self._n_steps
        else:
            self._n_untimed = max(0, self._n_untimed - 1)
            if not self._n_untimed:
                self._next_plain = self._n_steps + N_BETWEEN

    def _observe_probe(self, step: Step, right: bool) -> None:
        """Make a new plan if the probe was right, and schedule the next probe if it did not pay."""
        if right:
            self._replan_at = self._n_steps
        draft = step.draft
        if not step.n_accepted:
            costs = self.decision.costs
            us = costs.step_us(draft.n_passed_or_dropped, step.n_drafted) + draft.catch_up_us
            cost = us / costs.plain_us - 1
            self._next_probe = self._n_tokens + max(cost, PROBE_COST_MIN) / PROBE_SHARE

    def _plan(self) -> None:
        self._gain = 0.0
        timings, acceptance = self.memory.timings, self.memory.acceptance
        n_others, n_rows = round(self._n_sequences), round(self._n_rows)
        costs = timings.at(self._n_past).in_batch(n_others, n_rows, self._shared_us)
        offers = n_others > 0
        n_most = timings.n_known
        self.decision = decide(costs, acceptance, n_most)
        rule = self.decision.rule
        self._limit = Choice(
            rule.n_max,
            rule.p_min,
            n_copies=MAX_DRAFT if offers else timings.n_copies_known,
            costs=costs,
            offers=offers,
            chance_min=0.0 if rule.n_max else least_chance(costs),
            rule_after=_rule_after(rule, costs, acceptance, n_most) if rule.n_max else None,
        )
        self._probe = self._limit
        probes = self.decision.best is not None and not self.decision.drafts
        if probes and best_length(costs, SURE)[0] >= 1 + GAIN_MIN:
            self._probe = replace(self._limit, n_max=1, p_min=probe_p_min(costs, acceptance))
        lasts = N_REPLAN if rule.n_max else N_REPLAN_PLAIN
        if not (offers and costs.only_copies):  # there the batch decides, which has learned more
            lasts = max(1, min(lasts, self._n_steps // 2))
        self._replan_at = self._n_steps + lasts


def _rule_after(
    rule: Rule, costs: Costs, acceptance: Acceptance, n_most: int
) -> Callable[[int], Rule]:
    """Return a function that finds the best rule for draft passes after copied tokens."""

    @cache
    def rule_after(n_copied: int) -> Rule:
        n = min(n_most, N_WIDTH - 1 - n_copied)
        return best_rule(costs, acceptance, n, n_copied) if n_copied else rule

    return rule_after


def make(costs: CostTable, memory: Learned | None = None) -> Auto:
    return Auto(memory or Learned(TimedCosts(costs)))
