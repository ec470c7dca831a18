"""One text being continued: it proposes rows to verify, and settles what their logits say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ..errors import ArgumentError, ContextFullError, UnsupportedError
from ..masks.layer_mask import LayerMask
from ..runtime.kv import KVSequence
from ..runtime.passes import FULL, Outputs, Pass, Rows
from .branches import branched, fitting
from .controllers import Controller
from .drafters import Drafter, Hears, drafted, follower
from .requests import Answer, Draws, Request, Work, timed
from .residual import Residual
from .types import ALONE, Draft, Law, Step, Verdict
from .verify import verify


class Text:
    """A prompt and what follows it, in a sequence of its own.

    drafter: None decodes plainly.
    ends: told every generated token once, in order; True when it ends the text. Default: the
        model's end-of-generation tokens.
    residual: draws draft tokens where it can, and settles these; None: sample and match.
    mask: None, or all passes skip this, of the prompt too: the text is another model's, and nothing
        is drafted.

    ``begin`` evaluates of the prompt what the sequence does not hold, ``step`` adds tokens. Between
    steps, and however one is left, the sequence holds the prompt and the generated tokens but the
    last, whose K/V the next pass computes. Masks of drafters never touch the prompt.

    Raises ArgumentError for an empty prompt, n_predict < 1 or a mask beside a drafter,
    ContextFullError when the prompt does not fit.
    """

    def __init__(
        self,
        seq: KVSequence,
        prompt: Sequence[int],
        *,
        drafter: Drafter | None,
        controller: Controller,
        sampler: Draws,
        n_predict: int,
        ends: Callable[[int], bool] | None = None,
        residual: Residual | None = None,
        mask: LayerMask | None = None,
    ) -> None:
        if not prompt:
            raise ArgumentError("the prompt has no tokens; generation needs at least one")
        if n_predict < 1:
            raise ArgumentError(f"n_predict is at least 1, got {n_predict}")
        if mask is not None and drafter is not None:
            raise ArgumentError("a text that a mask writes is not verified, so it takes no drafter")
        if len(prompt) > seq.context.n_ctx:
            raise ContextFullError(
                f"the prompt has {len(prompt)} tokens, the context {seq.context.n_ctx}; "
                "give a larger n_ctx or a shorter prompt"
            )
        seq.claim()
        self.seq = seq
        self.history = list(prompt)
        self.n_reused = 0  # tokens of the prompt that the sequence held already
        self.n_piece = seq.context.n_batch  # most tokens of the prompt per pass, at any time
        self._context = seq.context
        self._drafter = drafter
        self._hearing = drafter if isinstance(drafter, Hears) else None
        self._follower = follower(drafter)
        self._controller = controller
        self._sampler = sampler
        self._residual = residual
        self._plain = Pass(mask)
        self._ends = ends or seq.context.model.is_eog
        self._n_end = len(prompt) + n_predict
        self._ended = False
        self._company = ALONE  # of the last verification pass

    @property
    def ended(self) -> bool:
        """At the end of the text, with all tokens that were asked for, or in a full context."""
        n = len(self.history)
        return self._ended or n >= self._n_end or n > self._context.n_ctx

    def begin(self) -> Work[None]:
        """Evaluate the prompt, all but its last token, as far as the sequence does not hold it, or
        the drafter has not followed it."""
        wanted = self.history[:-1]
        if self._follower is not None:
            wanted = wanted[: self._follower.known(self.seq, self.history)]
        self.n_reused = self.seq.keep(wanted if self._plain == FULL else [])
        self.seq.reserve(self._n_end)
        pos, end = self.n_reused, len(self.history) - 1
        while pos < end:
            part = self.history[pos : min(pos + self.n_piece, end)]
            what = self._leaving(self._plain)
            # states that leave the last block are there for rows with outputs only
            outputs: Outputs = "all" if self._context.model.n_layer in what.blocks_left else "none"
            answer = yield Request(Rows.of(self.seq.seq_id, pos, part, outputs), what)
            self._show(pos, part, answer)
            pos += len(part)
        self._sampler.begin(self.history)
        if self._drafter is not None:
            self._drafter.begin(self.seq, self.history)

    def step(self) -> Work[Step]:
        """Draft, verify in one pass (more for a draft that is wider than passes may be), settle.

        Where other sequences leave no room for a draft, none is made. Where they leave none for a
        single token, the text has ended, and ContextFullError is raised.
        """
        try:
            draft = yield from self._propose()
            verdict, verify_us = yield from timed(self._verified(draft))
            if verdict is None:
                self.seq.rollback(len(self.history) - 1)
                draft = Draft()
                verdict, verify_us = yield from timed(self._verified(draft))
            assert verdict is not None
        except BaseException as error:
            self._ended |= isinstance(error, ContextFullError)
            with suppress(UnsupportedError):  # no rollback, no matter: the next text starts anew
                self.seq.undo(len(self.history) - 1)
            raise
        return self._settle(Step(draft, verdict, verify_us, self._company))

    def _propose(self) -> Work[Draft]:
        if self._drafter is None:
            return Draft()
        n = len(self.history)
        room = min(self._n_end - n, self._context.n_ctx - n + 1, self._context.n_batch) - 1
        limit = self._controller.limit(n - 1).capped(room)
        if self._residual is not None:
            limit = replace(limit, drawing=self._residual.drawing)
        try:
            draft = yield from drafted(self._drafter, self.history, limit)
        except ContextFullError:
            return Draft()
        return draft if draft.is_chain else fitting(self.seq, draft, self._n_end)

    def _verified(self, draft: Draft) -> Work[Verdict | None]:
        """None where the context has no room for the draft."""
        if not draft.is_chain:
            return (yield from self._verified_branches(draft))
        tokens, pos = [self.history[-1], *draft.tokens], len(self.history) - 1
        asking = verify(draft, self._ends)
        row = next(asking)
        what = self._plain if self._drafter is None else draft.verify
        end = 0  # rows that went through a pass so far
        while True:
            if row >= end:
                first, end = row, min(row + self._context.pass_width, len(tokens))
                rows = Rows.of(self.seq.seq_id, pos + first, tokens[first:end])
                try:
                    answer = yield Request(rows, self._leaving(what.on(slice(first, end))))
                except ContextFullError:
                    if first or not draft.tokens:
                        raise
                    return None
                self._show(pos + first, tokens[first:end], answer)
            try:
                row = asking.send(self._drawn(answer, row - first, draft.drawn_behind(row)))
            except StopIteration as found:
                verdict: Verdict = found.value
                self._tell(draft, verdict, answer, range(first, end))
                return verdict

    def _verified_branches(self, draft: Draft) -> Work[Verdict | None]:
        """The same for a draft that fits into one pass."""
        with branched(self.seq, draft) as branches:
            try:
                answer = yield Request(branches.rows(self.history), self._leaving(FULL))
            except ContextFullError:
                return None
            verdict = branches.verdict(lambda row: answer.draw(self._sampler, row), self._ends)
            self._tell(draft, verdict, answer, range(len(draft.tokens) + 1))
            pos = len(self.history) - 1
            branches.settle(self.seq, pos, verdict)
            accepted = [draft.tokens[i] for i in verdict.path]
            rows = [0, *(i + 1 for i in verdict.path)]
            self._show(pos, [self.history[-1], *accepted], answer, rows)
        return verdict

    def _tell(self, draft: Draft, verdict: Verdict, answer: Answer, rows: range) -> None:
        """What the full model says behind these rows, to whoever listens."""
        self._company = answer.company
        if self._hearing is not None:
            self._hearing.hear(draft, verdict, rows, lambda row: answer.best(row - rows.start))

    def _drawn(self, answer: Answer, row: int, drafted: tuple[int, Law] | None) -> int:
        """The text's token after a row of a pass."""
        if drafted is None or self._residual is None:
            return answer.draw(self._sampler, row)
        token = self._residual.settle(*drafted, answer.law(self._sampler, row))
        self._sampler.accept(token)
        return token

    def _leaving(self, what: Pass) -> Pass:
        """The same pass, leaving what the drafter reads."""
        return replace(what, leave=self._follower.leave) if self._follower else what

    def _show(
        self, pos: int, tokens: Sequence[int], answer: Answer, rows: list[int] | None = None
    ) -> None:
        """Give the drafter what a pass over these tokens has left, in all its rows or in these."""
        if self._follower is not None:
            assert answer.hidden is not None
            states = answer.hidden if rows is None else answer.hidden[rows]
            self._follower.saw(self.seq, pos, tokens, states)

    def _settle(self, step: Step) -> Step:
        self._ended = step.verdict.ended
        self.history += step.tokens
        self.seq.rollback(len(self.history) - 1)
        if self._plain == FULL:
            self.seq.holds(self.history[:-1])
        if self._drafter is not None:
            self._drafter.accept(step.verdict)
            self._controller.observe(step)
        return step
