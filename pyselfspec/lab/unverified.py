"""Generates with the masked model alone, without verification (research).

Layers that were skipped for drafts are judged by them; a text of their own shows what they can do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Unpack

from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.passes import Pass, Rows
from ..speculate.completion import Completion, CompletionOptions
from ..speculate.types import Draft, Step, Verdict


class UnverifiedCompletion(Completion):
    """A completion whose passes all skip what the mask skips, those over the prompt too.

    The K/V cache of the prompt is the masked model's, so nothing in it is reused, before or after.
    Raises MaskError for a mask of a model with another number of blocks.
    """

    def __init__(
        self,
        context: Context,
        prompt: str | Sequence[int],
        mask: LayerMask,
        **options: Unpack[CompletionOptions],
    ) -> None:
        super().__init__(context, prompt, None, **options)
        self._mask = mask.require(context.model.n_layer)

    @property
    def mask(self) -> LayerMask:
        """The sublayers that the text is written without."""
        return self._mask

    def __iter__(self) -> Iterator[str]:
        context, seq, what = self.context, self._seq, Pass(self._mask)
        with self._sampler() as sampler:
            start = time.perf_counter_ns()
            seq.drop()
            seq.occupy()
            last = len(self.prompt) - 1
            for first in range(0, last, context.n_batch):
                part = self.prompt[first : min(first + context.n_batch, last)]
                context.run(Rows.of(seq.seq_id, first, part, "none"), what)
            sampler.begin(self.prompt)
            self.stats.total_us = (time.perf_counter_ns() - start) // 1000
            self.record_prompt(0, self.stats.total_us)
            token, pos, ended = self.prompt[last], last, False
            while not ended and len(self.tokens) < self._n_predict and pos < context.n_ctx:
                start = time.perf_counter_ns()
                context.run(Rows.of(seq.seq_id, pos, [token]), what)
                token, pos = sampler.sample(context, 0), pos + 1
                ended = self._stream.consume(token)
                us = (time.perf_counter_ns() - start) // 1000
                self.stats.total_us += us
                yield self.record_step(Step(Draft(), Verdict((), token, ended), us))
            seq.drop()
            yield self.finish()
