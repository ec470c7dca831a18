"""How much faster than plain decoding an answer was, without a second run. Pure."""

from __future__ import annotations

from ..costs.timed import TimedCosts
from .types import GenerationStats


def estimated_speedup(
    stats: GenerationStats, timings: TimedCosts, n_rows_beside: float = 0.0
) -> float | None:
    """The time that plain decoding would have taken over the time that the steps took.

    Plain decoding takes one full pass per token; what such a pass costs is known from the plain
    passes that were timed between drafts. Reading the prompt counts on neither side.

    timings: what passes cost in this context, corrected by this and earlier texts.
    n_rows_beside: rows of other texts in each verification pass, on average. Plain passes would
        have carried these rows as well.

    None where nothing was drafted, or where no plain pass has been timed yet.
    """
    us = stats.draft_us + stats.verify_us
    if not stats.n_drafted or not timings.has_timed_plain or us <= 0:
        return None
    costs = timings.at(stats.n_prompt + stats.n_generated // 2)
    return stats.n_generated * costs.full_pass_us(1 + round(n_rows_beside)) / us
