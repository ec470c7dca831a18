"""What the passes of a step cost, and arithmetic on it. Pure; times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

N_WIDTH = 16  # tables know passes over 1 to 16 tokens


@dataclass(frozen=True, slots=True)
class Costs:
    """At one length of the text.

    full_us: a full pass over 1, 2, ... N_WIDTH tokens.
    check_us: the same in the blocks that the draft leaves to the check; equal to full_us where the
        two share none.
    guess_us: a masked pass over one token, with output.
    last_us: the shared blocks for the token drafted last, without output; 0 where there are none.
    """

    n_past: int
    full_us: tuple[float, ...]
    check_us: tuple[float, ...]
    guess_us: float
    last_us: float

    @property
    def plain_us(self) -> float:
        """A token of plain decoding."""
        return self.full_us[0]

    def step_us(self, n_guesses: int, n_drafted: int) -> float:
        """A step that checks n_drafted of n_guesses tokens; plain decoding without guesses."""
        return self.draft_us(n_guesses, n_drafted) + self.verify_us(n_guesses, n_drafted)

    def draft_us(self, n_guesses: int, n_drafted: int) -> float:
        last = self.last_us if n_guesses == n_drafted > 0 else 0.0
        return n_guesses * self.guess_us + last

    def verify_us(self, n_guesses: int, n_drafted: int) -> float:
        return self.check_us[n_drafted] if n_guesses else self.plain_us

    def speedup(self, acceptance: float) -> tuple[float, int]:
        """Speed over plain decoding at the best draft length, and that length, when each drafted
        token is accepted with this probability if those before it were.

        Leviathan et al., https://arxiv.org/abs/2211.17192, theorem 3.8, with measured costs.
        """
        best, n_best, tokens = 1.0, 0, 1.0
        for n in range(1, len(self.check_us)):
            tokens += acceptance**n
            speed = tokens * self.plain_us / self.step_us(n, n)
            if speed > best:
                best, n_best = speed, n
        return best, n_best


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
            tuple(map(mix, low.check_us, high.check_us)),
            mix(low.guess_us, high.guess_us),
            mix(low.last_us, high.last_us),
        )
