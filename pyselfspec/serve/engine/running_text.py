"""Builds the deltas of one text: its pieces, with the tokens and probabilities of each."""

from __future__ import annotations

from ...runtime.logprobs import LogProbs
from ...speculate.completion import Completion
from ...speculate.output.sources import TokenTracker
from ...speculate.types import Step
from .jobs import MODEL, Delta, TokenText

_TokenInfo = tuple[str, LogProbs | None]  # the source of a token, and its probabilities


class DeltaBuilder:
    """with_tokens: whether deltas have tokens and probabilities, which takes time."""

    def __init__(self, completion: Completion, *, with_tokens: bool) -> None:
        self._completion = completion
        self._tokens = TokenTracker[_TokenInfo]() if with_tokens else None

    def observe(self, step: Step) -> None:
        """Take the tokens of a step that the completion has already added."""
        if self._tokens is None:
            return
        completion, model = self._completion, self._completion.context.model
        first = len(completion.tokens) - len(step.tokens)
        for i, (token, source) in enumerate(zip(step.tokens, step.sources, strict=True)):
            if model.has_vocab and not model.is_eog(token):
                logprobs = completion.logprobs[first + i] if completion.logprobs else None
                self._tokens.push(completion.piece(token), (source or MODEL, logprobs))

    def delta(self, text: str, us: int) -> Delta:
        """Return the delta of the next piece of text. us: microseconds that it took."""
        if self._tokens is None:
            return Delta(text, (), (), us)
        parts = self._tokens.take(text)
        tokens = tuple(TokenText(part.text, part.tag[0]) for part in parts if part.text)
        logprobs = tuple(
            (part.token, part.tag[1])
            for part in parts
            if part.token is not None and part.tag[1] is not None
        )
        return Delta(text, tokens, logprobs, us)
