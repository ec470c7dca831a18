"""Passes of a draft head: a small model that reads the hidden states of another one, its target."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..gguf import heads
from ..util.closable import Closing
from .context import Context
from .context_options import N_CTX_UNIT, ContextOptions
from .ffi import calls
from .kv import KVSequence
from .model import Model, open_beside
from .opening import open_context
from .passes import Head, Rows
from .short_list import ShortList


class DraftHead(Closing):
    """A head for the model of a context; closing the context closes the head first.

    path: the head's file; None: the head in the model's own file.
    kind: how it reads the model; see gguf/heads/head_file.py.
    blocks: the model's blocks whose entering states are the input of ``fuse``. ``sequence`` is as
        in Context, in the head's own K/V; a head that has none attends to those of the target in
        the sequence of the same id.

    Raises ModelFileError or ArgumentError for a file that is not a head for this model, or a model
    file without a head.
    """

    def __init__(self, target: Context, path: Path | None) -> None:
        self.file = _file(target.model, path)
        self.kind = self.file.kind
        self.blocks = self.file.blocks
        self._stack = ExitStack()
        with ExitStack() as on_failure:
            model = target.model
            if path is not None:
                model = on_failure.enter_context(open_beside(model, path, target.n_cells))
            self._context = on_failure.enter_context(
                open_context(model, _options(target, self.kind), target)
            )
            self._stack = on_failure.pop_all()
        target.closes(self)

    def close(self) -> None:
        self._stack.close()

    def sequence(self, seq_id: int) -> KVSequence:
        return self._context.sequence(seq_id)

    @property
    def n_batch(self) -> int:
        """The most rows of a pass."""
        return self._context.n_batch

    def fuse(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the head's first states, which depend on the model's states only.

        features: float32 [n_rows, n_features], the states of ``blocks`` side by side, at most
            n_batch rows. Returns float32 [n_rows, n_state]; heads that do not fuse take them as
            they are. Raises ArgumentError for features of another shape.
        """
        if not self.kind.fuses:
            return features
        context = self._context
        n_features = self.file.n_features
        if len(features) > self.n_batch or np.shape(features) != (len(features), n_features):
            raise ArgumentError(
                f"features have shape [up to {self.n_batch}, {n_features}], got "
                f"{list(np.shape(features))}"
            )
        states = np.empty((len(features), self.file.n_state), np.float32)
        with context.lock():
            calls.draft_fuse(context.session, np.ascontiguousarray(features, np.float32), states)
        return states

    @property
    def can_shorten(self) -> bool:
        """Whether argmax can be limited to a short list of tokens, see Context. Heads with a
        vocabulary of their own cannot do that: it is a short list already. Nor can heads that
        choose candidates from all tokens."""
        return self._context.can_shorten and not self.kind.scores_candidates

    @property
    def best_head(self) -> Head:
        """The ``head`` of a pass where only argmax() is needed: logits of a head with its own
        vocabulary would first be spread over the model's."""
        if self.kind.scores_candidates:
            return "logits"
        return "best" if self.file.has_own_tokens else self._context.best_head

    @property
    def n_vocab(self) -> int:
        return self._context.model.n_vocab

    def decode(
        self,
        rows: Rows,
        states: NDArray[np.float32],
        head: Head = "logits",
        among: ShortList | None = None,
        *,
        block: int = 0,
        in_place: bool = False,
    ) -> NDArray[np.float32]:
        """Run one pass over tokens and the states that led to them, float32 [n_rows, n_state].

        head: as for a Pass; after "best", argmax can be called, and logits only with a list.
        among: with "best", the tokens among which argmax searches; None: all.
        block: the block that runs, counted from 0; each writes its own K/V.
        in_place: write K/V to the cells that the sequence holds at these positions.

        Returns the states after the rows with an output, the input of the rows after them, float32
        [n_outputs, n_state].

        Raises ArgumentError for states of another shape, ContextFullError without room, DecodeError
        where it cannot be computed.
        """
        n_state = self.file.n_state
        self._require_states(rows, states, n_state)
        left = np.empty((sum(rows.outputs), n_state), np.float32)
        self._decode(rows, rows.tokens, states, left, head, among, block, in_place)
        return left

    def keep(self, rows: Rows, features: NDArray[np.float32]) -> None:
        """Keep K and V of the states of tokens, for a head that drafts blocks.

        rows: their positions, without outputs. features: float32 [n_rows, n_features], the states
            of ``blocks`` side by side.

        Raises what ``decode`` does.
        """
        self._require_states(rows, features, self.file.n_features)
        self._decode(rows, None, features, None)

    def draft_block(
        self, rows: Rows, head: Head = "logits", among: ShortList | None = None
    ) -> NDArray[np.float32] | None:
        """Run the pass that drafts a block: the text's last token and masks, all with outputs. The
        caller removes these rows.

        Returns the predicted probabilities that tokens drafted by the rows are accepted, float32
        [n_rows]; None for a head without confidence. Raises what ``decode`` does.
        """
        confidence = np.empty(len(rows), np.float32) if self.kind.has_confidence else None
        self._decode(rows, rows.tokens, None, confidence, head, among)
        return confidence

    def score(self, row: int, previous: int) -> None:
        """Make the logits of a row of a block the scores of its candidates after a token, -inf for
        all other tokens, for a head that scores candidates.

        row: counted from 1, in order. previous: the token before it; from row 2, a candidate of the
            row before. Raises ArgumentError for other rows and tokens.
        """
        with self._context.lock():
            calls.draft_score(self._context.session, row, previous)

    def _require_states(self, rows: Rows, states: NDArray[np.float32], n: int) -> None:
        if np.shape(states) != (len(rows), n):
            raise ArgumentError(
                f"states have shape [{len(rows)}, {n}], got {list(np.shape(states))}"
            )

    def _decode(
        self,
        rows: Rows,
        tokens: Sequence[int] | None,
        states: NDArray[np.float32] | None,
        left: NDArray[np.float32] | None,
        head: Head = "logits",
        among: ShortList | None = None,
        block: int = 0,
        in_place: bool = False,
    ) -> None:
        rows.require_whole()
        context = self._context
        with context.lock():
            context.n_decodes += 1
            calls.decode(
                context.session,
                tokens=tokens,
                seq_ids=rows.seq_ids,
                pos=rows.pos,
                outputs=bytes(rows.outputs),
                head=head,
                among=None if among is None else among.ids,
                in_place=in_place,
                nextn=block,
                hidden=None if states is None else np.ascontiguousarray(states, np.float32),
                hidden_out=left,
            )

    def argmax(self, row: int) -> tuple[int, float]:
        """Return the most likely token after a row of the last pass, and its probability."""
        return self._context.argmax(row)

    def logits_of(self, row: int) -> NDArray[np.float32]:
        """Return a copy of the logits after a row of the last pass, float32 [n_vocab] over the
        model's vocabulary; -inf for tokens that the head, or the list, does not have."""
        return self._context.logits(row)


def _options(target: Context, kind: heads.HeadFormat) -> ContextOptions:
    """Return the options of a head's context."""
    # K and V are stored differently without flash attention
    shared = target.abilities.has_flash_attn if kind.shares_cells else target.options.flash_attn
    return ContextOptions(
        n_ctx=target.n_cells + N_CTX_UNIT * kind.needs_room,
        n_batch=max(target.n_batch, kind.n_block),
        n_threads=target.n_threads,
        n_seq_max=target.n_seq_max,
        flash_attn=shared,
        is_causal=kind.is_causal,
    )


def _file(model: Model, path: Path | None) -> heads.HeadFile:
    if path is not None:
        return heads.check(path, model.file)
    if model.own_head is None:
        raise no_own_head(model)
    return model.own_head


def no_own_head(model: Model) -> ArgumentError:
    """Return the error for a model without a usable head in its file."""
    if model.head_fault:
        what = f"the draft head in {model.path.name} cannot be used: {model.head_fault}"
        why = f"{what}; give another: "
    else:
        why = "this model has no draft head; give one: "
    return ArgumentError(f'{why}draft="head:FILE" (--draft head:FILE)')
