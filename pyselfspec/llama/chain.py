"""The sampler of a ``llama_cpp.Llama``, drawing tokens from the rows of verification passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..runtime.context import Context
from ..runtime.ffi import sampler_calls
from ..runtime.pass_result import Distribution

if TYPE_CHECKING:
    from ._upstream import Llama


class Chain:
    """Draws with the sampler that llama_cpp made for a text, in the same state as without drafts:
    before each draw, ``input_ids`` and ``n_tokens`` hold the text so far, and ``scores`` its logits
    if they are kept. Logits processors therefore see the same arguments.

    token: the last token of the text, not evaluated yet.
    """

    def __init__(self, llama: Llama, token: int) -> None:
        self._llama = llama
        self._token = token

    n_best = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """Do nothing: llama_cpp has begun the text, and its penalties do not see the prompt."""

    def sample(self, context: Context, row: int) -> int:
        llama = self._llama
        assert llama._sampler is not None
        llama.input_ids[llama.n_tokens] = self._token
        if llama._logits_all:
            llama.scores[llama.n_tokens] = context.logits(row)
        llama.n_tokens += 1
        with context.lock():
            self._token = sampler_calls.sample(context.session, llama._sampler.sampler, row)
        return self._token

    def distribution_of(self, logits: NDArray[np.float32]) -> Distribution:
        raise UnsupportedError("drafts are verified by sampling here, without distributions")

    def accept(self, token: int) -> None:
        raise UnsupportedError("the sampler accepts what it draws")
