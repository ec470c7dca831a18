"""The result of a pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from .ffi import calls
from .passes import Hidden

if TYPE_CHECKING:
    from .context import Context


class Decoded:
    """The result of a pass. Logits are copied on access, and only until the context's next pass.

    hidden: the requested states, one row for each row of the pass; None without a request.
    """

    __slots__ = ("_context", "_outputs", "_serial", "hidden")

    def __init__(
        self, context: Context, serial: int, outputs: Sequence[bool], hidden: Hidden | None
    ) -> None:
        self._context = context
        self._serial = serial
        self._outputs = outputs
        self.hidden = hidden

    @property
    def n_tokens(self) -> int:
        """The number of rows of the pass."""
        return len(self._outputs)

    @property
    def n_outputs(self) -> int:
        """The number of rows with logits."""
        return sum(self._outputs)

    @property
    def logits(self) -> NDArray[np.float32]:
        """A copy, float32 [n_outputs, n_vocab]. Raises ArgumentError after the context's next
        pass."""
        rows = list(self.rows())
        return np.stack(rows) if rows else np.empty((0, self._context.model.n_vocab), np.float32)

    def rows(self) -> Iterator[NDArray[np.float32]]:
        """Yield the logits row by row, each float32 [n_vocab], for batches whose logits would fill
        memory. Raises ArgumentError after the context's next pass."""
        context = self._context
        for i, has_logits in enumerate(self._outputs):
            if not has_logits:
                continue
            if self._serial != context.n_decodes:
                raise ArgumentError(
                    "the context has decoded again; read logits before the next decode"
                )
            with context.lock:
                row = calls.logits(context.session, i, context.model.n_vocab)
            yield row
