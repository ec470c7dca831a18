"""The record of one text: its tokens and their sources, its text, statistics and reason to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..stats import GenerationStats
from ..types import Step
from .text_stream import TextStream

if TYPE_CHECKING:
    from ...runtime.logprobs import LogProbs

# finish reasons: "length", "eog", "stop" and
INTERRUPTED = "interrupted"  # the user cut the text off
CONTEXT_FULL = "context"  # there was no room for all the tokens that were requested


class TextRecord:
    """A text as far as it has been generated.

    tokens: generated token ids. sources: of each, see Step.sources.
    logprobs: of each token, where they were requested.
    text: the decoded text, without what the stream still holds back.
    finish_reason: one of those above, None before the end.
    """

    def __init__(self, n_prompt: int, n_predict: int, stream: TextStream) -> None:
        self.tokens: list[int] = []
        self.sources: list[str | None] = []
        self.logprobs: list[LogProbs] = []
        self.text = ""
        self.stats = GenerationStats(n_prompt=n_prompt)
        self.finish_reason: str | None = None
        self._n_predict = n_predict
        self._stream = stream

    def record_prompt(self, n_reused: int, us: int) -> None:
        """Record the time of reading the prompt in microseconds, and the number of its tokens that
        were in the K/V cache already."""
        self.stats.n_prompt_reused = n_reused
        self.stats.prefill_us = us

    def record_step(self, step: Step) -> str:
        """Record a step; returns the text that it adds."""
        self.tokens += step.tokens
        self.sources += step.sources
        self.stats.observe(step)
        return self._grow(self._stream.take())

    def finish(self) -> str:
        """Record the end, after the last step; returns the text that was held back."""
        limit = "length" if len(self.tokens) >= self._n_predict else CONTEXT_FULL
        self.finish_reason = self._stream.finish_reason or limit
        return self._grow(self._stream.finish())

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, None if none did."""
        return self._stream.stopped_by

    def _grow(self, piece: str) -> str:
        self.text += piece
        return piece
