"""Times the passes that steps are made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..speculate.drafters.layer_skip import DRAFT_SEQ_ID
from .calibration import Calibration, key_of
from .table import N_WIDTH, Costs, CostTable

BUDGET_S = 30.0  # for the rounds at one length of the text
PREFILL_S = 15.0  # at most, to fill half of the context
N_PREFILL = 64  # tokens between two looks at the clock
N_ROUND = 7  # at most, unless told
N_EMPTY = 8  # tokens in an "empty" context: there must be something to attend to
N_GUESS = 3  # guesses in a row
WARM_US = 50_000  # a pass longer than this does not notice that its graph was built anew

Progress = Callable[[float], None]


def measure(
    context: Context, mask: LayerMask, progress: Progress, n_rounds: int | None = None
) -> Calibration:
    """Time all passes with an empty and with a half-full context, all kinds in turn.

    progress: told what share is done, 0..1.
    n_rounds: repetitions at most.

    What the context held is dropped. Takes seconds for a small model, and up to two minutes for a
    large one, which gets fewer rounds and, if reading tokens takes long, less than half of the
    context.
    Raises ArgumentError when the model cannot draft or the context is too short.
    """
    if not context.can_rollback:
        raise ArgumentError(
            f"architecture {context.model.file.architecture}: its memory cannot take tokens back, "
            "so there are no drafts to time"
        )
    passes = _Passes(context, mask)
    levels, n_rounds = [], n_rounds or N_ROUND
    for i, n_past in enumerate((N_EMPTY, context.n_ctx // 2)):
        passes.fill(n_past)
        times = _rounds(passes, n_rounds, partial(_report_half, progress, i))
        levels.append(_costs(passes.n_past, {name: median(us) for name, us in times.items()}))
        n_rounds = len(times["guess"])
    context.sequence().drop()
    return Calibration(key_of(context, mask), CostTable(tuple(levels)), n_rounds)


def _report_half(progress: Progress, i: int, share: float) -> None:
    progress((i + share) / 2)


def _rounds(passes: _Passes, n_rounds: int, progress: Progress) -> dict[str, list[float]]:
    """Times by kind of pass; fewer rounds where BUDGET_S does not allow more, but at least one."""
    kinds = dict(passes.kinds())
    times: dict[str, list[float]] = {name: [] for name in kinds}
    start = time.perf_counter()
    for n_done in range(n_rounds):
        for i, (name, run) in enumerate(kinds.items()):
            us = run()
            times[name].append(us if us > WARM_US else run())
            progress((n_done + (i + 1) / len(kinds)) / n_rounds)
        spent = time.perf_counter() - start
        if spent * (n_done + 2) / (n_done + 1) > BUDGET_S:
            break
    progress(1.0)
    return times


def _costs(n_past: int, us: dict[str, float]) -> Costs:
    widths = range(1, N_WIDTH + 1)
    full = tuple(us[f"full {w}"] for w in widths)
    shared = "last" in us
    check = tuple(us[f"check {w}"] for w in widths) if shared else full
    return Costs(n_past, full, check, us["guess"], us["last"] if shared else 0.0)


class _Passes:
    """Passes behind the text in sequence 0, each taken back after it was timed."""

    def __init__(self, context: Context, mask: LayerMask) -> None:
        self._context = context
        self._mask = mask
        self._first = mask.first_skipped
        self._shares = context.can_enter(self._first)
        if self._shares:
            self._below = LayerMask.early_exit(mask.n_layer, self._first)
            self._rest = LayerMask.enter_at(mask.n_layer, self._first)
        self._seq = context.sequence()
        self._seq.drop()
        ids = np.random.default_rng(0).integers(0, context.model.n_vocab, context.n_ctx)
        self._tokens = [int(token) for token in ids]

    @property
    def n_past(self) -> int:
        return self._seq.n_past

    def fill(self, n_past: int) -> None:
        """Bring the text to a length, or as far as PREFILL_S allows, but by one batch at least."""
        start = time.perf_counter()
        while (n := self.n_past) < n_past:
            n_more = min(N_PREFILL, n_past - n)
            self._context.prefill(self._tokens[n : n + n_more], self._seq)
            if time.perf_counter() - start > PREFILL_S:
                return

    def kinds(self) -> Iterator[tuple[str, Callable[[], float]]]:
        """A name for each kind of pass, and what runs it and returns microseconds."""
        for w in range(1, N_WIDTH + 1):
            yield f"full {w}", partial(self._full, w)
            if self._shares:
                yield f"check {w}", partial(self._check, w)
        yield "guess", self._guesses
        if self._shares:
            yield "last", self._last

    def _full(self, width: int) -> float:
        n_past, start = self.n_past, time.perf_counter_ns()
        self._context.decode(self._tokens[:width], seq=self._seq, pos=n_past)
        self._context.argmax(width - 1)
        return self._stop(start, n_past)

    def _check(self, width: int) -> float:
        n_past, tokens = self.n_past, self._tokens[:width]
        hidden = self._run_below(tokens, n_past)
        start = time.perf_counter_ns()
        self._context.decode(
            tokens, seq=self._seq, pos=n_past, mask=self._rest, hidden=hidden, in_place=True
        )
        self._context.argmax(width - 1)
        return self._stop(start, n_past)

    def _last(self) -> float:
        n_past, start = self.n_past, time.perf_counter_ns()
        self._run_below(self._tokens[:1], n_past)
        return self._stop(start, n_past)

    def _guesses(self) -> float:
        """Time of one of some guesses in a row that follow a check, as in a step."""
        self._full(N_GUESS + 1)
        n_past, start = self.n_past, time.perf_counter_ns()
        seq = self._seq if self._shares else self._seq.fork(DRAFT_SEQ_ID)
        for i in range(N_GUESS):
            self._context.decode(
                self._tokens[i : i + 1],
                seq=seq,
                pos=n_past + i,
                mask=self._mask,
                hidden_at=self._first if self._shares else None,
                outputs=self._context.best_only,
            )
            self._context.argmax(0)
        if not self._shares:
            seq.drop()
        return self._stop(start, n_past) / N_GUESS

    def _run_below(self, tokens: list[int], pos: int) -> NDArray[np.float32]:
        done = self._context.decode(
            tokens,
            seq=self._seq,
            pos=pos,
            mask=self._below,
            hidden_at=self._first,
            outputs="none",
        )
        assert done.hidden is not None
        return done.hidden

    def _stop(self, start: int, n_past: int) -> float:
        us = (time.perf_counter_ns() - start) / 1000
        self._seq.rollback(n_past)
        return us
