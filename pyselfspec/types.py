"""The data that travels between modules: masks, drafts, verdicts, steps, statistics.

Pure and frozen (but for the one accumulator). Knows no model and no native library.
Block numbers are 0-based as in GGUF's ``blk.N.``; times are integers in microseconds; probabilities
are 0..1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError, MaskError

SKIP_ATTN = 1
SKIP_FFN = 2


@dataclass(frozen=True, slots=True)
class LayerMask:
    """Which attention and feed-forward parts of a model a pass skips.

    Raises MaskError for a block outside ``0..n_layer-1`` and for a mask that skips everything.

    >>> LayerMask.early_exit(4, keep=3).skip_attn
    frozenset({3})
    """

    n_layer: int
    skip_attn: frozenset[int] = frozenset()
    skip_ffn: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip_attn", frozenset(self.skip_attn))
        object.__setattr__(self, "skip_ffn", frozenset(self.skip_ffn))
        if self.n_layer < 1:
            raise MaskError(f"a mask needs at least one block, got n_layer = {self.n_layer}")
        for part, blocks in (("attention", self.skip_attn), ("feed-forward", self.skip_ffn)):
            outside = sorted(il for il in blocks if not 0 <= il < self.n_layer)
            if outside:
                raise MaskError(
                    f"the mask skips the {part} of block {outside[0]}, "
                    f"but the model has {self.n_layer} blocks (0 to {self.n_layer - 1})"
                )
        if self.n_active == 0:
            raise MaskError(
                f"the mask skips all {self.n_layer} blocks; at least one part of one block must run"
            )

    @classmethod
    def full(cls, n_layer: int) -> LayerMask:
        """The mask that skips nothing."""
        return cls(n_layer)

    @classmethod
    def skipping(
        cls, n_layer: int, *, attn: Iterable[int] = (), ffn: Iterable[int] = ()
    ) -> LayerMask:
        """A mask from lists of blocks to skip."""
        return cls(n_layer, frozenset(attn), frozenset(ffn))

    @classmethod
    def early_exit(cls, n_layer: int, keep: int) -> LayerMask:
        """Run blocks ``0..keep-1`` only, as LayerSkip's exit after ``keep`` blocks."""
        if not 1 <= keep <= n_layer:
            raise MaskError(f"an exit keeps 1 to {n_layer} blocks, got {keep}")
        rest = frozenset(range(keep, n_layer))
        return cls(n_layer, rest, rest)

    @classmethod
    def enter_at(cls, n_layer: int, first: int) -> LayerMask:
        """Run blocks ``first..n_layer-1`` only, for a pass that starts from hidden states."""
        if not 0 <= first < n_layer:
            raise MaskError(f"the first block to run is 0 to {n_layer - 1}, got {first}")
        below = frozenset(range(first))
        return cls(n_layer, below, below)

    @classmethod
    def alternate(cls, n_layer: int) -> LayerMask:
        """Skip every odd block but the first and the last: where SWIFT starts its search.

        Xia et al., "SWIFT: On-the-Fly Self-Speculative Decoding", section 4.1,
        https://arxiv.org/abs/2410.06916
        """
        odd = frozenset(range(1, n_layer - 1, 2))
        return cls(n_layer, odd, odd)

    @property
    def n_active(self) -> int:
        """Parts that run, 0..2 * n_layer."""
        return 2 * self.n_layer - len(self.skip_attn) - len(self.skip_ffn)

    @property
    def first_active(self) -> int:
        """The first block that is not skipped whole: where hidden states enter."""
        skipped = self.skip_attn & self.skip_ffn
        return next(il for il in range(self.n_layer) if il not in skipped)

    @property
    def first_skipped(self) -> int:
        """The first block of which anything is skipped, n_layer when nothing is.

        All blocks below it compute the same with the mask and without.
        """
        return min(self.skip_attn | self.skip_ffn, default=self.n_layer)

    @property
    def last_active(self) -> int:
        """The last block that is not skipped whole."""
        skipped = self.skip_attn & self.skip_ffn
        return next(il for il in reversed(range(self.n_layer)) if il not in skipped)

    def first_difference(self, other: LayerMask) -> int:
        """The first block that the masks treat differently, n_layer for equal masks."""
        other.require(self.n_layer)
        differing = (self.skip_attn ^ other.skip_attn) | (self.skip_ffn ^ other.skip_ffn)
        return min(differing, default=self.n_layer)

    def __or__(self, other: LayerMask) -> LayerMask:
        """Skip what either mask skips."""
        other.require(self.n_layer)
        return LayerMask(
            self.n_layer, self.skip_attn | other.skip_attn, self.skip_ffn | other.skip_ffn
        )

    def require(self, n_layer: int) -> LayerMask:
        """This mask, or MaskError when it was made for another number of blocks."""
        if self.n_layer != n_layer:
            raise MaskError(
                f"the mask is for {self.n_layer} blocks, not for {n_layer}; "
                "use one made for this model"
            )
        return self

    def to_bytes(self) -> bytes:
        """One byte per block: 1 skips attention, 2 skips feed-forward, 3 both."""
        return _mask_bytes(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "n_layer": self.n_layer,
            "skip_attn": sorted(self.skip_attn),
            "skip_ffn": sorted(self.skip_ffn),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LayerMask:
        unknown = set(data) - {"n_layer", "skip_attn", "skip_ffn"}
        if unknown:
            raise MaskError(
                f"a mask has n_layer, skip_attn and skip_ffn, not {sorted(unknown)[0]!r}"
            )
        if not _is_int(data.get("n_layer")):
            raise MaskError(f"n_layer of a mask is a whole number, got {data.get('n_layer')!r}")
        return cls(
            data["n_layer"],
            _blocks(data.get("skip_attn", []), "skip_attn"),
            _blocks(data.get("skip_ffn", []), "skip_ffn"),
        )

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> LayerMask:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MaskError(f"the mask is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise MaskError(
                'a mask is an object like {"n_layer": 12, "skip_attn": [4], "skip_ffn": [4, 5]}, '
                f"got {type(data).__name__}"
            )
        return cls.from_dict(data)


@lru_cache(maxsize=256)
def _mask_bytes(mask: LayerMask) -> bytes:
    """Every drafted token asks for these bytes, and drafts use few masks."""
    return bytes(
        SKIP_ATTN * (il in mask.skip_attn) + SKIP_FFN * (il in mask.skip_ffn)
        for il in range(mask.n_layer)
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _blocks(value: object, name: str) -> frozenset[int]:
    if not isinstance(value, list) or not all(_is_int(il) for il in value):
        raise MaskError(f"{name} of a mask is a list of block numbers, got {value!r}")
    if len(set(value)) != len(value):
        twice = next(il for il in value if value.count(il) > 1)
        raise MaskError(f"{name} of a mask names block {twice} twice")
    return frozenset(value)


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
