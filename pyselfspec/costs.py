"""What the passes of a step cost, and arithmetic on it. Pure; times in microseconds."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from statistics import median

from .gguf_file import GgufFile
from .types import LayerMask, Step

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


WIDTH_COST = 0.25  # of one more token in a pass; between a GPU's and that of a CPU with few cores
BYTES_PER_US = 1e4  # any figure will do, only ratios count before there are timings


def guessed_costs(file: GgufFile, mask: LayerMask, shares: bool) -> CostTable:
    """Costs from the bytes of the weights that a pass reads, for want of measurements."""
    full = file.weight_bytes()
    blocks = range(mask.first_skipped, mask.n_layer)
    shared = file.weight_bytes(blocks, blocks) - file.head_bytes if shares else 0
    widths = [1 + WIDTH_COST * i for i in range(N_WIDTH)]
    return CostTable(
        (
            Costs(
                0,
                tuple(w * full / BYTES_PER_US for w in widths),
                tuple(w * (full - shared) / BYTES_PER_US for w in widths),
                file.weight_bytes(mask.skip_attn, mask.skip_ffn) / BYTES_PER_US,
                shared / BYTES_PER_US,
            ),
        )
    )


N_RECENT = 9  # timings of one kind that count
N_NEAR = 32  # tokens over which costs are taken as equal


def _recent() -> deque[float]:
    return deque(maxlen=N_RECENT)


@dataclass(slots=True)
class TimedCosts:
    """A table corrected by the timings of the steps that are made.

    Keeps, for plain passes, drafts and checks of each width, recent ratios of measured to expected
    time, and takes their median: it forgets, and one hiccup does not count. What was hardly timed
    yet is expected to be as wrong as its next of kin. The first time of anything does not count:
    its graph is built then.
    """

    table: CostTable
    _plain: deque[float] = field(default_factory=_recent)
    _draft: deque[float] = field(default_factory=_recent)
    _checks: deque[float] = field(default_factory=_recent)
    _check: defaultdict[int, deque[float]] = field(default_factory=lambda: defaultdict(_recent))
    _made: set[str] = field(default_factory=set)  # kinds of passes
    _expected: Costs = field(init=False)

    def __post_init__(self) -> None:
        self._expected = self.table.at(0)

    def at(self, n_past: int) -> Costs:
        costs = self._table_at(n_past)
        plain = median(self._plain) if self._plain else 1.0
        draft = median([plain, *self._draft])
        checks = median([plain, *self._checks])
        return Costs(
            n_past,
            tuple(plain * us for us in costs.full_us),
            tuple(
                median([checks, *self._check.get(n, ())]) * us
                for n, us in enumerate(costs.check_us)
            ),
            draft * costs.guess_us,
            draft * costs.last_us,
        )

    def _table_at(self, n_past: int) -> Costs:
        """The table's costs, not looked up anew for every token: they hardly change."""
        if not 0 <= n_past - self._expected.n_past < N_NEAR:
            self._expected = self.table.at(n_past)
        return self._expected

    def n_new(self, n_guesses: int, n_drafted: int) -> int:
        """Kinds of passes in such a step that were not made before."""
        return len(_kinds(n_guesses, n_drafted) - self._made)

    def observe(self, step: Step, n_past: int) -> None:
        n_guesses, n_drafted = step.n_guesses, step.n_drafted
        if self.n_new(n_guesses, n_drafted):
            self._made |= _kinds(n_guesses, n_drafted)
            return
        costs = self._table_at(n_past)
        ratio = step.verify_us / costs.verify_us(n_guesses, n_drafted)
        if n_guesses == 0:
            self._plain.append(ratio)
            return
        self._draft.append(step.draft.draft_us / costs.draft_us(n_guesses, n_drafted))
        self._checks.append(ratio)
        self._check[n_drafted].append(ratio)


@cache
def _kinds(n_guesses: int, n_drafted: int) -> frozenset[str]:
    if n_guesses == 0:
        return frozenset({"plain"})
    last = {"last"} if n_guesses == n_drafted else set()
    return frozenset({"guess", f"check {n_drafted}"} | last)
