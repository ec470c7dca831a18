"""Measures the times of draft and verification passes of a drafter."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np

from ..costs.store import Calibration, rounded_size
from ..costs.table import N_WIDTH, Costs, CostTable
from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.pass_result import PassResult
from ..runtime.passes import FULL, Pass, Rows
from .config import DraftConfig
from .drafters import Drafter, LookupDrafter
from .drafters._combined import CombinedDrafter
from .limits import DraftLimit
from .pass_requests import PassRequest, drive, run_request
from .resolve import DraftSetup, resolve
from .types import Draft

BUDGET_S = 30.0  # time limit of the rounds at one length of the text
PREFILL_S = 15.0  # time limit for filling half of the context
N_PREFILL = 64  # tokens of a prefill chunk; the time budget is checked between chunks
N_ROUND = 7  # default number of rounds
N_EMPTY = 8  # tokens in an "empty" context, for attention to read
BUSY = 0.25  # spread of times above which other programs must have run
N_DRAFT = 3  # tokens of a timed draft
WARM_US = 50_000  # for longer passes the time to build the graph does not matter

Progress = Callable[[float], None]


class BusyWarning(UserWarning):
    """Other programs ran while passes were timed."""


@contextmanager
def to_time(
    context: Context, mask: LayerMask | None = None, *, profile: bool = True
) -> Iterator[tuple[DraftSetup, Drafter]]:
    """Yield the drafting setup of the context, and its drafter whose passes take time.

    mask: for drafts; None: as generate chooses. profile: False ignores the model's profile.

    Raises ArgumentError where nothing is drafted, and what `resolve` raises.
    """
    found = resolve(context, DraftConfig(mask=mask, profile=profile))
    if found is None:
        raise ArgumentError(
            f"architecture {context.model.file.architecture}: its memory cannot take tokens back, "
            "so nothing is drafted"
        )
    with closing(found.make()) as drafter:
        yield found, drafter.last if isinstance(drafter, CombinedDrafter) else drafter


def measure(
    context: Context, drafter: Drafter, progress: Progress, n_rounds: int | None = None
) -> Calibration:
    """Return the last result of `measured`."""
    *_, calibration = measured(context, drafter, progress, n_rounds)
    return calibration


def measured(
    context: Context, drafter: Drafter, progress: Progress, n_rounds: int | None = None
) -> Iterator[Calibration]:
    """Time all kinds of passes in turn, in an empty and in a half-full context; yield the results
    after each of the two.

    progress: receives the share that is done, 0 to 1.
    n_rounds: most repetitions; default: N_ROUND.

    Clears the context. Takes seconds for a small model and up to two minutes for a large one, which
    gets fewer rounds and less than half of the context if reading tokens is slow. Warns with
    BusyWarning if times of equal passes differ widely, even in a second try.
    Raises UnsupportedError if the model cannot draft, ArgumentError for too short a context.
    """
    context.abilities.require_drafts()
    passes = _Passes(context, drafter)
    levels, spreads, n_rounds = [], [], n_rounds or N_ROUND
    for i, n_past in enumerate((N_EMPTY, context.n_ctx // 2)):
        passes.fill(n_past)
        if context.model.n_gpu_layers:
            passes.round(lambda _share: None)  # devices compile programs for their first passes
        rounds = _rounds(passes, n_rounds, partial(_report_part, progress, i, 2))
        if _spread(rounds) > BUSY:
            again = _rounds(passes, len(rounds), lambda _share: None)
            rounds = sorted([*rounds, *again], key=_Times.total)[: len(rounds)]
        spreads.append(_spread(rounds))
        levels.append(_costs(passes.n_past, rounds))
        n_rounds = len(rounds)
        if i == 1:
            context.sequence().drop()
        n_ctx, identity = rounded_size(context.n_ctx), dict(drafter.identity)
        yield Calibration(n_ctx, identity, CostTable(tuple(levels)), n_rounds)
    if max(spreads) > BUSY:
        warnings.warn(
            f"the machine was busy: times of the same pass differed by {max(spreads):.0%}; "
            "calibrate again when nothing else runs",
            BusyWarning,
            stacklevel=2,
        )


def _report_part(progress: Progress, i: int, n: int, share: float) -> None:
    progress((i + share) / n)


@dataclass(slots=True)
class _Times:
    """Times of one round in microseconds. verify: empty if verification passes are full passes.
    token, last: 0 if drafts take no passes."""

    full: list[float] = field(default_factory=list)
    verify: list[float] = field(default_factory=list)
    token: float = 0.0
    last: float = 0.0

    def total(self) -> float:
        return sum((*self.full, *self.verify, self.token, self.last))


def _rounds(passes: _Passes, n_rounds: int, progress: Progress) -> list[_Times]:
    """Repeat n_rounds times, fewer if BUDGET_S does not allow more, but at least once."""
    rounds: list[_Times] = []
    start = time.perf_counter()
    while len(rounds) < n_rounds:
        n = len(rounds)
        rounds.append(passes.round(partial(_report_part, progress, n, n_rounds)))
        spent = time.perf_counter() - start
        if spent * (n + 2) / (n + 1) > BUDGET_S:
            break
    progress(1.0)
    return rounds


def _costs(n_past: int, rounds: Sequence[_Times]) -> Costs:
    full = tuple(median(us) for us in zip(*(r.full for r in rounds), strict=True))
    verify = tuple(median(us) for us in zip(*(r.verify for r in rounds), strict=True)) or full
    token, last = (median(us) for us in zip(*((r.token, r.last) for r in rounds), strict=True))
    return Costs(n_past, full, verify, token, last).rising()


def _spread(rounds: Sequence[_Times]) -> float:
    """Return the median of how much longer than the shortest time a full pass takes, relative."""
    times = list(zip(*(r.full for r in rounds), strict=True))
    return float(median(median(us) / min(us) - 1 for us in times))


def _warm(run: Callable[[], float]) -> float:
    """Return the time of a pass whose graph is built already, in microseconds."""
    us = run()
    return us if us > WARM_US else run()


class _Certain(PassResult):
    """A pass result whose likeliest token is replaced, so that a draft has the required length."""

    __slots__ = ("_token",)

    def __init__(self, answer: PassResult, token: int) -> None:
        super().__init__(
            answer._context,
            answer._outputs,
            answer.hidden,
            first=answer._first,
            us=answer.us,
            batch_load=answer.batch_load,
        )
        self._token = token

    def argmax(self, row: int) -> tuple[int, float]:
        super().argmax(row)
        return self._token, 1.0


class _Passes:
    """Passes after the text in sequence 0; each is rolled back after it was timed."""

    def __init__(self, context: Context, drafter: Drafter) -> None:
        self._context = context
        self._drafter = drafter
        self._seq = context.sequence()
        self._seq.drop()
        self._n_text = 0
        ids = np.random.default_rng(0).integers(0, context.model.n_vocab, context.n_ctx + N_WIDTH)
        self._tokens = [int(token) for token in ids]

        is_eog = context.model.is_eog
        self._never_an_end = next((t for t in self._tokens if not is_eog(t)), 0)

    @property
    def n_past(self) -> int:
        """Length of the text in tokens."""
        return self._n_text

    def fill(self, n_past: int) -> None:
        """Extend the text to n_past tokens or as far as PREFILL_S allows, by one chunk at least."""
        start = time.perf_counter()
        while (n := self._n_text) < n_past:
            tokens = self._tokens[n : min(n + N_PREFILL, n_past)]
            self._read(tokens)
            self._n_text = n + len(tokens)
            if time.perf_counter() - start > PREFILL_S:
                break
        self._seq.save_checkpoint()
        self._drafter.begin(self._seq, self._tokens[: self._n_text + 1])

    def _read(self, tokens: Sequence[int]) -> None:
        """Extend the text; a drafter that reads hidden states gets them."""
        hidden_layers = self._drafter.hidden_layers
        if not hidden_layers:
            self._context.prefill(tokens, self._seq)
            return
        rows = Rows.of(self._seq.seq_id, self._n_text, tokens)
        left = self._context.run(rows, Pass(leave=hidden_layers)).hidden
        assert left is not None
        self._drafter.on_hidden(self._seq, self._n_text, tokens, left)

    def round(self, progress: Progress) -> _Times:
        """Time every kind of pass once."""
        n_past, times = self._n_text, _Times()
        for w in range(1, N_WIDTH + 1):
            times.full.append(_warm(partial(self._pass, self._tokens[:w], FULL)))
            progress(0.5 * w / N_WIDTH)
        if isinstance(self._drafter, LookupDrafter):
            return times
        draft, _, _ = self._draft(N_WIDTH - 1)
        if draft.verification.in_place:
            tokens = [self._tokens[n_past], *draft.token_ids]
            for w in range(1, len(tokens) + 1):
                what = draft.verification.on(slice(0, w))
                times.verify.append(_warm(partial(self._pass, tokens[:w], what)))
                progress(0.5 + 0.5 * w / (N_WIDTH + 1))
        self._seq.rollback(n_past)
        self._pass(self._tokens[: N_DRAFT + 1], FULL)  # a draft follows a verification pass
        _, times.token, times.last = self._draft(N_DRAFT)
        self._seq.rollback(n_past)
        progress(1.0)
        return times

    def _pass(self, tokens: Sequence[int], what: Pass) -> float:
        """Return the microseconds of a pass over tokens after the text, sampling included."""
        n_past = self._n_text
        self._context.wait()
        start = time.perf_counter_ns()
        self._context.run(Rows.of(self._seq.seq_id, n_past, tokens), what)
        self._context.argmax(len(tokens) - 1)
        us = (time.perf_counter_ns() - start) / 1000
        if not what.in_place:
            self._seq.rollback(self._n_text)
        return us

    def _draft(self, n: int) -> tuple[Draft, float, float]:
        """Return a draft of n tokens, its us per token, and the us of passes without outputs."""
        history = self._tokens[: self._n_text + 1]
        self._context.wait()
        start, last = time.perf_counter_ns(), 0.0

        def respond(request: PassRequest) -> PassResult:
            nonlocal last
            begun = time.perf_counter_ns()
            result = _Certain(run_request(self._context, request), self._never_an_end)
            if not any(request.rows.outputs):  # no result is read
                self._context.wait()
                last += (time.perf_counter_ns() - begun) / 1000
            return result

        draft = self._drafter.draft(history, DraftLimit(n))
        if not isinstance(draft, Draft):
            draft = drive(draft, respond)
        us = (time.perf_counter_ns() - start) / 1000
        return draft, (us - last) / max(1, len(draft.tokens)), last
