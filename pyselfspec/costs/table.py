"""What the passes of a step cost, and arithmetic on it. Pure; times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

N_WIDTH = 16  # tables know passes over 1 to 16 tokens


@dataclass(frozen=True, slots=True)
class Costs:
    """At one length of the text.

    full_us: a full pass over 1, 2, ... N_WIDTH tokens.
    verify_us: a verification pass over as many, in the blocks that drafts leave to it; equal to
        full_us where the two share none.
    token_us: a draft token; for masks a pass over one token, with output; 0 for drafters without
        passes.
    last_us: the shared blocks for the token drafted last, without output; 0 where there are none.
    """

    n_past: int
    full_us: tuple[float, ...]
    verify_us: tuple[float, ...]
    token_us: float
    last_us: float

    def rising(self) -> Costs:
        """Without widths that seem to cost more than wider ones: another program ran when they were
        timed."""

        def rising(us: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(accumulate(reversed(us), min))[::-1]

        return replace(self, full_us=rising(self.full_us), verify_us=rising(self.verify_us))

    @property
    def plain_us(self) -> float:
        """A token of plain decoding."""
        return self.full_us[0]

    def step_us(self, n_proposed: int, n_drafted: int, n_copied: int = 0) -> float:
        """A step that verifies n_drafted of n_proposed tokens behind n_copied that were free; plain
        decoding without any."""
        drafting_us = self.drafting_us(n_proposed, n_drafted, n_copied)
        return drafting_us + self.verifying_us(n_proposed, n_drafted, n_copied)

    def drafting_us(self, n_proposed: int, n_drafted: int, n_copied: int = 0) -> float:
        """The first pass of a draft is as wide as what it goes on from."""
        if n_proposed == 0:
            return 0.0
        last = self.last_us if n_proposed == n_drafted else 0.0
        first = self.token_us * self.full_us[n_copied] / self.plain_us
        return first + (n_proposed - 1) * self.token_us + last

    def verifying_us(self, n_proposed: int, n_drafted: int, n_copied: int = 0) -> float:
        """A full pass over copies alone; else the blocks that drafts leave to it."""
        n = n_copied + n_drafted
        return self.verify_us[n] if n_proposed else self.full_us[n]

    @property
    def only_copies(self) -> bool:
        """Whether they are those of a drafter that runs nothing."""
        return self.token_us == 0.0

    @property
    def shares(self) -> bool:
        """Whether verification passes leave out blocks that drafts have run."""
        return self.verify_us != self.full_us

    def among(self, n_texts: int, n_rows: int) -> Costs:
        """What counts for a text whose passes take along n_rows rows of n_texts other texts: the
        time that a row adds is lost by all of them. Drafts are taken to be made side by side."""
        if not n_texts:
            return self

        def among(us: tuple[float, ...]) -> tuple[float, ...]:
            alone = _at_width(us, n_rows + 1)
            added = (_at_width(us, n_rows + 1 + n) - alone for n in range(len(us)))
            return tuple(alone + (1 + n_texts) * max(0.0, each) for each in added)

        shared = _at_width(self.full_us, n_texts + 1) / self.plain_us
        return replace(
            self,
            full_us=among(self.full_us),
            verify_us=among(self.verify_us),
            token_us=self.token_us * shared,
            last_us=self.last_us * shared,
        )

    def speedup(self, acceptance: float) -> tuple[float, int]:
        """Speed over plain decoding at the best draft length, and that length, when each drafted
        token is accepted with this probability if those before it were.

        Leviathan et al., https://arxiv.org/abs/2211.17192, theorem 3.8, with measured costs.
        """
        best, n_best, tokens = 1.0, 0, 1.0
        for n in range(1, len(self.verify_us)):
            tokens += acceptance**n
            speed = tokens * self.plain_us / self.step_us(n, n)
            if speed > best:
                best, n_best = speed, n
        return best, n_best


def _at_width(us: tuple[float, ...], width: int) -> float:
    """Of a pass; wider ones than the table knows rise as its second half does."""
    last, middle = len(us), len(us) // 2
    if width <= last:
        return us[width - 1]
    return us[-1] + (width - last) * max(0.0, us[-1] - us[middle - 1]) / (last - middle)


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs at one or more lengths of the text, shortest first."""

    levels: tuple[Costs, ...]

    def at(self, n_past: int) -> Costs:
        """Costs at any length: linear between levels and beyond them, as attention is."""
        if len(self.levels) == 1:
            return replace(self.levels[0], n_past=n_past)
        pairs = list(pairwise(self.levels))
        low, high = next((p for p in pairs if n_past < p[1].n_past), pairs[-1])
        share = (n_past - low.n_past) / (high.n_past - low.n_past)

        def mix(a: float, b: float) -> float:
            return max(min(a, b) / 2, a + share * (b - a))  # never near 0, whatever was measured

        return Costs(
            n_past,
            tuple(map(mix, low.full_us, high.full_us)),
            tuple(map(mix, low.verify_us, high.verify_us)),
            mix(low.token_us, high.token_us),
            mix(low.last_us, high.last_us),
        )
