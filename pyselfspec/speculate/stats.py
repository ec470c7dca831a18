"""Counts and times of generations. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any

from .types import Step

N_PLAIN = 5  # fewest plain passes of a text from which their cost is estimated


@dataclass(slots=True)
class SourceStats:
    """Drafted and accepted tokens of one drafter, by position in the draft."""

    n_drafted_at: list[int] = field(default_factory=list)
    n_accepted_at: list[int] = field(default_factory=list)

    @property
    def n_drafted(self) -> int:
        return sum(self.n_drafted_at)

    @property
    def n_accepted(self) -> int:
        return sum(self.n_accepted_at)


@dataclass(slots=True)
class GenerationStats:
    """Counts and times of one generation. Ratios are derived, never stored.

    ``n_accepted`` leaves out the full model's own token of each step; ``n_generated`` includes it.
    """

    n_prompt: int = 0
    n_prompt_reused: int = 0  # of these, tokens already in the K/V cache
    n_generated: int = 0
    n_steps: int = 0  # full-model passes after the prompt
    n_plain: int = 0  # of these, passes that verified nothing
    n_drafted: int = 0
    n_copied: int = 0  # of these, tokens copied without a pass
    n_accepted: int = 0
    n_drafted_at: list[int] = field(default_factory=list)  # drafted tokens by draft position
    n_accepted_at: list[int] = field(default_factory=list)  # accepted tokens by draft position
    sources: dict[str, SourceStats] = field(default_factory=dict)  # by name of the drafter
    prefill_us: int = 0
    draft_us: int = 0
    verify_us: int = 0
    plain_us: int = 0  # of this, in the n_plain passes
    total_us: int = 0  # prompt and generation

    def observe(self, step: Step) -> None:
        self.n_steps += 1
        self.n_generated += len(step.tokens)
        self.draft_us += step.draft.draft_us + step.draft.catch_up_us
        self.verify_us += step.verify_us + step.removal_us
        if step.is_plain:
            self.n_plain += 1
            self.plain_us += step.verify_us
        if step.draft.tokens:
            self._observe_draft(step)

    def _observe_draft(self, step: Step) -> None:
        self.n_drafted += step.n_drafted
        self.n_copied += step.draft.n_copied
        self.n_accepted += step.n_accepted
        for i in range(step.n_accepted):
            _count(self.n_accepted_at, i)
        path = step.verdict.path
        for i, (each, depth) in enumerate(zip(step.draft.tokens, step.draft.depths, strict=True)):
            _count(self.n_drafted_at, depth)
            if not each.source:
                continue
            if each.source not in self.sources:
                self.sources[each.source] = SourceStats()
            stats = self.sources[each.source]
            _count(stats.n_drafted_at, depth)
            if i in path:
                _count(stats.n_accepted_at, depth)

    def add(self, other: GenerationStats) -> None:
        """Add the counts and times of another generation."""
        for each in fields(self):
            mine, others = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, int):
                setattr(self, each.name, mine + others)
            elif isinstance(mine, list):
                setattr(self, each.name, _sum(mine, others))
        for name, found in other.sources.items():
            stats = self.sources.setdefault(name, SourceStats())
            stats.n_drafted_at = _sum(stats.n_drafted_at, found.n_drafted_at)
            stats.n_accepted_at = _sum(stats.n_accepted_at, found.n_accepted_at)

    @property
    def estimated_speedup(self) -> float | None:
        """The time that plain decoding would have taken over the time that the steps took, without
        a second run; None if nothing was drafted, or with fewer than N_PLAIN plain passes.

        Plain decoding takes one full pass per token. Its cost is the mean of the plain passes of
        this text, which ran on the same machine at the same time, with as many rows of other texts.
        Reading the prompt does not count. A wider pass is never cheaper than a plain one, so the
        result is at most the number of tokens per step.
        """
        us = self.draft_us + self.verify_us
        if not self.n_drafted or self.n_plain < N_PLAIN or us <= 0:
            return None
        pass_us = self.plain_us / self.n_plain
        return min(self.n_generated * pass_us / us, self.n_generated / self.n_steps)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None if nothing was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def tokens_per_step(self) -> float | None:
        """Generated tokens per full-model pass; None before the first one."""
        return self.n_generated / self.n_steps if self.n_steps else None

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens per second, without the time spent on the prompt; None if unknown."""
        us = self.total_us - self.prefill_us
        return self.n_generated * 1e6 / us if self.n_generated and us > 0 else None

    @property
    def prompt_per_second(self) -> float | None:
        """Prompt tokens read per second; None if unknown. The last one is part of the first pass
        of the text, and those in the K/V cache are not read."""
        n_read = self.n_prompt - self.n_prompt_reused - 1
        return n_read * 1e6 / self.prefill_us if n_read > 0 and self.prefill_us > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return counts, times and ratios as JSON values."""
        return asdict(self) | {
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_step": self.tokens_per_step,
            "tokens_per_second": self.tokens_per_second,
        }


def _sum(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0)]


def _count(counts: list[int], i: int) -> None:
    if i >= len(counts):
        counts.extend([0] * (i + 1 - len(counts)))
    counts[i] += 1
