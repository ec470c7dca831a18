"""Times the draft and verification passes of a drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from ..costs.table import N_WIDTH, Costs, CostTable
from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.pass_result import PassResult
from ..runtime.passes import FULL, Pass, Rows
from ..speculate.config import DraftConfig
from ..speculate.drafters import Drafter, LookupDrafter
from ..speculate.drafters._combined import CombinedDrafter
from ..speculate.limits import DraftLimit
from ..speculate.pass_requests import PassRequest, drive, run_request
from ..speculate.resolve import resolve
from ..speculate.types import Draft
from .types import Widths

BUDGET_S = 30.0  # after which no round begins at one length of the text
N_ROUND = 7
N_SHORT, N_LONG = 8, 1024  # tokens for attention to read; the longer text is half a context at most
N_DRAFT = 3  # tokens of a timed draft
WARM_US = 50_000  # for longer passes the time to prepare them does not matter

Progress = Callable[[float], None]


@contextmanager
def drafter_with_passes(
    context: Context, mask: LayerMask | None = None, *, profile: bool = True
) -> Iterator[Drafter]:
    """Yield the context's default drafter, of several the one whose passes take time.

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
        yield drafter.last if isinstance(drafter, CombinedDrafter) else drafter


def time_passes(
    context: Context, drafter: Drafter, progress: Progress, n_rounds: int | None = None
) -> Widths:
    """Time all kinds of passes in turn, after a short and a longer text, and return medians of
    n_rounds (default: N_ROUND), fewer where rounds take long.

    progress: receives the share that is done, 0 to 1.

    Clears the context. Raises UnsupportedError if the model cannot draft, ArgumentError for too
    short a context.
    """
    context.abilities.require_drafts()
    passes = _Passes(context, drafter)
    n_rounds = n_rounds or N_ROUND
    levels: list[Costs] = []
    for i, n_past in enumerate((N_SHORT, min(context.n_ctx // 2, N_LONG))):
        passes.fill(n_past)
        if context.model.n_gpu_layers:
            passes.round()  # devices compile programs for their first passes
        rounds: list[_Times] = []
        start = time.perf_counter()
        while len(rounds) < n_rounds and (not rounds or time.perf_counter() - start < BUDGET_S):
            rounds.append(passes.round())
            progress((i + len(rounds) / n_rounds) / 2)
        levels.append(_medians(n_past, rounds))
        n_rounds = len(rounds)
    context.sequence().drop()
    progress(1.0)
    return Widths(CostTable(tuple(levels)), n_rounds)


@dataclass(slots=True)
class _Times:
    """Times of one round in microseconds. verify: empty if verification passes are full passes.
    token, last: 0 if drafts take no passes."""

    full: list[float] = field(default_factory=list)
    verify: list[float] = field(default_factory=list)
    token: float = 0.0
    last: float = 0.0


def _medians(n_past: int, rounds: Sequence[_Times]) -> Costs:
    full = tuple(median(us) for us in zip(*(r.full for r in rounds), strict=True))
    verify = tuple(median(us) for us in zip(*(r.verify for r in rounds), strict=True)) or full
    token, last = (median(us) for us in zip(*((r.token, r.last) for r in rounds), strict=True))
    return Costs(n_past, full, verify, token, last).rising()


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
        ids = np.random.default_rng(0).integers(0, context.model.n_vocab, context.n_ctx + N_WIDTH)
        self._tokens = [int(token) for token in ids]
        self._n_text = 0
        is_eog = context.model.is_eog
        self._never_an_end = next((t for t in self._tokens if not is_eog(t)), 0)

    def fill(self, n_past: int) -> None:
        """Extend the text to n_past tokens; a drafter that reads hidden states gets them."""
        text, layers = self._tokens[:n_past], self._drafter.hidden_layers
        if not layers:
            self._context.prefill(text[self._n_text :], self._seq)
        for pos in range(self._n_text, n_past, self._context.n_batch) if layers else ():
            chunk = text[pos : pos + self._context.n_batch]
            rows = Rows.of(self._seq.seq_id, pos, chunk)
            states = self._context.run(rows, Pass(leave=layers)).hidden
            assert states is not None
            self._drafter.on_hidden(self._seq, pos, chunk, states)
        self._n_text = n_past
        self._seq.save_checkpoint()
        self._drafter.begin(self._seq, self._tokens[: n_past + 1])

    def round(self) -> _Times:
        """Time every kind of pass once, each prepared anew: a context keeps fewer graphs than
        there are kinds."""
        n_past, times = self._n_text, _Times()
        for w in range(1, N_WIDTH + 1):
            times.full.append(self._prepared(self._tokens[:w], FULL))
        if isinstance(self._drafter, LookupDrafter):
            return times
        draft, _, _ = self._draft(N_WIDTH - 1)
        if draft.verification.in_place:
            tokens = [self._tokens[n_past], *draft.token_ids]
            for w in range(1, len(tokens) + 1):
                what = draft.verification.on(slice(0, w))
                times.verify.append(self._prepared(tokens[:w], what))
        self._seq.rollback(n_past)
        for _ in range(1 + self._context.n_preparing):
            self._pass(self._tokens[: N_DRAFT + 1], FULL)  # a draft follows a verification pass
            _, times.token, times.last = self._draft(N_DRAFT)
            self._seq.rollback(n_past)
        return times

    def _prepared(self, tokens: Sequence[int], what: Pass) -> float:
        """Return the microseconds of a pass, see `_pass`, once its graph is prepared."""
        for _ in range(self._context.n_preparing):
            if (us := self._pass(tokens, what)) > WARM_US:
                return us
        return self._pass(tokens, what)

    def _pass(self, tokens: Sequence[int], what: Pass) -> float:
        """Return the microseconds of a pass over tokens after the text, sampling included."""
        n_past = self._n_text
        self._context.wait()
        start = time.perf_counter_ns()
        self._context.run(Rows.of(self._seq.seq_id, n_past, tokens), what)
        self._context.argmax(len(tokens) - 1)
        us = (time.perf_counter_ns() - start) / 1000
        if not what.in_place:
            self._seq.rollback(n_past)
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
