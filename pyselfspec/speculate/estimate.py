"""Estimates the speed-up of a finished text over plain decoding, without a second run. Pure."""

from __future__ import annotations

from .stats import GenerationStats

N_PLAIN = 5  # fewest plain passes of a text from which their cost is estimated


def estimated_speedup(stats: GenerationStats) -> float | None:
    """Return the time that plain decoding would have taken over the time that the steps took.

    Plain decoding takes one full pass per token. Its cost is the mean of the plain passes of this
    text, which ran on the same machine at the same time, with as many rows of other texts. Reading
    the prompt does not count. A wider pass is never cheaper than a plain one, so the result is at
    most the number of tokens per step.

    Returns None if nothing was drafted, or with fewer than N_PLAIN plain passes.
    """
    us = stats.draft_us + stats.verify_us
    if not stats.n_drafted or stats.n_plain < N_PLAIN or us <= 0:
        return None
    pass_us = stats.plain_us / stats.n_plain
    return min(stats.n_generated * pass_us / us, stats.n_generated / stats.n_steps)
