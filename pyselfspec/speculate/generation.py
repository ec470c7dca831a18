"""The generation of one sequence: draft, verify in one pass, settle; step by step.

Plain decoding is a generation without a drafter, so there is no second path to keep equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import SupportsIndex

from ..errors import ArgumentError, ContextFullError, UnsupportedError, prompt_too_long
from ..runtime.checkpoints import Checkpoint
from ..runtime.kv import KVSequence
from ..runtime.lora import Adapters
from ..runtime.pass_result import PassResult, TokenSampler
from ..runtime.passes import FULL, Head, Outputs, Pass, Rows
from ..runtime.pictures import Picture, PictureMap, is_text
from .branches import branched, fitting
from .controllers import Controller
from .drafters import Drafter, timed_draft
from .pass_requests import PassRequest, Work, timed
from .residual import Residual
from .types import NO_DRAFT, Draft, Step
from .verify import verify

N_PIECE = 256  # tokens of a prompt from one checkpoint of its state to the next


class Generation:
    """A prompt and the tokens generated after it, in a sequence of its own.

    drafter: None decodes plainly.
    consume: takes each generated token once, in order; returns True if it ends the text. Default:
        the model's end-of-generation tokens end it.
    residual: draws draft tokens and decides about them; None: sample and match.
    pictures: those in the prompt, whose rows have ids below 0; the drafter must not read the
        prompt's states.
    adapters: LoRA adapters of all passes, those of drafts too; None: those of the context.

    ``begin`` evaluates the part of the prompt that the sequence does not hold, ``step`` adds
    tokens; all their passes, a drafter's too, need ``adapters``. Between steps, and after a step
    that failed, the sequence holds the prompt and the generated tokens but the last, whose K/V the
    next pass computes. Masks of drafters never touch the prompt.

    Raises ArgumentError for an empty prompt, and for an n_predict that is less than 1 or no whole
    number; ContextFullError when the prompt does not fit.
    """

    def __init__(
        self,
        seq: KVSequence,
        prompt: Sequence[int],
        *,
        drafter: Drafter | None,
        controller: Controller,
        sampler: TokenSampler,
        n_predict: int,
        consume: Callable[[int], bool] | None = None,
        residual: Residual | None = None,
        adapters: Adapters | None = None,
        pictures: Sequence[Picture] = (),
    ) -> None:
        if not prompt:
            raise ArgumentError("the prompt has no tokens; generation needs at least one")
        if not isinstance(n_predict, SupportsIndex) or n_predict < 1:
            raise ArgumentError(f"n_predict is a whole number of at least 1, got {n_predict!r}")
        if len(prompt) > seq.context.n_ctx:
            model = seq.context.model
            raise prompt_too_long(len(prompt), seq.context.n_ctx, model.n_positions)
        self._pictures = PictureMap(pictures)
        self._pictures.require(prompt)
        seq.occupy()
        self.seq = seq
        self.history = list(prompt)
        self.n_reused = 0  # tokens of the prompt that the sequence already held
        self.n_read = 0  # tokens that the sequence holds of a prompt that is being read
        self.n_piece = seq.context.n_batch  # most tokens of the prompt per pass; may be changed
        if seq.context.abilities.has_states:
            self.n_piece = min(self.n_piece, N_PIECE)
        self._context = seq.context
        self._drafter = drafter
        self._hidden_layers = () if drafter is None else drafter.hidden_layers
        self._head: Head = self._context.best_head if sampler.n_best == 1 else "logits"
        self._n_best = 0 if residual is not None or self._head == "best" else sampler.n_best
        self._whole = self._as_needed(FULL)
        self._controller = controller
        self._sampler = sampler
        self._residual = residual
        own = seq.context.adapters
        self.adapters = None if adapters is None or adapters == own else adapters
        self._consume = consume or seq.context.model.is_eog
        self._n_end = len(prompt) + n_predict
        self._ended = False
        self._before_draft: Checkpoint | None = None  # where the memory cannot remove the draft

    @property
    def ended(self) -> bool:
        """Whether the text has ended, has n_predict tokens, or fills the context."""
        n = len(self.history)
        return self._ended or n >= self._n_end or n > self._context.n_ctx

    def begin(self) -> Work[None]:
        """Evaluate the prompt but for its last token, from the first token that the sequence does
        not hold, or whose states the drafter has not read."""
        reusable = self.history[:-1]
        adapters = self._context.adapters if self.adapters is None else self.adapters
        if self.seq.adapters != adapters:
            reusable = []
        if self._drafter is not None and self._hidden_layers:
            reusable = reusable[: self._drafter.n_seen(self.seq, self.history)]
        self.n_reused = self.seq.keep(reusable)
        while (n := self._pictures.aligned(self.history, self.n_reused)) < self.n_reused:
            self.n_reused = self.seq.keep(self.history[:n])
        self.seq.reserve(self._n_end)
        pos, end = self.n_reused, len(self.history) - 1
        while pos < end:
            self.n_read = pos
            n_max = min(self.n_piece, end - pos)
            n, picture = self._pictures.next_pass(self.history, pos, n_max, self._context.n_batch)
            part = self.history[pos : pos + n]
            what = picture or self._whole
            # states after the last block exist for rows with outputs only
            outputs: Outputs = "all" if self._context.model.n_layer in what.blocks_left else "none"
            result = yield PassRequest(Rows.of(self.seq.seq_id, pos, part, outputs), what)
            self._give_hidden(pos, part, result)
            pos += len(part)
            self.seq.save_checkpoint()
        self._sampler.begin([token for token in self.history if is_text(token)])
        if self._drafter is not None:
            self._drafter.begin(self.seq, self.history)

    def step(self) -> Work[Step]:
        """Draft, verify in one pass, settle.

        If other sequences leave no room for a draft, none is made. If they leave no room for a
        single token, the generation ends and ContextFullError is raised.
        """
        try:
            draft = yield from self._propose()
            step = yield from self._verified(draft)
            if step is None:
                self.seq.rollback(len(self.history) - 1)
                step = yield from self._verified(NO_DRAFT)
            assert step is not None
            step = yield from self._settled(step)
        except BaseException as error:
            self._ended |= isinstance(error, ContextFullError)
            with suppress(UnsupportedError):  # without rollback the next text starts anew
                self.seq.rollback_if_open(len(self.history) - 1)
            raise
        return step

    def _propose(self) -> Work[Draft]:
        if self._drafter is None:
            return NO_DRAFT
        start_ns = time.perf_counter_ns()
        limit = self._controller.limit(len(self.history) - 1)
        if limit.rests:
            return NO_DRAFT
        limit = limit.capped(self._room())
        if self._residual is not None:
            limit = replace(limit, draw=self._residual.draw)
        try:
            draft = yield from timed_draft(self._drafter, self.history, limit, start_ns)
        except ContextFullError:
            return NO_DRAFT
        return draft if draft.is_chain else fitting(self.seq, draft, self._n_end)

    def _room(self) -> int:
        """Return how many draft tokens the next pass can verify."""
        n, abilities = len(self.history), self._context.abilities
        width = min(self._context.n_batch, abilities.pass_width)
        room = min(self._n_end - n, self._context.n_ctx - n + 1, width) - 1
        # without a limit to rollback, a checkpoint takes back a draft of any length
        return min(room, abilities.max_rollback or room)

    def _verified(self, draft: Draft) -> Work[Step | None]:
        """Return the step of a draft, which fits into one pass; None if the context has no room for
        it. Afterwards the sequence holds the accepted tokens, and of a chain the rejected ones
        too."""
        start_ns = time.perf_counter_ns()
        if len(draft.tokens) > self._context.abilities.max_rollback:
            self._before_draft = self.seq.save_checkpoint()
        pos = len(self.history) - 1
        what = draft.verification
        what = self._whole if what is FULL else self._as_needed(what)
        with branched(self.seq, draft) as branches:
            chances = draft.survival if draft.is_offer else ()
            request = PassRequest(branches.rows(self.history), what, chances)
            before_ns = time.perf_counter_ns() - start_ns
            try:
                result = yield request
            except ContextFullError:
                if not draft.tokens:
                    raise
                return None
            start_ns = time.perf_counter_ns()
            draft = draft.first(result.n_tokens - 1)  # a shared pass may have left out the rest
            verdict = verify(draft, partial(self._draw, result, draft), self._consume)
            if self._drafter is not None:
                self._drafter.on_verified(draft, verdict, result.best)
            branches.adopt(self.seq, pos, verdict)
        accepted = [draft.tokens[i].token for i in verdict.path]
        rows = [0, *(i + 1 for i in verdict.path)]
        self._give_hidden(pos, [self.history[-1], *accepted], result, rows)
        own_us = (before_ns + time.perf_counter_ns() - start_ns) // 1000
        return Step(draft, verdict, result.us + own_us, result.batch_load)

    def _draw(self, result: PassResult, draft: Draft, row: int) -> int:
        """Return the text's token after a row of a verification pass. In a chain, draft token
        ``row`` is the one that was drafted there."""
        drafted = draft.tokens[row] if row < len(draft.tokens) else None
        if drafted is None or drafted.distribution is None or self._residual is None:
            return result.draw(self._sampler, row)
        p = result.distribution(self._sampler, row)
        token = self._residual.decide(drafted.token, drafted.distribution, p)
        self._sampler.accept(token)
        return token

    def _as_needed(self, what: Pass) -> Pass:
        """Return the pass with the head that the sampler needs and the hidden states that the
        drafter reads."""
        leave = self._hidden_layers or what.leave
        return replace(what, head=self._head, n_best=self._n_best, leave=leave)

    def _give_hidden(
        self, pos: int, tokens: Sequence[int], result: PassResult, rows: list[int] | None = None
    ) -> None:
        """Give the drafter the hidden states of these tokens.

        rows: of the result; None: all.
        """
        if self._drafter is not None and self._hidden_layers:
            assert result.hidden is not None
            states = result.hidden if rows is None else result.hidden[rows]
            self._drafter.on_hidden(self.seq, pos, tokens, states)

    def _settled(self, step: Step) -> Work[Step]:
        """Add the step's tokens to the text, remove the rejected ones from the sequence, and return
        the step with the time that this took."""
        self._ended = step.verdict.ended
        self.history += step.tokens
        draft = step.draft
        if not draft.is_empty or not draft.verification.is_whole:  # else it holds the text already
            _, us = yield from timed(self._rollback(len(self.history) - 1))
            self.seq.set_tokens(self.history[:-1])
            if step.n_accepted < step.n_drafted:
                step = replace(step, removal_us=us)
        if self._before_draft is not None:
            self.seq.forget_checkpoint(self._before_draft)
            self._before_draft = None
        if self.ended:
            self.seq.save_checkpoint()
        if self._drafter is not None:
            self._drafter.accept(step.verdict)
            self._controller.observe(step)
        return step

    def _rollback(self, n: int) -> Work[None]:
        """Let the sequence hold the first n tokens of the text: where the memory has to go back
        further, to a checkpoint, evaluate the tokens after it again."""
        pos = self.seq.can_keep(n)
        self.seq.rollback(pos)
        while pos < n:
            part = self.history[pos : min(pos + self._context.abilities.pass_width, n)]
            yield PassRequest(Rows.of(self.seq.seq_id, pos, part, "none"))
            pos += len(part)
