"""The data that travels in the loop: drafts, verdicts, steps, statistics.

Pure and frozen (but for the one accumulator). Knows no model and no native library.
Times are integers in microseconds; probabilities are 0..1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..runtime.passes import FULL, Pass


class After(Enum):
    """What to do with the token that was drafted last."""

    DROP = "drop"  # leave it out and stop
    STOP = "stop"  # verify it and stop
    GO_ON = "go on"  # verify it and draft another


Law = NDArray[np.float64]  # the probability of every token, [n_vocab]


class Pick(NamedTuple):
    """A token that a pass gives a draft.

    p: of the likeliest token, which tells whether to go on. It knows nothing of a draw: to drop
        tokens by what was drawn would bend the law of those that are kept.
    law: that the token was drawn from; None: it is the likeliest itself.
    """

    token: int
    p: float
    likeliest: int
    law: Law | None = None


class LeavesLogits(Protocol):
    """What a pass left, see requests.Answer."""

    def argmax(self, row: int) -> tuple[int, float]: ...


EVEN = 0.5  # chance of a token that is as likely right as wrong


@dataclass(frozen=True, slots=True)
class DraftLimit:
    """What a controller allows for the next step.

    n_max: tokens; 0: do not speculate.
    p_min: drop a token of lower probability.
    drawing: draws a token from the law of a pass's row; None takes the likeliest.
    """

    n_max: int
    p_min: float = 0.0
    drawing: Callable[[Any, int], Pick] | None = field(default=None, kw_only=True)

    def pick(self, answer: LeavesLogits, row: int) -> Pick:
        """The token to draft behind a row of a pass."""
        if self.drawing is not None:
            return self.drawing(answer, row)
        token, p = answer.argmax(row)
        return Pick(token, p, token)

    def capped(self, n_max: int) -> Self:
        """This limit, with at most n_max (never negative) tokens."""
        return replace(self, n_max=max(0, min(self.n_max, n_max)))

    def after(self, probs: Sequence[float]) -> After:
        """What to do with a draft token; probs: of all drafted so far, it being the last."""
        if probs[-1] < self.p_min:
            return After.DROP
        return After.STOP if len(probs) >= self.n_max else After.GO_ON

    @property
    def n_looked_up(self) -> int:
        """Tokens that are worth looking up, see ``cut``."""
        return self.n_max

    def choose(self, probs: Sequence[float]) -> tuple[int, Self]:
        """How many of the tokens that were looked up to take, and what may be drafted behind
        them, where there is who drafts; probs: as for ``cut``. Here one or the other, and passes
        where a token is more likely wrong than right."""
        n = len(replace(self, p_min=max(self.p_min, EVEN)).cut(range(len(probs)), probs).tokens)
        return n, self.capped(0 if n else self.n_max)

    def n_siblings(self, chain: Draft, chances: Sequence[float]) -> int:
        """How many tokens to verify besides a chain, each of which ends a branch of its own;
        chances: to be accepted, the likeliest first. They do not count against n_max. Here all."""
        return len(chances)

    def cut(self, tokens: Sequence[int], probs: Sequence[float] | None = None) -> Draft:
        """What is left of tokens that were drafted all at once.

        probs: of each, that it is right if those before it are.
        """
        if self.n_max == 0 or not tokens:
            return Draft()
        if probs is None:
            first = tuple(tokens[: self.n_max])
            return Draft(first, n_copied=len(first))
        for n in range(1, len(tokens) + 1):
            after = self.after(probs[:n])
            if after is After.DROP:
                kept, dropped = n - 1, (tokens[n - 1], probs[n - 1])
                return replace(copied(tokens[:kept], probs), dropped=dropped)
            if after is After.STOP:
                break
        return copied(tokens[:n], probs)


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed to follow the text.

    tokens: oldest first.
    probs: the drafter's probability of each token, see also Pick.p; None where it has none.
    draft_us: what the draft took; 0 leaves it to the loop to time it.
    late_us: what it took before that, to read what came while nothing was drafted: not what drafts
        cost, but a loss.
    verify: the verification pass. A draft whose pass enters behind shared blocks has left its rows
        (the last token of the text and all of its own) in the sequence, with the K/V of a full pass
        in those blocks.
    dropped: a last draft token that was not worth verifying, and its probability. The target's own
        draw tells whether it was right.
    parents: for each token, the index of the one it follows, -1 for the last token of the text;
        empty: a chain, each follows the one before it. A parent comes before its children. Where
        there is room for less than the whole, its beginning is verified: the best branch goes
        first.
    n_copied: the first tokens that took no pass.
    n_siblings: the last tokens, which took none either: each stands beside one of the others.
    sources: names of the drafters that each token is from; empty: all from one, whose name the loop
        fills in.
    laws: for each token of a chain, the law that it was drawn from, None where nothing was drawn;
        empty: nothing was.
    """

    tokens: tuple[int, ...] = ()
    probs: tuple[float, ...] | None = None
    draft_us: int = 0
    late_us: int = 0
    verify: Pass = field(default=FULL, compare=False)
    dropped: tuple[int, float] | None = None
    parents: tuple[int, ...] = ()
    n_copied: int = 0
    n_siblings: int = 0
    sources: tuple[str, ...] = ()
    laws: tuple[Law | None, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if self.probs is not None and len(self.probs) != n:
            raise ArgumentError(
                f"a draft has one probability per token, got {n} tokens and {len(self.probs)} "
                "probabilities"
            )
        if self.parents and len(self.parents) != n:
            raise ArgumentError(
                f"a draft has one parent per token, got {n} tokens and {len(self.parents)} parents"
            )
        if self.sources and len(self.sources) != n:
            raise ArgumentError(
                f"a draft has one source per token, got {n} tokens and {len(self.sources)} sources"
            )
        if self.laws and (len(self.laws) != n or not self.is_chain):
            raise ArgumentError(
                f"a draft has one law per token of a chain, got {n} tokens and {len(self.laws)} "
                "laws"
            )
        if not 0 <= self.n_copied <= n:
            raise ArgumentError(f"of {n} tokens, {self.n_copied} cannot have been copied")
        if not 0 <= self.n_siblings <= n - self.n_copied:
            raise ArgumentError(f"of {n} tokens, {self.n_siblings} cannot stand beside others")
        if any(not -1 <= parent < i for i, parent in enumerate(self.parents)):
            raise ArgumentError("a parent comes before its children, got " + str(self.parents))
        if self.verify != FULL and not self.is_chain:
            raise ArgumentError("a draft with branches is verified from the first block on")

    @property
    def n_proposed(self) -> int:
        """Tokens but for siblings, and the dropped one."""
        return len(self.tokens) - self.n_siblings + (self.dropped is not None)

    @property
    def is_chain(self) -> bool:
        return all(parent == i - 1 for i, parent in enumerate(self.parents))

    @property
    def depths(self) -> Sequence[int]:
        """By token, how many of the draft come before it on its branch."""
        if self.is_chain:
            return range(len(self.tokens))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def beginning(self, n: int) -> Draft:
        """Its first n tokens."""
        if n >= len(self.tokens):
            return self
        return replace(
            self,
            tokens=self.tokens[:n],
            probs=None if self.probs is None else self.probs[:n],
            dropped=None,
            parents=self.parents[:n],
            n_copied=min(n, self.n_copied),
            n_siblings=max(0, n - (len(self.tokens) - self.n_siblings)),
            sources=self.sources[:n],
            laws=self.laws[:n],
        )

    def children(self, node: int) -> Sequence[int]:
        """The indices of the tokens that follow a node, -1 being the text."""
        behind = range(node + 1, len(self.tokens))
        return [i for i in behind if self.parents[i] == node] if self.parents else behind[:1]

    def drawn_behind(self, row: int) -> tuple[int, Law] | None:
        """The token that follows a row of the verification pass, row 0 being the last token of the
        text, and the law that it was drawn from; None where nothing was drawn."""
        law = self.laws[row] if row < len(self.laws) else None
        return None if law is None else (self.tokens[row], law)

    def child(self, node: int, token: int) -> int | None:
        """The index of this token among those that follow a node."""
        return next((i for i in self.children(node) if self.tokens[i] == token), None)


def copied(tokens: Sequence[int], probs: Sequence[float]) -> Draft:
    """A draft of tokens that took no pass; probs: of these and perhaps more."""
    n = len(tokens)
    return Draft(tuple(tokens), probs=tuple(probs[:n]), n_copied=n) if n else Draft()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the full model makes of a draft: the tokens on this path, then its own next token.

    path: indices of the accepted draft tokens, each following the one before.
    next_token: None when the text ends with the accepted tokens.
    ended: the last of these tokens ends the text.
    """

    path: tuple[int, ...]
    next_token: int | None
    ended: bool

    @classmethod
    def of_chain(cls, n_accepted: int, next_token: int | None, ended: bool) -> Self:
        """The first n_accepted tokens of a draft without branches."""
        return cls(tuple(range(n_accepted)), next_token, ended)

    @property
    def n_accepted(self) -> int:
        return len(self.path)


class Company(NamedTuple):
    """Other texts that took part in a pass, and their rows."""

    n_texts: int = 0
    n_rows: int = 0


ALONE = Company()


@dataclass(frozen=True, slots=True)
class Step:
    """One draft and its verdict. company: of its verification pass."""

    draft: Draft
    verdict: Verdict
    verify_us: int
    company: Company = ALONE

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens this step adds to the text, at least one."""
        accepted = tuple(self.draft.tokens[i] for i in self.verdict.path)
        own = self.verdict.next_token
        return accepted if own is None else (*accepted, own)

    @property
    def origins(self) -> tuple[str | None, ...]:
        """For each of these tokens, the drafter that proposed it; None for the full model's own."""
        sources = self.draft.sources or (None,) * len(self.draft.tokens)
        accepted = tuple(sources[i] for i in self.verdict.path)
        return accepted if self.verdict.next_token is None else (*accepted, None)

    @property
    def us(self) -> int:
        return self.draft.draft_us + self.draft.late_us + self.verify_us

    @property
    def is_plain(self) -> bool:
        """Whether its pass was one of plain decoding: all blocks, for the last token alone."""
        return not self.draft.tokens and self.draft.verify.enter is None

    @property
    def n_drafted(self) -> int:
        return len(self.draft.tokens)

    @property
    def n_accepted(self) -> int:
        return self.verdict.n_accepted

    @property
    def outcomes(self) -> list[tuple[float | None, bool]]:
        """For every token that the target has decided on, oldest first: its probability if it has
        one, and whether the target drew that token. Of several at one place, the first: where
        another one was right, no more was decided of what was drafted first."""
        path = self.verdict.path
        probs = self.draft.probs or (None,) * self.n_drafted
        decided: list[tuple[float | None, bool]] = []
        node = -1
        for i in path:
            first = self.draft.children(node)[0]
            decided.append((probs[first], i == first))
            if i != first:
                return decided
            node = i
        own = self.verdict.next_token
        if own is None:
            return decided
        if rejected := self.draft.children(node):
            return [*decided, (probs[rejected[0]], False)]
        if self.draft.dropped is not None:
            token, p = self.draft.dropped
            return [*decided, (p, token == own)]
        return decided


@dataclass(slots=True)
class SourceStats:
    """What one drafter proposed, and what was accepted of it, by position in the draft."""

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
    n_prompt_reused: int = 0  # of these, held by the sequence already
    n_generated: int = 0
    n_steps: int = 0  # full-model passes after the prompt
    n_plain: int = 0  # of these, passes that verified nothing
    n_drafted: int = 0
    n_copied: int = 0  # of these, tokens that took no pass
    n_accepted: int = 0
    n_drafted_at: list[int] = field(default_factory=list)  # drafted tokens by draft position
    n_accepted_at: list[int] = field(default_factory=list)  # accepted tokens by draft position
    sources: dict[str, SourceStats] = field(default_factory=dict)  # the same by drafter
    prefill_us: int = 0
    draft_us: int = 0
    verify_us: int = 0
    plain_us: int = 0  # of this, in the n_plain passes
    total_us: int = 0  # prompt and generation

    def observe(self, step: Step) -> None:
        self.n_steps += 1
        self.n_generated += len(step.tokens)
        self.n_drafted += step.n_drafted
        self.n_copied += step.draft.n_copied
        self.n_accepted += step.n_accepted
        depths = step.draft.depths
        for depth in depths:
            _count(self.n_drafted_at, depth)
        _count_upto(self.n_accepted_at, step.n_accepted)
        for i, (source, depth) in enumerate(zip(step.draft.sources, depths, strict=False)):
            stats = self.sources.setdefault(source, SourceStats())
            _count(stats.n_drafted_at, depth)
            if i in step.verdict.path:
                _count(stats.n_accepted_at, depth)
        self.draft_us += step.draft.draft_us + step.draft.late_us
        self.verify_us += step.verify_us
        if step.is_plain:
            self.n_plain += 1
            self.plain_us += step.verify_us

    def add(self, other: GenerationStats) -> None:
        """Counts and times of another text."""
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


def _sum(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0)]


def _count_upto(counts: list[int], n: int) -> None:
    for i in range(n):
        _count(counts, i)


def _count(counts: list[int], i: int) -> None:
    counts.extend([0] * (i + 1 - len(counts)))
    counts[i] += 1
