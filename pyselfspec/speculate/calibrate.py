"""Times the passes that steps are made of, with the drafter that makes them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np

from ..costs.calibration import Calibration, key_of
from ..costs.table import N_WIDTH, Costs, CostTable
from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.passes import FULL, Pass, Rows
from . import drafters
from .drafters import Drafter, Lookup, follower
from .prepared import Speculation, prepared
from .requests import Answer, answers
from .types import Draft, DraftLimit

BUDGET_S = 30.0  # for the rounds at one length of the text
PREFILL_S = 15.0  # at most, to fill half of the context
N_PREFILL = 64  # tokens of a prefill chunk; the time budget is checked between chunks
N_ROUND = 7  # at most, unless told
N_EMPTY = 8  # tokens in an "empty" context: there must be something to attend to
BUSY = 0.25  # spread of times above which other programs are to blame
N_DRAFT = 3  # tokens of a draft whose time is taken
WARM_US = 50_000  # a pass longer than this does not notice that its graph was built anew

Progress = Callable[[float], None]


class BusyWarning(UserWarning):
    """Other programs ran while passes were timed."""


def to_time(
    context: Context, mask: LayerMask | None = None, *, profile: bool = True
) -> tuple[Speculation, Drafter]:
    """How texts are drafted here, with this mask if one is given; and of several drafters the one
    whose passes cost something, which is the caller's to close.

    profile: False leaves that of the model aside.

    Raises ArgumentError where nothing is drafted, and what `prepared` raises.
    """
    found = prepared(context, mask=mask, profile=profile)
    if found is None:
        raise ArgumentError(
            f"architecture {context.model.file.architecture}: its memory cannot take tokens back, "
            "so nothing is drafted"
        )
    [*_, name] = found.options
    return found, drafters.load(name).make(context, found.options[name])


def measure(
    context: Context, drafter: Drafter, progress: Progress, n_rounds: int | None = None
) -> Calibration:
    """What `measured` yields last."""
    *_, calibration = measured(context, drafter, progress, n_rounds)
    return calibration


def measured(
    context: Context, drafter: Drafter, progress: Progress, n_rounds: int | None = None
) -> Iterator[Calibration]:
    """Time all passes with an empty and with a half-full context, all kinds in turn; yields what is
    known after each of the two.

    progress: told what share is done, 0..1.
    n_rounds: repetitions at most.

    What the context held is dropped. Takes seconds for a small model, and up to two minutes for a
    large one, which gets fewer rounds and, if reading tokens takes long, less than half of the
    context. Warns when times of the same pass differ as they do on a busy machine, also after a
    second try.
    Raises UnsupportedError when the model cannot draft, ArgumentError when the context is too
    short.
    """
    context.require_rollback()
    passes = _Passes(context, drafter)
    levels, spreads, n_rounds = [], [], n_rounds or N_ROUND
    for i, n_past in enumerate((N_EMPTY, context.n_ctx // 2)):
        passes.fill(n_past)
        rounds = _rounds(passes, n_rounds, partial(_report_part, progress, i, 2))
        if _spread(rounds) > BUSY:
            again = _rounds(passes, len(rounds), lambda _share: None)
            rounds = sorted([*rounds, *again], key=_Times.total)[: len(rounds)]
        spreads.append(_spread(rounds))
        levels.append(_costs(passes.n_past, rounds))
        n_rounds = len(rounds)
        if i == 1:
            context.sequence().drop()
        key = key_of(context, drafter.identity)
        yield Calibration(key, CostTable(tuple(levels)), n_rounds)
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
    """Of one round, in microseconds. verify: empty where verification passes are full ones; token,
    last: 0 where drafts take no passes."""

    full: list[float] = field(default_factory=list)
    verify: list[float] = field(default_factory=list)
    token: float = 0.0
    last: float = 0.0

    def total(self) -> float:
        return sum((*self.full, *self.verify, self.token, self.last))


def _rounds(passes: _Passes, n_rounds: int, progress: Progress) -> list[_Times]:
    """Fewer rounds where BUDGET_S does not allow more, but at least one."""
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
    """By what share of the shortest time full passes usually take longer."""
    times = list(zip(*(r.full for r in rounds), strict=True))
    return float(median(median(us) / min(us) - 1 for us in times))


def _warm(run: Callable[[], float]) -> float:
    """Its time when the graph is built already."""
    us = run()
    return us if us > WARM_US else run()


class _Certain(Answer):
    """The model's answer, but for the most likely token: so that a draft gets as long as asked."""

    __slots__ = ("_token",)

    def __init__(self, answer: Answer, token: int) -> None:
        super().__init__(answer._context, answer._first, answer.hidden, answer.us, answer.company)
        self._token = token

    def argmax(self, row: int) -> tuple[int, float]:
        super().argmax(row)
        return self._token, 1.0


