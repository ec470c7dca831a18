"""Draft with a second model of another vocabulary, the assistant.

There are two modes. ``text``: the assistant writes text, which is tokenized for the target; see
Hugging Face's "Universal Assisted Generation",
https://huggingface.co/blog/universal_assisted_generation. There, texts are aligned by the longest
run of equal tokens of two decoded strings, which fails with spaces, start tokens, partial
characters and repetitions. Here both texts have byte offsets, so their common prefix is known
without a search, and only the rest is tokenized again.

``shared``: the assistant drafts only tokens that both vocabularies have; see "token-level
intersection" in Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding
Algorithms for Heterogeneous Vocabularies", https://arxiv.org/abs/2502.05202. It reads the text as
its own tokenizer splits it, so that no token is missing. Tokens are the most likely ones, or drawn
from the assistant's distribution over the common tokens if the limit has ``draw``. Tokens of
``text`` are never drawn: the distribution of a token of the target would be that of all texts that
begin with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...costs.table import CostTable
from ...errors import ArgumentError
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...runtime.model import Model
from ...runtime.passes import Head
from ...runtime.sequence_table import n_common
from ..context_state import kept
from ..limits import DraftLimit, Pick
from ._second_model.reader import SecondModelDrafter, opened
from ._second_model.retokenize import Spelling, Tokenizer, shared_tokens, whole

Mode = Literal["text", "shared"]
N_WAITING = 8  # most tokens that the assistant writes without a certain token of the target
ROOM = 2  # tokens of the assistant per token of the target in a full context


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the drafter.

    path: the GGUF file of the assistant.
    mode: "shared": it drafts tokens that both models have; "text": it writes text, which is
        tokenized for the target. That takes one more pass per draft and pays if the models have few
        tokens in common. SmolLM2 and Gemma have 46,000 of 49,000; both modes have the same
        acceptance rate there.
    """

    path: Path
    mode: Mode = "shared"


def make(context: Context, options: Options) -> UniversalDrafter:
    """Return a drafter. Raises ArgumentError for a model without a tokenizer, and what
    ``reader.opened`` raises."""

    def check(model: Model) -> None:
        for each in (context.model, model):
            each.require_tokenizer("universal drafts carry text from one to another")

    second = opened(context, options.path, check, n_ctx=ROOM * context.n_ctx)
    return UniversalDrafter(context, second, options.mode)


@dataclass(frozen=True, slots=True)
class _Common:
    """The result of the assistant's last pass, in tokens of the target.

    tokens: the tokens of the target that the assistant's tokens stand for, int64 [n_common]; some
        twice, where two tokens of the assistant spell the same.
    values: logits of the assistant's tokens, float64 [n_common].
    n_vocab: number of all tokens of the target.
    """

    tokens: NDArray[np.int64]
    values: NDArray[np.float64]
    n_vocab: int

    def argmax(self, row: int) -> tuple[int, float]:
        i = int(self.values.argmax())
        return int(self.tokens[i]), float(1 / np.exp(self.values - self.values[i]).sum())

    def logits_of(self, row: int) -> NDArray[np.float32]:
        """Return those of all tokens of the target; of two tokens that spell the same, those of the
        likelier one."""
        found = np.full(self.n_vocab, -np.inf, np.float32)
        np.maximum.at(found, self.tokens, self.values.astype(np.float32))
        return found

    def index(self, token: int) -> int:
        """Return the index of the likeliest token of the assistant that stands for this token."""
        places = np.flatnonzero(self.tokens == token)
        return int(places[self.values[places].argmax()])


class UniversalDrafter(SecondModelDrafter):
    """Drafts with an assistant.

    Between steps the assistant's text equals the target's, in the tokens that it read or wrote:
    its own accepted tokens are not tokenized again.
    """

    name = "universal"

    def __init__(self, context: Context, second: Context, mode: Mode) -> None:
        super().__init__(context, second)
        self._mode = mode
        self._tokenizer = Tokenizer(context.model)
        self._its_tokenizer = Tokenizer(second.model)
        if mode == "shared":
            tokens = kept(
                context, type(self), second, lambda: shared_tokens(context.model, second.model)
            )
            if not tokens:
                raise ArgumentError(
                    f"{second.model.path.name} and {context.model.path.name} have no tokens in "
                    'common; use mode "text"'
                )
            self._its_common = np.fromiter(tokens, np.int64, len(tokens))
            self._common = np.fromiter(tokens.values(), np.int64, len(tokens))
        self._restart()

    def _restart(self) -> None:
        start = self._second.model.start_token
        self._text = Spelling(self._context.model)  # with the copies of the last draft
        self._its_text = Spelling(self._second.model, () if start is None else (start,))
        self._n_same = 0  # tokens of its text that equal the tokens read last

    def costs(self) -> CostTable:
        """Return the expected costs. In text mode the token after the draft is drafted as well,
        since it tells where the last one ends."""
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
        """Make its text equal the target's; return the bytes of a partial character at the end,
        which it has not read."""
        self._text.truncate(self._n_read)
        self._text.extend(text[len(self._text.tokens) :])
        data, own = self._text.data, self._its_text
        n = own.n_shared(data)
        own.truncate(n)
        readable = whole(data[len(own.data) :])
        own.extend(self._its_tokenizer.tokens(readable))
        self._n_same = min(self._n_same, n)
        return bytes(data[len(own.data) :])

    def _picks(self, text: Sequence[int], limit: DraftLimit) -> Iterator[Pick]:
        pending = self._align(text)
        if not self._its_text.tokens:
            return iter(())
        if self._mode == "text":
            return self._written(pending, limit.p_min)
        return iter(()) if pending else self._chosen(limit)

    def _read(self, head: Head | None = None) -> None:
        """Read its text, with an output after the last token."""
        self._reader.read(self._its_text.tokens, self._n_same, head=head)
        self._n_same = len(self._its_text.tokens)

    def _written(self, pending: bytes, p_min: float) -> Iterator[Pick]:
        """Yield tokens of the text that it writes, each once further text does not change it, and
        their probabilities: the product of those of all assistant tokens that begin in it.
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
            if new:  # else its text has ended and does not change any more
                probs[max(0, len(written) - len(pending))] = p
                written += new
                if written[: len(pending)] != pending[: len(written)]:
                    return  # contradicts the partial character
                now = self._tokenizer.tokens(whole(written[len(pending) :]))
            n_sure = n_common(before, now)
            for i in range(n_given, n_sure):
                yield Pick(before[i], self._prob(before, i, probs), before[i])
                n_waiting = 0
            if not new or n_sure < n_given:
                return
            n_given = n_sure
            if n_given < len(now) and (p := self._prob(now, n_given, probs)) < p_min:
                yield Pick(now[n_given], p, now[n_given])  # dropped, so it need not be certain
                return
            before = now
            n_waiting += 1
            self._its_text.extend([its_token])

    def _prob(self, tokens: Sequence[int], i: int, probs: Mapping[int, float]) -> float:
        *_, start, end = 0, *Spelling(self._context.model, tokens[: i + 1]).ends
        return prod(p for at, p in probs.items() if start <= at < end)

    def _chosen(self, limit: DraftLimit) -> Iterator[Pick]:
        """Yield tokens of the common vocabulary, with probabilities relative to it."""
        while True:
            self._read("logits")
            values = self._reader.logits()[self._its_common].astype(np.float64)
            found = _Common(self._common, values, self._context.model.n_vocab)
            pick = limit.select(found, 0)
            yield pick
            self._its_text.extend([int(self._its_common[found.index(pick.token)])])
