"""Drafts as long as it pays, and not at all where it does not.

Before a step, the expected tokens per second of drafting, from the costs of passes and the
acceptance seen so far, are compared with those of plain decoding. Inside a draft, after each guess
the best of dropping it, checking it, and going on is taken, by the tokens each gains and the tokens
that its time would yield otherwise. Going on looks some widths ahead, since the next one may cost
much and those after it nothing.

Trying costs time, so it needs credit (conservative exploration, Wu et al., "Conservative Bandits",
https://arxiv.org/abs/1602.04282): some at the start, a hundredth of a token per token, and what
drafts gain. A draft must be affordable if the guesses turn out as badly as they still may. Cheaper
than a draft is watching: one guess that is not checked, since the next token judges it anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...costs.table import Costs, CostTable
from ...costs.timed import TimedCosts
from ..types import After, DraftLimit, Step
from . import Decision
from ._acceptance import Acceptance, Rates, bin_of, place_of, upwards

# Credit and losses are in plain tokens, the time that one takes.
CREDIT_START = 0.9  # with CREDIT_RATE, less than 2 % of a text of 128 tokens
CREDIT_RATE = 0.01  # per generated token
CREDIT_RESERVE = CREDIT_START / 4  # not to be spent on watching
CREDIT_IDLE, CREDIT_MAX = 4.0, 8.0  # what that may add up to, and what gains may
NEW_US = 1000.0  # to build the graph of a kind of pass that was not made before
N_PLAIN = 2  # steps at the start that time plain decoding
N_LEARN = 3  # outcomes to know before drafting, when watching is cheap
WATCH_CHEAP = 0.2
WATCH_COST_MIN = 0.05  # two passes cost more than timings of each say, when these say nothing
WATCH_SHARE = 0.005  # of the time, for watching a text that does not pay
N_BETWEEN = 64  # steps between two timings of plain decoding while drafting
GAIN_MIN = 0.02  # expected gain that makes drafting worth the trouble
P_KEEP_MIN = 0.2  # to keep fewer guesses is watching, which has a budget of its own
N_REPLAN, N_REPLAN_PLAIN = 16, 64  # steps that a plan to draft, or not to, lasts at most
CREDIT_REPLAN = 0.5  # change of credit that ends it early
LOOK_AHEAD = 5  # guesses; kernels work on blocks of four rows
SURE = 0.98  # no mask is right more often for long

PLAIN = DraftLimit(0)
WATCH = DraftLimit(1, p_min=math.inf)  # guess once, check nothing


class Rule(NamedTuple):
    """Draft up to n_max tokens, dropping the first whose probability is in a bin below lowest_bin;
    and what is expected of a step."""

    n_max: int
    lowest_bin: int
    tokens: float
    us: float
    risk: float  # plain tokens lost per step if guesses are as bad as they still may be
    p_keep: float  # chance that a guess is not dropped
    chances: tuple[float, ...]  # that it is kept and right, by place

    @property
    def speed(self) -> float:
        """Tokens per microsecond."""
        return self.tokens / self.us


def plain_rule(costs: Costs) -> Rule:
    return Rule(0, 0, 1.0, costs.plain_us, 0.0, 0.0, ())


class Rules(NamedTuple):
    """All rules that draft; arrays [N_BIN, longest draft], or [N_BIN, 1] for p_keep."""

    tokens: Rates
    us: Rates
    risk: Rates
    p_keep: Rates
    accepted: Rates  # [N_BIN, N_PLACE]

    @classmethod
    def of(cls, costs: Costs, acceptance: Acceptance) -> Rules:
        """Guesses are kept with p_keep, independently, and then accepted by their place."""
        shares = acceptance.shares()[:, None]
        p_keep = upwards(shares)
        accepted = upwards(shares * acceptance.rates()) / p_keep
        n = np.arange(1, len(costs.check_us))
        check_us = np.array(costs.check_us)
        right = np.cumprod(p_keep * accepted[:, [place_of(i) for i in range(len(n))]], axis=1)
        kept = p_keep**n
        dropped = p_keep ** (n - 1) * (1 - p_keep)  # all kept but the last
        us = np.cumsum(dropped * (n * costs.guess_us + check_us[:-1]), axis=1)
        us += kept * (n * costs.guess_us + costs.last_us + check_us[1:])
        least = 1 + np.cumsum((p_keep * acceptance.lowest()[:, None]) ** n, axis=1)
        risk = us / costs.plain_us - least
        return cls(1 + np.cumsum(right, axis=1), us, risk, p_keep, accepted)

    def fastest(self, allowed: NDArray[np.bool_]) -> Rule | None:
        """The fastest rule of those allowed, [N_BIN, longest draft]."""
        speed = np.where(allowed, self.tokens / self.us, 0.0)
        b, i = np.unravel_index(speed.argmax(), speed.shape)
        if speed[b, i] == 0.0:
            return None
        p_keep = float(self.p_keep[b, 0])
        return Rule(
            int(i) + 1,
            int(b),
            float(self.tokens[b, i]),
            float(self.us[b, i]),
            float(self.risk[b, i]),
            p_keep,
            tuple((p_keep * self.accepted[b]).tolist()),
        )


@dataclass(frozen=True, slots=True)
class Worth(DraftLimit):
    """Decides after each guess by the chance that all guesses so far are right.

    keep, go_on: the least chance at which n tokens, n = 1, 2, ..., are worth checking, and at which
    another guess is.
    """

    rates: tuple[tuple[float, ...], ...] = ()  # acceptance by bin and place
    keep: tuple[float, ...] = ()
    go_on: tuple[float, ...] = ()

    def after(self, probs: Sequence[float]) -> After:
        n = len(probs)
        chance = math.prod(self.rates[bin_of(p)][place_of(i)] for i, p in enumerate(probs))
        if chance < self.keep[n - 1]:
            return After.DROP
        return After.STOP if n >= self.n_max or chance < self.go_on[n - 1] else After.GO_ON


def worth(costs: Costs, rule: Rule, rates: Rates) -> Worth:
    """Thresholds at which options break even, when time is worth ``rule.speed`` tokens.

    With chance S that n guesses are right, up to m more by the rule add S * (A_1 + ... + A_m)
    tokens, where A_l is the chance that l further guesses are kept and right.
    """
    keep, go_on = [], []
    for n in range(1, rule.n_max + 1):
        drop_us = costs.check_us[n - 1]
        stop_us = costs.last_us + costs.check_us[n]
        least_keep, least_go_on = rule.speed * (stop_us - drop_us), math.inf
        for us, further in _further(costs, rule, n):
            least_keep = min(least_keep, rule.speed * (us - drop_us) / (1 + further))
            least_go_on = min(least_go_on, rule.speed * (us - stop_us) / further)
        keep.append(least_keep)
        go_on.append(least_go_on)
    by_bin = tuple(map(tuple, rates.tolist()))
    return Worth(rule.n_max, rates=by_bin, keep=tuple(keep), go_on=tuple(go_on))


def _further(costs: Costs, rule: Rule, n: int) -> Iterator[tuple[float, float]]:
    """Expected time, and accepted tokens, of 1, 2, ... more guesses after n that are right."""
    p_kept = p_right = 1.0
    us = tokens = 0.0
    for n_drafted in range(n + 1, min(n + LOOK_AHEAD, rule.n_max) + 1):
        us += p_kept * (costs.guess_us + (1 - rule.p_keep) * costs.check_us[n_drafted - 1])
        p_kept *= rule.p_keep
        p_right *= rule.chances[place_of(n_drafted - 1)]
        tokens += p_right
        yield us + p_kept * (costs.last_us + costs.check_us[n_drafted]), tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """Whether drafting is expected to pay, and why. Times in microseconds."""

    rule: Rule  # n_max 0: plain decoding
    costs: Costs
    hopeless: bool  # not even drafts that are always right would pay
    best: Rule  # the fastest that drafts, whether it pays or not

    @property
    def drafts(self) -> bool:
        return self.rule.n_max > 0

    @property
    def us_per_token(self) -> float:
        return 1 / self.rule.speed


class Auto:
    """The default controller. Times that steps report correct the table of costs."""

    def __init__(self, costs: CostTable) -> None:
        self._costs = TimedCosts(costs)
        self._acceptance = Acceptance()
        self._credit = CREDIT_START
        self._n_past = 0
        self._n_steps = 0
        self._n_tokens = 0
        self._next_watch = 0  # in generated tokens
        self._next_plain = N_BETWEEN  # in steps
        self._plan()

    def explain(self) -> Decision:
        plan, best = self.decision, self.decision.best
        return Decision(
            drafts=plan.drafts,
            n_max=best.n_max,
            tokens=best.tokens,
            plain_us=plan.costs.plain_us,
            token_us=plan.costs.guess_us,
            verify_us=plan.costs.check_us[best.n_max],
            draft_us_per_token=1 / best.speed,
            us_per_token=plan.us_per_token,
        )

    def limit(self, n_past: int) -> DraftLimit:
        self._n_past = n_past
        if self._n_steps < N_PLAIN:
            return PLAIN
        if (
            self._n_steps >= self._replan_at
            or abs(self._credit - self._planned_credit) > CREDIT_REPLAN
        ):
            self._plan()
        if self._should_watch():
            return WATCH
        if self.decision.drafts and self._n_steps < self._next_plain:
            return self._limit
        return PLAIN

    def _time(self, step: Step) -> None:
        self._costs.observe(
            self._n_past, step.draft.n_proposed, step.n_drafted, step.draft.draft_us, step.verify_us
        )

    def observe(self, step: Step) -> None:
        self._n_steps += 1
        self._n_tokens += len(step.tokens)
        if step.draft.n_proposed == 0:
            self._time(step)
            self._next_plain = self._n_steps + N_BETWEEN
        else:
            self._learn(step)
        if self._credit < CREDIT_IDLE:
            self._credit = min(CREDIT_IDLE, self._credit + CREDIT_RATE * len(step.tokens))

    def _learn(self, step: Step) -> None:
        """From a step with guesses."""
        n_new = self._costs.n_new(step.draft.n_proposed, step.n_drafted)
        self._time(step)
        self._settle(step, n_new)
        self._acceptance.observe(step)
        if not self.decision.drafts and any(right for _, right in step.outcomes):
            self._replan_at = self._n_steps  # watching may have changed the case
        if step.draft.n_proposed == 1 and step.n_drafted == 0:
            self._next_watch = self._n_tokens + math.ceil(self._watch_cost / WATCH_SHARE)

    def _settle(self, step: Step, n_new: int) -> None:
        """Pay for a step with guesses, or be paid. What it took counts, since the table may be
        wrong, but a hiccup is no loss."""
        costs = self.decision.costs
        most_us = 2 * costs.step_us(step.draft.n_proposed, step.n_drafted) + NEW_US * n_new
        us = min(step.draft.draft_us + step.verify_us, most_us)
        self._credit = min(CREDIT_MAX, self._credit + len(step.tokens) - us / costs.plain_us)

    def _plan(self) -> None:
        costs = self._costs.at(self._n_past)
        rules = Rules.of(costs, self._acceptance)
        keeps = rules.p_keep >= P_KEEP_MIN
        best = rules.fastest(keeps)
        assert best is not None  # whoever takes every guess keeps all
        new = [self._new(costs, n) for n in range(1, len(costs.check_us))]
        affordable = rules.risk + np.array(new) <= self._credit
        rule = rules.fastest(affordable & keeps)
        if rule is None or rule.speed * costs.plain_us < 1 + GAIN_MIN:
            rule = plain_rule(costs)
        hopeless = costs.speedup(SURE)[0] < 1 + GAIN_MIN
        self.decision = Plan(rule, costs, hopeless, best)
        self._limit = worth(costs, rule, self._acceptance.rates())
        self._watch_cost = max(WATCH_COST_MIN, costs.step_us(1, 0) / costs.plain_us - 1)
        self._watch_cost += self._new(costs, 0)
        self._planned_credit = self._credit
        lasts = N_REPLAN if self.decision.drafts else N_REPLAN_PLAIN
        self._replan_at = self._n_steps + max(1, min(lasts, self._n_steps // 2))

    def _new(self, costs: Costs, n_drafted: int) -> float:
        """What new graphs cost in a step that checks so many tokens."""
        return NEW_US * self._costs.n_new(max(1, n_drafted), n_drafted) / costs.plain_us

    def _should_watch(self) -> bool:
        if self.decision.hopeless:
            return False
        if self._acceptance.n_outcomes < N_LEARN:
            affordable = self._credit - self._watch_cost >= CREDIT_RESERVE
            return affordable and (self._watch_cost <= WATCH_CHEAP or not self.decision.drafts)
        return not self.decision.drafts and self._n_tokens >= self._next_watch


def make(costs: CostTable) -> Auto:
    return Auto(costs)
