"""A second model that follows a text, to draft for it: what drafters with a model of their own
share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..costs.calibration import costs_of_second
from ..costs.table import CostTable
from ..errors import ArgumentError, ContextFullError, UnsupportedError
from ..runtime.context import N_CTX_UNIT, Context, Decoded
from ..runtime.kv import KVSequence
from ..runtime.ledger import n_common
from ..runtime.model import Model
from ..runtime.passes import Head, Outputs, Pass, Rows
from ..util.closing import Closing
from . import learned
from .types import After, Draft, DraftLimit, Verdict

N_LATE = 8  # tokens behind the text that a first pass takes in passing


class SecondModel(Closing):
    """A model in a context of its own that is like that of the texts.

    n_ctx: most tokens of all texts together in its own tokens; no more than it was trained for.

    Raises ModelFileError for a file that is no model, ArgumentError for a model that was trained on
    shorter texts than the context of the texts holds, UnsupportedError for one whose memory cannot
    take tokens back.
    """

    def __init__(self, context: Context, path: Path, n_ctx: int) -> None:
        target = context.model
        with ExitStack() as stack:
            model = Model(
                path,
                n_gpu_layers=None if target.n_gpu_layers else 0,
                split_mode=target.split_mode,
                main_gpu=target.main_gpu,
            )
            stack.callback(model.close)
            n_trained = model.n_ctx_train or n_ctx
            self.context = model.context(
                n_ctx=min(n_ctx, n_trained),
                n_batch=context.n_batch,
                n_threads=context.n_threads,
                n_seq_max=context.n_seq_max,
                flash_attn=context.flash_attn,
            )
            if not self.context.can_rollback:
                raise UnsupportedError(
                    f"{path.name} cannot draft: the memory of architecture "
                    f"{model.file.architecture} cannot take tokens back"
                )
            if n_trained < context.n_ctx:
                n_most = n_trained // N_CTX_UNIT * N_CTX_UNIT  # contexts are rounded up
                raise ArgumentError(
                    f"{path.name} was trained on texts of up to {n_trained} tokens and cannot "
                    f"draft in a context of {context.n_ctx}"
                    + (f"; give n_ctx of at most {n_most}" if n_most else "")
                )
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()


def opened(
    context: Context, path: Path, check: Callable[[Model], None], n_ctx: int | None = None
) -> Context:
    """The context of a second model, for all texts of this one, which closes it.

    check: raises what speaks against it. n_ctx: see SecondModel; default: as many as the texts'.
    """
    context.require_rollback()

    def open_it() -> SecondModel:
        with ExitStack() as stack:
            second = stack.enter_context(SecondModel(context, path, n_ctx or context.n_ctx))
            check(second.context.model)
            stack.pop_all()
        return second

    return context.once(("second model", path, n_ctx), open_it).context


class CannotReadError(Exception):
    """The text has become too long for the second model, or holds tokens that it does not have."""


class TextReader:
    """A second model that reads one text, in the sequence that has the text's number.

    Keeps the K/V of what it has read, so that it decodes only what is new.

    tokens: of the text, to begin with. head: what its passes leave, see Pass; default: what
        ``likeliest`` needs.
    """

    def __init__(
        self, context: Context, seq_id: int, tokens: Sequence[int], head: Head | None = None
    ) -> None:
        self._context = context
        self._pass = Pass(head=head or context.best_head)
        self._seq = context.sequence(seq_id)
        self._seq.claim()
        self._held = list(tokens[: self._seq.keep(tokens)])
        self._row = 0  # of the last pass, that of the last token
        self._decoded: Decoded | None = None

    def read(self, tokens: Sequence[int], n_same: int = 0, *, outputs: Outputs = "last") -> None:
        """Read this text, all that is not held already.

        n_same: tokens at its beginning that are known to be those that were read last time.
        outputs: "last" for an answer to the last token, which then goes through a pass in any case.

        Raises CannotReadError.
        """
        del self._held[self._seq.n_past :]  # others may have taken its room meanwhile
        n = min(n_same, len(self._held))
        n += n_common(self._held[n:], tokens[n:])
        if outputs == "last":
            n = min(n, len(tokens) - 1)
        self._forget(n)
        n_batch = self._context.n_batch
        for pos in range(len(self._held), len(tokens), n_batch):
            part = tokens[pos : pos + n_batch]
            is_last = pos + len(part) == len(tokens)
            self._run(pos, part, outputs if is_last else "none")

    def likeliest(self) -> tuple[int, float]:
        """The token that follows what was read last, and its probability, 0..1."""
        return self._context.argmax(self._row)

    def logits(self) -> NDArray[np.float32]:
        """Of what follows, float32 [n_vocab]; with the head "logits" only."""
        assert self._decoded is not None, "nothing was read"
        [row] = self._decoded.rows()
        return row

    def close(self) -> None:
        """Others may have its room; until then the next text of this sequence finds what it has in
        common with this one."""
        self._context.ledger.release(self._seq.seq_id)

    def _run(self, pos: int, part: Sequence[int], outputs: Outputs) -> None:
        if max(part) >= self._context.model.n_vocab:
            raise CannotReadError
        rows = Rows.of(self._seq.seq_id, pos, part, outputs)
        try:
            self._decoded = self._context.run(rows, self._pass)
        except ContextFullError:
            self._drop_ended_texts()
            try:
                self._decoded = self._context.run(rows, self._pass)
            except ContextFullError:
                raise CannotReadError from None
        self._held += part
        self._seq.holds(self._held)
        self._row = len(part) - 1

    def _forget(self, n: int) -> None:
        if n < len(self._held):
            n = self._seq.can_keep(n)
            self._seq.rollback(n)
            del self._held[n:]

    def _drop_ended_texts(self) -> None:
        for seq_id in range(self._context.n_seq_max):
            if self._context.ledger.is_free(seq_id):
                self._context.sequence(seq_id).drop()


def chain(
    copied: Draft,
    guesses: Iterable[tuple[int, float]],
    limit: DraftLimit,
    is_eog: Callable[[int], bool],
) -> Draft:
    """A draft that begins with these tokens and goes on with guesses, as far as the limit allows.

    guesses: tokens with their probabilities, each asked for only when it is needed.
    """
    n_copied = len(copied.tokens)
    tokens, probs = list(copied.tokens), list(copied.probs or ())
    dropped = None
    for token, p in guesses:
        after = limit.after([*probs[n_copied:], p])
        # an end of the text need not be drafted: the verification pass draws that token anyway
        if after is After.DROP or is_eog(token):
            dropped = (token, p)
            break
        tokens.append(token)
        probs.append(p)
        if after is After.STOP:
            break
    return Draft(tuple(tokens), probs=tuple(probs), dropped=dropped, n_copied=n_copied)


class SecondModelDrafter(ABC):
    """A drafter that asks a second model; see ``drafters.Drafter`` and ``drafters.GoesOn``.

    Passes of the second model are made on the spot: they are no requests to the text's context, and
    every text makes its own.

    second: the second model's context.
    """

    mask = None
    name: str  # as users call it
    head: Head | None = None  # what passes of the second model leave, see TextReader

    def __init__(self, context: Context, second: Context) -> None:
        self._context = context
        self._second = second
        self._opened: TextReader | None = None
        self._n_read = 0  # tokens of the text when it was read last

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"drafter": self.name, "model": self._second.model.fingerprint}

    def costs(self) -> CostTable:
        n_bytes, widths = self._second.model.file.weight_bytes(), learned.widths(self._context)
        return costs_of_second(self._context, n_bytes, self.identity, widths)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        """Reads the prompt, so that its time counts as the prompt's."""
        self.close()
        self._n_read = 0
        tokens, _ = self._reading(history)  # all of them may be in the sequence already
        self._opened = TextReader(self._second, seq.seq_id, tokens, self.head)
        self._catch_up(history)

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        return self.draft_behind(Draft(), history, limit)

    def draft_behind(self, copied: Draft, history: Sequence[int], limit: DraftLimit) -> Draft:
        """The first pass runs the copied tokens as well."""
        if limit.n_max == 0:
            return copied
        begin = time.perf_counter_ns()
        if len(history) - self._n_read > N_LATE:
            self._catch_up(history)
        start = time.perf_counter_ns()
        late_us = (start - begin) // 1000
        try:
            guesses = self._guesses([*history, *copied.tokens], limit)
            draft = chain(copied, guesses, limit, self._context.model.is_eog)
        except CannotReadError:
            return replace(copied, late_us=late_us)
        finally:
            self._n_read = len(history)
        if draft.n_proposed == len(copied.tokens):
            return replace(copied, late_us=late_us)
        us = (time.perf_counter_ns() - start) // 1000
        return replace(draft, draft_us=max(1, us), late_us=late_us)

    def accept(self, verdict: Verdict) -> None:  # noqa: B027 - the next text tells
        pass

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _reader(self) -> TextReader:
        assert self._opened is not None, "no text has begun"
        return self._opened

    def _catch_up(self, history: Sequence[int]) -> None:
        """Read the text but for its last token. Where that cannot be, drafts find out, too."""
        with suppress(CannotReadError):
            tokens, n_same = self._reading(history)
            self._reader.read(tokens[:-1], n_same, outputs="none")
        self._n_read = len(history)

    @abstractmethod
    def _reading(self, text: Sequence[int]) -> tuple[Sequence[int], int]:
        """A text of the first model in the second one's tokens, and how many at the beginning are
        surely those that were read last."""

    @abstractmethod
    def _guesses(self, text: Sequence[int], limit: DraftLimit) -> Iterator[tuple[int, float]]:
        """Tokens of the first model to follow a text, with their probabilities; the limit is no
        concern but for what is not worth a pass. Raises CannotReadError."""
