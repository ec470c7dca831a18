"""Costs of the passes of a step. Pure; times in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from ..util.pass_width import N_WIDTH as N_WIDTH


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs at one length of the text.

    n_past: length of the text in tokens.
    full_us: full passes over 1, 2, ... N_WIDTH tokens.
    verify_us: verification passes over as many tokens, without the blocks that the draft has run
        already; equal to full_us if drafter and verification share none.
    token_us: a draft token; for masks a masked pass over one token, with output; 0 for drafters
        without passes.
    last_us: the shared blocks for the last draft token, without output; 0 if there are none.
    removal_us: removing rejected draft tokens from the memory, which may take a pass.
    """

    n_past: int
    full_us: tuple[float, ...]
    verify_us: tuple[float, ...]
    token_us: float
    last_us: float
    removal_us: float = 0.0

    def rising(self) -> Costs:
        """Return costs that never fall with the width: where they seem to, another program ran."""

        def rising(us: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(accumulate(reversed(us), min))[::-1]

        return replace(self, full_us=rising(self.full_us), verify_us=rising(self.verify_us))

    @property
    def plain_us(self) -> float:
        """Time of a token of plain decoding."""
        return self.full_us[0]

    def step_us(self, n_proposed: int, n_drafted: int, n_copied: int = 0) -> float:
        """Return the time of a step; of plain decoding without draft tokens.

        n_proposed: tokens that the drafter computed. n_drafted: those of them to be verified.
        n_copied: tokens before them that took no passes.
        """
        drafting_us = self.drafting_us(n_proposed, n_drafted, n_copied)
        return drafting_us + self.verifying_us(n_proposed, n_drafted, n_copied)

    def drafting_us(self, n_proposed: int, n_drafted: int, n_copied: int = 0) -> float:
        """Return the time of a draft; its first pass is as wide as the copied tokens before it."""
        if n_proposed == 0:
            return 0.0
        last = self.last_us if n_proposed == n_drafted else 0.0
        first = self.token_us * self.full_us[n_copied] / self.plain_us
        return first + (n_proposed - 1) * self.token_us + last

    def verifying_us(self, n_proposed: int, n_drafted: int, n_copied: int = 0) -> float:
        """Return the time of the verification pass: a full pass if all draft tokens are copied."""
        n = n_copied + n_drafted
        return self.verify_us[n] if n_proposed else self.full_us[n]

    @property
    def only_copies(self) -> bool:
        """Whether drafts take no passes."""
        return self.token_us == 0.0

    @property
    def shares(self) -> bool:
        """Whether verification passes skip blocks that drafts have run."""
        return self.verify_us != self.full_us

    def in_batch(self, n_texts: int, n_rows: int, shared_us: Sequence[float]) -> Costs:
        """Return the costs for one text in a batch with n_rows rows of n_texts other texts.

        The time that a row adds counts for every text. Assumes that all draft in the same passes.

        shared_us: of full passes over 1, 2, ... rows that several texts share.
        """
        if not n_texts:
            return self

        def in_batch(us: Sequence[float]) -> tuple[float, ...]:
            alone = at_width(us, n_rows + 1)
            added = (at_width(us, n_rows + 1 + n) - alone for n in range(len(self.full_us)))
            return tuple(alone + (1 + n_texts) * max(0.0, each) for each in added)

        shared = at_width(shared_us, n_texts + 1) / shared_us[0]
        return replace(
            self,
            full_us=in_batch(shared_us),
            verify_us=in_batch(self.verify_us if self.shares else shared_us),
            token_us=self.token_us * shared,
            last_us=self.last_us * shared,
        )


def at_width(us: Sequence[float], width: int) -> float:
    """Return the time of a pass; beyond the table it rises as in the second half of the table."""
    last, middle = len(us), len(us) // 2
    if width <= last:
        return us[width - 1]
    return us[-1] + (width - last) * max(0.0, us[-1] - us[middle - 1]) / (last - middle)


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs at one or more lengths of the text, shortest first."""

    levels: tuple[Costs, ...]

    def at(self, n_past: int) -> Costs:
        """Return the costs at any length: linear between levels and beyond, like attention."""
        if len(self.levels) == 1:
            return replace(self.levels[0], n_past=n_past)
        pairs = list(pairwise(self.levels))
        low, high = next((p for p in pairs if n_past < p[1].n_past), pairs[-1])
        share = (n_past - low.n_past) / (high.n_past - low.n_past)

        def mix(a: float, b: float) -> float:
            return max(min(a, b) / 2, a + share * (b - a))  # never near 0, whatever the levels are

        return Costs(
            n_past,
            tuple(map(mix, low.full_us, high.full_us)),
            tuple(map(mix, low.verify_us, high.verify_us)),
            mix(low.token_us, high.token_us),
            mix(low.last_us, high.last_us),
            low.removal_us,
        )

    def repeating(self) -> CostTable:
        """Return the costs in a memory where each rejection is followed by a pass over the accepted
        tokens. Until it is timed, it counts as a pass over one token."""
        return CostTable(tuple(replace(each, removal_us=each.plain_us) for each in self.levels))
