"""The result of a pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from .passes import Hidden

if TYPE_CHECKING:
    from .context import Context

Distribution = NDArray[np.float64]  # the probability of every token, [n_vocab]


class BatchLoad(NamedTuple):
    """The part of a pass that belongs to other sequences.

    full_us: expected times of shared passes over 1, 2, ... rows in microseconds; empty if there are
        no other sequences.
    n_rests: steps for which its texts should not draft.
    """

    n_sequences: int = 0
    n_rows: int = 0
    full_us: tuple[float, ...] = ()
    n_rests: int = 0


SINGLE = BatchLoad()


class TokenSampler(Protocol):
    """A sampler, see ``runtime.sampling.Sampler``."""

    @property
    def n_best(self) -> int: ...

    def begin(self, prompt: Sequence[int]) -> None: ...

    def sample(self, context: Context, row: int) -> int: ...

    def distribution_of(self, logits: NDArray[np.float32]) -> Distribution: ...

    def accept(self, token: int) -> None: ...


class PassResult:
    """The result of a pass, or of some of its rows. Logits are copied on access, and only until the
    context's next pass; reading them later raises ArgumentError.

    outputs: whether each row has logits.
    hidden: the requested states, one row for each row of the pass; None without a request.
    first: index of the first row in the pass.
    us: duration of the pass in microseconds; 0 where nobody measured it.
    batch_load: the part of the pass that belongs to other sequences.
    """

    __slots__ = ("_context", "_first", "_outputs", "_serial", "batch_load", "hidden", "us")

    def __init__(
        self,
        context: Context,
        outputs: Sequence[bool],
        hidden: Hidden | None,
        *,
        first: int = 0,
        us: int = 0,
        batch_load: BatchLoad = SINGLE,
    ) -> None:
        self._context = context
        self._serial = context.n_decodes
        self._outputs = outputs
        self._first = first
        self.hidden = hidden
        self.us = us
        self.batch_load = batch_load

    def part(self, first: int, n: int, us: int, batch_load: BatchLoad) -> PassResult:
        """Return the result of n rows from ``first`` on."""
        return PassResult(
            self._context,
            self._outputs[first : first + n],
            None if self.hidden is None else self.hidden[first : first + n],
            first=first,
            us=us,
            batch_load=batch_load,
        )

    @property
    def n_tokens(self) -> int:
        """The number of rows."""
        return len(self._outputs)

    @property
    def n_outputs(self) -> int:
        """The number of rows with logits."""
        return sum(self._outputs)

    @property
    def logits(self) -> NDArray[np.float32]:
        """A copy of the logits of all rows that have some, float32 [n_outputs, n_vocab]."""
        rows = list(self.rows())
        return np.stack(rows) if rows else np.empty((0, self._context.model.n_vocab), np.float32)

    def rows(self) -> Iterator[NDArray[np.float32]]:
        """Yield the logits row by row, each float32 [n_vocab], for passes whose logits would fill
        memory."""
        for row, has_logits in enumerate(self._outputs):
            if has_logits:
                yield self.logits_of(row)

    def logits_of(self, row: int) -> NDArray[np.float32]:
        """Return a copy of the logits after a row, see Context.logits."""
        return self._context.logits(self._row(row))

    def argmax(self, row: int) -> tuple[int, float]:
        """Return the most likely token after a row and its probability, 0..1."""
        return self._context.argmax(self._row(row))

    def best(self, row: int) -> int:
        """Return the most likely token after a row."""
        return self._context.best(self._row(row))

    def draw(self, sampler: TokenSampler, row: int) -> int:
        """Return the token that a sampler draws after a row."""
        return sampler.sample(self._context, self._row(row))

    def distribution(self, sampler: TokenSampler, row: int) -> Distribution:
        """Return the distribution that a sampler would draw from after a row."""
        return sampler.distribution_of(self.logits_of(row))

    def _row(self, row: int) -> int:
        if self._serial != self._context.n_decodes:
            raise ArgumentError(
                "the context has decoded again; read the result before the next pass"
            )
        return self._first + row
