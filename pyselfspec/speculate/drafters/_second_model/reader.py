"""A second model that reads a text to draft for it; shared by drafters with a model of their
own."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ....costs.lookup import costs_with_second
from ....costs.table import CostTable
from ....errors import ArgumentError, ContextFullError, UnsupportedError
from ....runtime.context import Context
from ....runtime.context_options import N_CTX_UNIT
from ....runtime.kv import KVSequence
from ....runtime.model import Model, open_beside
from ....runtime.passes import Head, Outputs, Pass, Rows
from ....runtime.sequence_table import n_common
from ....util.closable import Closing
from ...context_state import kept
from ...limits import DraftLimit, Pick
from ...types import Draft
from .. import Drafter
from .._chain import extended

N_CATCH_UP = 8  # unread tokens that the first draft pass reads along; more take passes of their own


class SecondModel(Closing):
    """A model in a context of its own, with the settings of the texts' context.

    n_ctx: most tokens of all texts together, in its own tokens; capped at its training length for
        each.

    Raises ModelFileError for a file that is not a model, ArgumentError for a model that was trained
    on shorter texts than its target and the texts' context hold, UnsupportedError for a model whose
    memory cannot roll back.
    """

    def __init__(self, context: Context, path: Path, n_ctx: int) -> None:
        target = context.model
        with ExitStack() as stack:
            model = stack.enter_context(open_beside(target, path, n_ctx))
            n_trained = model.n_ctx_train or n_ctx
            self.context = model.context(
                n_ctx=min(n_ctx, n_trained * context.n_seq_max),
                n_batch=context.n_batch,
                n_threads=context.n_threads,
                n_seq_max=context.n_seq_max,
                flash_attn=context.options.flash_attn,
            )
            if not self.context.abilities.can_rollback:
                raise UnsupportedError(
                    f"{path.name} cannot draft: the memory of architecture "
                    f"{model.file.architecture} cannot take tokens back"
                )
            if n_trained < min(context.n_ctx, target.n_ctx_train or context.n_ctx):
                n_most = n_trained // N_CTX_UNIT * N_CTX_UNIT  # contexts are rounded up
                advice = f"; give n_ctx (-c) of at most {n_most}" if n_most else ""
                raise ArgumentError(
                    f"{path.name} was trained on texts of up to {n_trained} tokens and cannot "
                    f"draft in a context of {context.n_ctx}{advice}"
                )
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()


def opened(
    context: Context, path: Path, check: Callable[[Model], None], n_ctx: int | None = None
) -> Context:
    """Return the context of a second model for all texts of this context, which closes it.

    check: raises an error for a model that is not allowed. n_ctx: see SecondModel; default: that of
        this context.
    """
    context.abilities.require_drafts()

    def open_it() -> SecondModel:
        with ExitStack() as stack:
            second = stack.enter_context(SecondModel(context, path, n_ctx or context.n_cells))
            check(second.context.model)
            stack.pop_all()
        return second

    return kept(context, SecondModel, (path, n_ctx), open_it).context


class CannotReadError(Exception):
    """The text is too long for the second model, or has tokens that it does not have."""


class TextReader:
    """A second model that reads one text, in the sequence with the text's id.

    It keeps the K/V of what it has read, so that it decodes new tokens only.

    tokens: the text at the beginning.
    """

    def __init__(self, context: Context, seq_id: int, tokens: Sequence[int]) -> None:
        self._context = context
        self._seq = context.sequence(seq_id)
        self._seq.occupy()
        self._held = list(tokens[: self._seq.keep(tokens)])
        self._row = 0  # of the last pass, that of the last token

    def read(
        self,
        tokens: Sequence[int],
        n_same: int = 0,
        *,
        outputs: Outputs = "last",
        head: Head | None = None,
    ) -> None:
        """Read the part of this text that is not held already.

        n_same: tokens at its beginning that certainly equal those that were read last time.
        outputs: "last" for an output after the last token, which then always goes through a pass.
        head: kind of that output, see Pass; default: what ``likeliest`` needs.

        Raises CannotReadError.
        """
        del self._held[self._seq.n_past :]  # others may have taken its room meanwhile
        n = min(n_same, len(self._held))
        n += n_common(self._held[n:], tokens[n:])
        if outputs == "last":
            n = min(n, len(tokens) - 1)
        self._forget(n)
        n_batch, what = self._context.n_batch, Pass(head=head or self._context.best_head)
        for pos in range(len(self._held), len(tokens), n_batch):
            part = tokens[pos : pos + n_batch]
            is_last = pos + len(part) == len(tokens)
            self._run(pos, part, outputs if is_last else "none", what)

    def likeliest(self) -> tuple[int, float]:
        """Return the most likely token after what was read last, and its probability, 0..1."""
        return self._context.argmax(self._row)

    def logits(self) -> NDArray[np.float32]:
        """Return the logits after what was read last, float32 [n_vocab]; needs the head
        "logits"."""
        return self._context.logits(self._row)

    def close(self) -> None:
        """Release its cells. Until they are taken, the next text of this sequence reuses the common
        prefix."""
        self._context.sequence_table.vacate(self._seq.seq_id)

    def _run(self, pos: int, part: Sequence[int], outputs: Outputs, what: Pass) -> None:
        if max(part) >= self._context.model.n_vocab:
            raise CannotReadError
        rows = Rows.of(self._seq.seq_id, pos, part, outputs)
        try:
            self._context.run(rows, what)
        except ContextFullError:
            self._drop_ended_texts()
            try:
                self._context.run(rows, what)
            except ContextFullError:
                raise CannotReadError from None
        self._held += part
        self._seq.set_tokens(self._held)
        self._row = len(part) - 1

    def _forget(self, n: int) -> None:
        if n < len(self._held):
            n = self._seq.can_keep(n)
            self._seq.rollback(n)
            del self._held[n:]

    def _drop_ended_texts(self) -> None:
        for seq_id in range(self._context.n_seq_max):
            if self._context.sequence_table.is_free(seq_id):
                self._context.sequence(seq_id).drop()


class SecondModelDrafter(Drafter):
    """A drafter that runs a second model.

    Passes of the second model run at once: they are not requested, since they are not passes of the
    text's context, and generations do not share them.

    second: the second model's context.
    """

    def __init__(self, context: Context, second: Context) -> None:
        super().__init__(context)
        self._second = second
        self._opened: TextReader | None = None
        self._n_read = 0  # tokens of the text when it was read last

    def costs(self) -> CostTable:
        return costs_with_second(self._context, self._second.model.file.weight_bytes())

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        """Read the prompt, so that the time counts as the prompt's."""
        self.close()
        self._n_read = 0
        tokens, _ = self._reading(history)  # all of them may be in the sequence already
        self._opened = TextReader(self._second, seq.seq_id, tokens)
        self._catch_up(history)

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        return self.extend(Draft(), history, limit)

    def extend(self, start: Draft, history: Sequence[int], limit: DraftLimit) -> Draft:
        """Return a draft that begins with ``start``. The first pass runs its tokens as well."""
        if limit.n_max == 0:
            return start
        begin = time.perf_counter_ns()
        if len(history) - self._n_read > N_CATCH_UP:
            self._catch_up(history)
        begin_draft = time.perf_counter_ns()
        catch_up_us = (begin_draft - begin) // 1000
        try:
            picks = self._picks([*history, *start.token_ids], limit)
            draft = extended(start, picks, limit, self._context.model.is_eog, self.name)
        except CannotReadError:
            return replace(start, catch_up_us=catch_up_us)
        finally:
            self._n_read = len(history)
        if not draft.n_passed_or_dropped:
            return replace(start, catch_up_us=catch_up_us)
        us = (time.perf_counter_ns() - begin_draft) // 1000
        return replace(draft, draft_us=max(1, us), catch_up_us=catch_up_us)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _reader(self) -> TextReader:
        assert self._opened is not None, "no text has begun"
        return self._opened

    def _catch_up(self, history: Sequence[int]) -> None:
        """Read the text but for its last token, if possible; if not, drafting fails as well."""
        with suppress(CannotReadError):
            tokens, n_same = self._reading(history)
            self._reader.read(tokens[:-1], n_same, outputs="none")
        self._n_read = len(history)

    @abstractmethod
    def _reading(self, text: Sequence[int]) -> tuple[Sequence[int], int]:
        """Return a text of the first model in tokens of the second one, and how many at its
        beginning certainly equal the tokens that were read last."""

    @abstractmethod
    def _picks(self, text: Sequence[int], limit: DraftLimit) -> Iterator[Pick]:
        """Yield tokens of the first model to follow a text. They need not keep to the limit, which
        tells what is not worth a pass, and how to select a token. Raises CannotReadError."""
