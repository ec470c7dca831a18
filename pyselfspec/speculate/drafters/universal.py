"""Draft with any other model, whatever its tokens: an assistant that reads and writes the same
bytes.

Two ways to carry a draft over. ``text``: the assistant writes text, which is cut into the target's
tokens; see Hugging Face's "Universal Assisted Generation",
https://huggingface.co/blog/universal_assisted_generation. That aligns texts by the longest run of
equal tokens of two decoded strings, which spaces, start tokens, half characters and repetitions
mislead. Here both texts have byte offsets: what they share is known, never searched for, and only
what lies behind it is cut anew.

``shared``: the assistant drafts only tokens that both vocabularies have, each of which is one of
the target's: greedily, as all drafts here; see "token-level intersection" in Timor et al.,
"Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies", https://arxiv.org/abs/2502.05202. The text it reads is cut as its own tokenizer does,
so that nothing of it is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...costs.table import CostTable
from ...errors import ArgumentError
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...runtime.ledger import n_common
from ...runtime.model import Model
from ..second_model import SecondModelDrafter, opened
from ..spelling import Spelling, Tokenizer, shared_tokens, whole
from ..types import DraftLimit

Mode = Literal["text", "shared"]
N_WAITING = 8  # tokens that the assistant writes at most without one that is sure
ROOM = 2  # tokens of the assistant for one of the target, in a full context


@dataclass(frozen=True, slots=True)
class Options:
    """path: of the GGUF file that drafts.
    mode: "shared": it drafts tokens that both models have; "text": it writes text, which is cut
        into tokens of the model. That takes a pass more per draft, and pays where the two have few
        tokens in common: 46,000 of 49,000 are SmolLM2's and Gemma's, and both ways are right
        equally often.
    """

    path: Path
    mode: Mode = "shared"


def make(context: Context, options: Options) -> Drafter:
    """Raises ArgumentError for a model without a tokenizer, and what ``second_model.opened``
    raises."""

    def check(model: Model) -> None:
        for each in (context.model, model):
            each.require_tokenizer("universal drafts carry text from one to another")

    second = opened(context, options.path, check, n_ctx=ROOM * context.n_ctx)
    return Drafter(context, second, options.mode)


class Drafter(SecondModelDrafter):
    """Greedy drafts of an assistant.

    Between steps the assistant's text is the target's, cut as it read or wrote it: tokens of its
    own that turned out right stay as they are.
    """

    name = "universal"

    def __init__(self, context: Context, second: Context, mode: Mode) -> None:
        super().__init__(context, second)
        self._mode = mode
        self._tokenizer = Tokenizer(context.model)
        self._its_tokenizer = Tokenizer(second.model)
        self._shared: dict[int, int] = {}
        if mode == "shared":
            self.head = "logits"
            tokens = context.once(
                ("shared tokens", second), lambda: shared_tokens(context.model, second.model)
            )
            if not tokens:
                raise ArgumentError(
                    f"{second.model.path.name} and {context.model.path.name} have no tokens in "
                    'common; take mode "text"'
                )
            self._shared = tokens
            self._candidates = np.fromiter(tokens, np.int64, len(tokens))
        self._restart()

    def _restart(self) -> None:
        start = self._second.model.start_token
        self._text = Spelling(self._context.model)  # with the copies of the last draft
        self._its_text = Spelling(self._second.model, () if start is None else (start,))
        self._n_same = 0  # tokens of its text that are those that it read last

    @property
    def identity(self) -> Mapping[str, Any]:
        return {**super().identity, "mode": self._mode}

    def costs(self) -> CostTable:
        """In a text, the token behind the draft is drafted as well: it tells where the last one
        ends."""
        table = super().costs()
        if self._mode == "shared":
            return table
        return CostTable(tuple(replace(c, last_us=c.token_us) for c in table.levels))

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._restart()
        super().begin(seq, history)

    def _reading(self, text: Sequence[int]) -> tuple[Sequence[int], int]:
        self._align(text)
        return self._its_text.tokens, self._n_same

    def _align(self, text: Sequence[int]) -> bytes:
        """Make its text that of the target; returns the begun character at the end, which it has
        not read."""
        self._text.cut(self._n_read)
        self._text.extend(text[len(self._text.tokens) :])
        data, own = self._text.data, self._its_text
        n = own.n_shared(data)
        own.cut(n)
        readable = whole(data[len(own.data) :])
        own.extend(self._its_tokenizer.tokens(readable))
        self._n_same = min(self._n_same, n)
        return bytes(data[len(own.data) :])

    def _guesses(self, text: Sequence[int], limit: DraftLimit) -> Iterator[tuple[int, float]]:
        pending = self._align(text)
        if not self._its_text.tokens:
            return iter(())
        if self._mode == "text":
            return self._written(pending, limit.p_min)
        return iter(()) if pending else self._chosen()

    def _read(self) -> None:
        """Read its text, with an answer for the last token."""
        self._reader.read(self._its_text.tokens, self._n_same)
        self._n_same = len(self._its_text.tokens)

    def _written(self, pending: bytes, p_min: float) -> Iterator[tuple[int, float]]:
        """Tokens of the text that it writes. A token counts once what is written next leaves it as
        it is.

        The probability of a token is that of all tokens of the assistant that begin in it.
        """
        its_model = self._second.model
        written = b""
        probs: dict[int, float] = {}  # by where tokens of the assistant begin
        before: list[int] = []  # what was written so far, in the target's tokens
        n_given = n_waiting = 0
        while n_waiting < N_WAITING:
            self._read()
            its_token, p = self._reader.likeliest()
            new = b"" if its_model.is_eog(its_token) else its_model.piece(its_token)
            now = before
            if new:  # else its text has ended, and nothing changes it any more
                probs[max(0, len(written) - len(pending))] = p
                written += new
                if written[: len(pending)] != pending[: len(written)]:
                    return  # another character than the one that has begun
                now = self._tokenizer.tokens(whole(written[len(pending) :]))
            n_sure = n_common(before, now)
            for i in range(n_given, n_sure):
                yield before[i], self._prob(before, i, probs)
                n_waiting = 0
            if not new or n_sure < n_given:
                return
            n_given = n_sure
            if n_given < len(now) and (p := self._prob(now, n_given, probs)) < p_min:
                yield now[n_given], p  # it is not kept, so it need not be sure
                return
            before = now
            n_waiting += 1
            self._its_text.extend([its_token])

    def _prob(self, tokens: Sequence[int], i: int, probs: Mapping[int, float]) -> float:
        *_, start, end = 0, *Spelling(self._context.model, tokens[: i + 1]).ends
        return prod(p for at, p in probs.items() if start <= at < end)

    def _chosen(self) -> Iterator[tuple[int, float]]:
        """Tokens of the common vocabulary; probabilities are those among them."""
        while True:
            self._read()
            logits = self._reader.logits()[self._candidates].astype(np.float64)
            i = int(logits.argmax())
            its_token = int(self._candidates[i])
            yield self._shared[its_token], float(1 / np.exp(logits - logits[i]).sum())
            self._its_text.extend([its_token])
