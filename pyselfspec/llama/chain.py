"""The sampler of a ``llama_cpp.Llama``, drawing behind the rows of our passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from ..runtime import _lib
from ..runtime.context import Context
from ..speculate.types import Law

if TYPE_CHECKING:
    from ._upstream import Llama


class Chain:
    """Draws with the sampler that llama_cpp has made for a text, in the state that it would be in
    at that token: before each draw, ``input_ids`` and ``n_tokens`` hold the text so far, and
    ``scores`` its logits where they are kept. So logits processors see what they see there.

    token: the last of the text, which is not evaluated yet.
    """

    def __init__(self, llama: Llama, token: int) -> None:
        self._llama = llama
        self._token = token

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing: llama_cpp has begun the text, and penalties see no prompt there."""

    def sample(self, context: Context, row: int) -> int:
        llama = self._llama
        assert llama._sampler is not None
        llama.input_ids[llama.n_tokens] = self._token
        if llama._logits_all:
            llama.scores[llama.n_tokens] = context.logits(row)
        llama.n_tokens += 1
        with context.alone:
            self._token = _lib.sample(context.session, llama._sampler.sampler, row)
        return self._token

    def law(self, context: Context, row: int) -> Law:
        raise UnsupportedError("drafts are verified by draws here, which need no law")

    def accept(self, token: int) -> None:
        raise UnsupportedError("the sampler accepts what it draws")