class _Passes:
    """Passes behind the text in sequence 0, each taken back after it was timed."""

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
        """Tokens of the text."""
        return self._n_text

    def fill(self, n_past: int) -> None:
        """Bring the text to a length, or as far as PREFILL_S allows, but by one chunk at least."""
        start = time.perf_counter()
        while (n := self._n_text) < n_past:
            tokens = self._tokens[n : min(n + N_PREFILL, n_past)]
            self._read(tokens)
            self._n_text = n + len(tokens)
            if time.perf_counter() - start > PREFILL_S:
                break
        self._drafter.begin(self._seq, self._tokens[: self._n_text + 1])

    def _read(self, tokens: Sequence[int]) -> None:
        """Go on with the text; a drafter that follows it sees the states."""
        follows = follower(self._drafter)
        if follows is None:
            self._context.prefill(tokens, self._seq)
            return
        rows = Rows.of(self._seq.seq_id, self._n_text, tokens)
        left = self._context.run(rows, Pass(leave=follows.leave)).hidden
        assert left is not None
        follows.saw(self._seq, self._n_text, tokens, left)

    def round(self, progress: Progress) -> _Times:
        """Every kind of pass once."""
        n_past, times = self._n_text, _Times()
        for w in range(1, N_WIDTH + 1):
            times.full.append(_warm(partial(self._pass, self._tokens[:w], FULL)))
            progress(0.5 * w / N_WIDTH)
        if isinstance(self._drafter, Lookup):
            return times
        draft, _, _ = self._draft(N_WIDTH - 1)
        if draft.verify.in_place:
            tokens = [self._tokens[n_past], *draft.tokens]
            for w in range(1, len(tokens) + 1):
                what = draft.verify.on(slice(0, w))
                times.verify.append(_warm(partial(self._pass, tokens[:w], what)))
                progress(0.5 + 0.5 * w / (N_WIDTH + 1))
        self._seq.rollback(n_past)
        self._pass(self._tokens[: N_DRAFT + 1], FULL)  # a draft follows a verification pass
        _, times.token, times.last = self._draft(N_DRAFT)
        self._seq.rollback(n_past)
        progress(1.0)
        return times

    def _pass(self, tokens: Sequence[int], what: Pass) -> float:
        """Microseconds of a pass over tokens that follow the text, with the draw after the last."""
        n_past = self._n_text
        start = time.perf_counter_ns()
        self._context.run(Rows.of(self._seq.seq_id, n_past, tokens), what)
        self._context.argmax(len(tokens) - 1)
        us = (time.perf_counter_ns() - start) / 1000
        if not what.in_place:
            self._seq.rollback(self._n_text)
        return us

    def _draft(self, n: int) -> tuple[Draft, float, float]:
        """A draft of n tokens; its microseconds per token, and those of passes without outputs."""
        history = self._tokens[: self._n_text + 1]
        start, last = time.perf_counter_ns(), 0
        draft = self._drafter.draft(history, DraftLimit(n))
        if not isinstance(draft, Draft):
            with closing(draft) as work:
                try:
                    request = next(work)
                    while True:
                        answer = _Certain(answers(self._context, [request])[0], self._never_an_end)
                        last += 0 if any(request.rows.outputs) else answer.us
                        request = work.send(answer)
                except StopIteration as end:
                    draft = end.value
        us = (time.perf_counter_ns() - start) / 1000
        return draft, (us - last) / max(1, len(draft.tokens)), last
