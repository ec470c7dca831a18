"""The data that travels in the loop: drafts, verdicts, steps, statistics.

Pure and frozen (but for the one accumulator). Knows no model and no native library.
Times are integers in microseconds; probabilities are 0..1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask


class After(Enum):
    """What to do with the token that was drafted last."""

    DROP = "drop"  # leave it out and stop
    STOP = "stop"  # check it and stop
    GO_ON = "go on"  # check it and draft another


@dataclass(frozen=True, slots=True)
class DraftLimit:
    """What a controller allows for the next step."""

    n_max: int  # tokens; 0: do not speculate
    p_min: float = 0.0  # drop a token of lower probability

    def capped(self, n_max: int) -> Self:
        """This limit, with at most n_max (never negative) tokens."""
        return replace(self, n_max=max(0, min(self.n_max, n_max)))

    def after(self, probs: Sequence[float]) -> After:
        """What to do with a drafted token; probs: of all drafted so far, it being the last."""
        if probs[-1] < self.p_min:
            return After.DROP
        return After.STOP if len(probs) >= self.n_max else After.GO_ON


@dataclass(frozen=True, slots=True)
class SharedBlocks:
    """What a draft leaves for the check, so that the blocks both run are run once.

    The target's sequence holds the checked tokens already, with the K/V of a full pass in the
    blocks that ``mask`` skips.
    """

    mask: LayerMask  # skips the shared blocks, runs all of the others
    hidden: NDArray[np.float32]  # [n_drafted + 1, n_embd], states entering mask.first_active


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed by a cheap pass, oldest first.

    dropped: a last guess that was not worth a check, and its probability. The target's own draw
    tells whether it was right.
    """

    tokens: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()  # the drafter's probability of each token
    draft_us: int = 0
    shared: SharedBlocks | None = field(default=None, compare=False)
    dropped: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.probs):
            raise ArgumentError(
                f"a draft has one probability per token, got {len(self.tokens)} tokens "
                f"and {len(self.probs)} probabilities"
            )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the full model makes of a draft: ``draft[:n_accepted]``, then its own next token.

    next_token is None when the text ends with the accepted part.
    """

    n_accepted: int
    next_token: int | None
    ended: bool  # the last of these tokens ends the text


@dataclass(frozen=True, slots=True)
class Step:
    """One draft and its verdict."""

    draft: Draft
    verdict: Verdict
    verify_us: int

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens this step adds to the text, at least one."""
        accepted = self.draft.tokens[: self.verdict.n_accepted]
        own = self.verdict.next_token
        return accepted if own is None else (*accepted, own)

    @property
    def n_drafted(self) -> int:
        return len(self.draft.tokens)

    @property
    def n_guesses(self) -> int:
        """Drafted tokens and the dropped one: masked passes with an output."""
        return self.n_drafted + (self.draft.dropped is not None)

    @property
    def outcomes(self) -> list[tuple[float, bool]]:
        """For every guess that can be judged, oldest first: its probability, and whether the target
        drew that token."""
        judged = [(p, True) for p in self.draft.probs[: self.n_accepted]]
        own = self.verdict.next_token
        if own is None:
            return judged
        if self.n_accepted < self.n_drafted:
            return [*judged, (self.draft.probs[self.n_accepted], False)]
        if self.draft.dropped is not None:
            token, p = self.draft.dropped
            return [*judged, (p, token == own)]
        return judged

    @property
    def n_accepted(self) -> int:
        return self.verdict.n_accepted


@dataclass(slots=True)
class GenerationStats:
    """Counts and times of one generation. Ratios are derived, never stored.

    ``n_accepted`` leaves out the full model's own token of each step; ``n_generated`` includes it.
    """

    n_prompt: int = 0
    n_generated: int = 0
    n_steps: int = 0  # full-model passes after the prompt
    n_drafted: int = 0
    n_accepted: int = 0
    n_drafted_at: list[int] = field(default_factory=list)  # drafted tokens by draft position
    n_accepted_at: list[int] = field(default_factory=list)  # accepted tokens by draft position
    prefill_us: int = 0
    draft_us: int = 0
    verify_us: int = 0
    total_us: int = 0  # prompt and generation

    def observe(self, step: Step) -> None:
        self.n_steps += 1
        self.n_generated += len(step.tokens)
        self.n_drafted += step.n_drafted
        self.n_accepted += step.n_accepted
        _count_upto(self.n_drafted_at, step.n_drafted)
        _count_upto(self.n_accepted_at, step.n_accepted)
        self.draft_us += step.draft.draft_us
        self.verify_us += step.verify_us

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None before anything was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def tokens_per_step(self) -> float | None:
        """Generated tokens per full-model pass."""
        return self.n_generated / self.n_steps if self.n_steps else None

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens over the time that followed the prompt."""
        us = self.total_us - self.prefill_us
        return self.n_generated * 1e6 / us if self.n_generated and us > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Counts, times and ratios, ready for JSON."""
        return asdict(self) | {
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_step": self.tokens_per_step,
            "tokens_per_second": self.tokens_per_second,
        }


def _count_upto(counts: list[int], n: int) -> None:
    counts.extend([0] * (n - len(counts)))
    for i in range(n):
        counts[i] += 1
