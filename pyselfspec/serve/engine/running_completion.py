"""One completion of the engine: its generation, and its deltas: pieces with their tokens and
probabilities."""

from __future__ import annotations

import time
from contextlib import ExitStack

from ...runtime.context import Context
from ...runtime.logprobs import LogProbs
from ...speculate.completion import Completion
from ...speculate.output.sources import TokenTracker
from ...speculate.types import Step
from .jobs import MODEL, Delta, Finished, Progress, Ticket, TokenText
from .slots import Slot

PROGRESS_US = 500_000  # between two reports of how much of a prompt has been read

_TokenInfo = tuple[str, LogProbs | None]  # the source of a token, and its probabilities


class RunningCompletion:
    """A completion that is being generated. Raises the errors of Completion."""

    def __init__(self, ticket: Ticket, slot: Slot, context: Context, n_tokens: int) -> None:
        self.ticket = ticket
        self.slot = slot
        self.has_read = False  # its prompt
        job = ticket.job
        self.completion = Completion(
            context,
            job.prompt,
            job.drafting,
            seq=slot.seq,
            n_predict=n_tokens - len(job.prompt),
            sampling=job.sampling,
            stop=job.stop,
            line_limits=job.line_limits,
            logprobs=job.logprobs,
            shown=dict(job.shown),
            adapters=job.adapters,
            pictures=job.pictures,
            reasoning_budget=job.reasoning_budget,
        )
        # tokens and probabilities take time
        with_tokens = job.shows_tokens or job.logprobs is not None
        self._tokens = TokenTracker[_TokenInfo]() if with_tokens else None
        self._stack = ExitStack()
        self.generation = self._stack.enter_context(self.completion.start())
        self._start = time.perf_counter_ns()
        self._told_us = 0

    def finish_prompt(self) -> None:
        self.has_read = True
        self.completion.record_prompt(self.generation.n_reused, self._us())

    def progress(self) -> Progress | None:
        """Return how much of the prompt has been read; None if the last report is recent, or the
        job asks for none."""
        n, us = len(self.ticket.job.prompt), self._us()
        is_due = self.has_read or us - self._told_us >= PROGRESS_US
        if not (self.ticket.job.shows_progress and is_due):
            return None
        self._told_us = us
        n_read = n if self.has_read else self.generation.n_read
        return Progress(n, self.generation.n_reused, n_read, us)

    def delta(self, step: Step) -> Delta:
        text = self.completion.record_step(step)
        if not self.ticket.job.n_predict:  # its only token ends the reading of the prompt
            return Delta("", (), (), step.us)
        if self._tokens is not None:
            completion, model = self.completion, self.completion.context.model
            first = len(completion.tokens) - len(step.tokens)
            for i, (token, source) in enumerate(zip(step.tokens, step.sources, strict=True)):
                if model.has_vocab and not model.is_eog(token):
                    logprobs = completion.logprobs[first + i] if completion.logprobs else None
                    self._tokens.push(completion.piece(token), (source or MODEL, logprobs))
        return self._delta(text, step.us)

    def _delta(self, text: str, us: int) -> Delta:
        """Return the delta of the next piece of text. us: microseconds that it took."""
        parts = [] if self._tokens is None else self._tokens.take(text)
        tokens = tuple(TokenText(part.text, part.tag[0]) for part in parts if part.text)
        logprobs = tuple(
            (part.token, part.tag[1])
            for part in parts
            if part.token is not None and part.tag[1] is not None
        )
        return Delta(text, tokens, logprobs, us)

    def finish(self) -> tuple[Delta, Finished]:
        """Return the text that was held back until the end, and the statistics."""
        completion = self.completion
        text = completion.finish()
        completion.stats.total_us = self._us()
        assert completion.finish_reason is not None
        if not self.ticket.job.n_predict:
            completion.stats.n_generated = 0
            return Delta("", (), (), 0), Finished("length", completion.stats, completion.draft)
        finished = Finished(
            completion.finish_reason,
            completion.stats,
            completion.draft,
            completion.estimated_speedup,
            completion.mask,
            completion.stopped_by,
        )
        return self._delta(text, 0), finished

    def _us(self) -> int:
        return (time.perf_counter_ns() - self._start) // 1000

    def close(self) -> None:
        self._stack.close()
