"""A draft head at work: a small model beside another one, whose states it reads. Knows its passes,
not what they are good for."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..gguf import heads
from ..util.closing import Closing
from . import _lib
from .context import N_CTX_UNIT, Context
from .kv import KVSequence
from .model import Model
from .passes import Head, Rows
from .short_list import ShortList


class DraftHead(Closing):
    """A head for the model of a context, which closes it before it is closed itself.

    path: of the head; None: the model's own.
    blocks: of that model, whose entering states ``fuse`` takes. ``sequence`` is as in Context: the
    head has K/V of its own.
    n_first: rows at the beginning of a text that have no states, but zeros.

    Raises ModelFileError or ArgumentError for a file that is no head for this model, or a model
    without a head of its own.
    """

    def __init__(self, target: Context, path: Path | None) -> None:
        self.file = _file(target.model, path)
        self.blocks = self.file.blocks
        self.n_first = 1 if path is None else 0
        self._fuses = path is not None
        self._stack = ExitStack()
        with ExitStack() as on_failure:
            model = target.model
            if path is not None:
                model = on_failure.enter_context(
                    Model(path, n_gpu_layers=None if model.n_gpu_layers else 0)
                )
            self._context = on_failure.enter_context(
                model.context(
                    n_ctx=target.n_ctx + N_CTX_UNIT * self.n_first,
                    n_batch=target.n_batch,
                    n_threads=target.n_threads,
                    n_seq_max=target.n_seq_max,
                    flash_attn=target.flash_attn,
                    target=target,
                )
            )
            self._stack = on_failure.pop_all()
        target.closes(self)

    def close(self) -> None:
        self._stack.close()

    def sequence(self, seq_id: int) -> KVSequence:
        return self._context.sequence(seq_id)

    @property
    def n_batch(self) -> int:
        """Most rows of a pass."""
        return self._context.n_batch

    def fuse(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the head makes of the model's states, before it knows a token.

        features: float32 [n_rows, n_features], the states of ``blocks`` side by side, at most
            n_batch rows. Returns float32 [n_rows, n_embd]; a model's own head takes them as they
            are.
        """
        if not self._fuses:
            return features
        context = self._context
        states = np.empty((len(features), context.model.n_embd), np.float32)
        with context.alone:
            _lib.draft_fuse(context.session, np.ascontiguousarray(features, np.float32), states)
        return states

    @property
    def can_shorten(self) -> bool:
        """Whether passes can look at a short list of tokens only, see Context. Heads with a
        vocabulary of their own cannot: that is a short list already."""
        return self._context.can_shorten

    @property
    def best_head(self) -> Head:
        """What to ask for where argmax() is all that is needed. Logits of a vocabulary of its own
        would be spread over that of the model first."""
        return "best" if self.file.has_own_tokens else self._context.best_head

    def decode(
        self,
        rows: Rows,
        states: NDArray[np.float32],
        head: Head = "logits",
        among: ShortList | None = None,
    ) -> NDArray[np.float32]:
        """One pass over tokens and the states that led to them, float32 [n_rows, n_embd].

        head: as for a Pass; "best" leaves what argmax needs and nothing for runners_up.
        among: the tokens that argmax looks at, with "best"; None: all.

        Returns those that the rows with an output leave for the rows behind them, float32
        [n_outputs, n_embd].

        Raises ArgumentError for states of another shape, ContextFullError without room, DecodeError
        where it cannot be computed.
        """
        context = self._context
        rows.require_whole()
        if np.shape(states) != (len(rows), context.model.n_embd):
            raise ArgumentError(
                f"states have shape [{len(rows)}, {context.model.n_embd}], got "
                f"{list(np.shape(states))}"
            )
        left = np.empty((sum(rows.outputs), context.model.n_embd), np.float32)
        with context.alone:
            context.n_decodes += 1
            _lib.draft_decode(
                context.session,
                tokens=rows.tokens,
                seq_ids=rows.seq_ids,
                pos=rows.pos,
                outputs=bytes(rows.outputs),
                head=head,
                among=None if among is None else among.ids,
                states=np.ascontiguousarray(states, np.float32),
                states_out=left,
            )
        return left

    def argmax(self, row: int) -> tuple[int, float]:
        """The most likely token after a row of the last pass, and its probability."""
        return self._context.argmax(row)

    def runners_up(
        self, row: int, best: tuple[int, float], n: int, p_min: float
    ) -> list[tuple[int, float]]:
        """The next likeliest tokens after a row of the last pass, see Context.runners_up."""
        return self._context.runners_up(row, best, n, p_min)


def _file(model: Model, path: Path | None) -> heads.HeadFile:
    if path is not None:
        return heads.check(path, model.file)
    if model.own_head is None:
        raise ArgumentError(
            f"{model.path.name} brings no draft head of its own that is known to work; give the "
            "file of one"
        )
    return model.own_head
