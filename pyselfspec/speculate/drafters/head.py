"""Draft with a head: a small model that reads the states of the model's own passes. It is a file of
its own, or a block that the model's file has behind the others.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test", https://arxiv.org/abs/2503.01840. Heads are GGUF files as llama.cpp's converter writes them,
trained for one model; see gguf/heads.py for what has to fit. Of a model's own heads: DeepSeek-AI,
"DeepSeek-V3 Technical Report", section 2.2, https://arxiv.org/abs/2412.19437.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...costs.calibration import costs_of_second
from ...costs.table import CostTable
from ...errors import ArgumentError, ContextFullError, SelfSpecError
from ...gguf import heads
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.draft_head import DraftHead
from ...runtime.kv import KVSequence
from ...runtime.model import Model
from ...runtime.passes import Head, Hidden, Rows
from ...runtime.short_list import ShortList
from .. import learned, short_lists, siblings
from ..head_text import N_WAITING, HeadText
from ..second_model import N_LATE, chain
from ..short_lists import Shortened
from ..siblings import P_MIN, Siblings
from ..types import Draft, DraftLimit, Verdict


class HeadWarning(UserWarning):
    """A file in the place of a trained head that is none for the model."""


@dataclass(frozen=True, slots=True)
class Options:
    """path: the GGUF file of a head for this model; None: the head that the model's own file
    brings.
    shortlist: tokens that drafts look at, see short_lists.py; 0: all of the vocabulary.
    n_siblings: most tokens of a draft that stand beside others, see siblings.py.
    """

    path: Path | None = None
    shortlist: int = 0
    n_siblings: int = 0

    def __post_init__(self) -> None:
        short_lists.require(self.shortlist)
        siblings.require(self.n_siblings, self.shortlist)


def suggested(context: Context, mask: LayerMask | None) -> Options | None:
    """Where the model brings a head of its own, or one was trained for it."""
    if not context.can_rollback:
        return None
    if context.model.own_head is not None:
        return Options()
    path = _tuned(context.model)
    return None if path is None else Options(path)


def _tuned(model: Model) -> Path | None:
    """The head that ``tune`` left for a model. Warns of a file that is no use."""
    if not heads.has_tuned():
        return None
    path = heads.tuned_path(model.fingerprint)
    if not path.exists():
        return None
    try:
        heads.check(path, model.file)
    except SelfSpecError as error:
        warnings.warn(f"{error}; it is ignored until then", HeadWarning, stacklevel=2)
        return None
    return path


def make(context: Context, options: Options) -> Drafter:
    """The head is opened once for all texts of a context.

    Raises ModelFileError or ArgumentError for a file that is no head for this model, and
    UnsupportedError for a memory that takes no tokens back. Where an architecture's passes cannot
    leave what the head reads, the first pass over a prompt says so.
    """
    path = None if options.path is None else Path(options.path)
    if path is None and context.model.own_head is None:
        raise ArgumentError('this model has no draft head; give one: draft="head:FILE"')
    context.require_rollback()
    opened = context.once(("draft head", path), lambda: Heads(context, DraftHead(context, path)))
    short = short_lists.of(context, options.shortlist) if opened.head.can_shorten else None
    return Drafter(context, opened, short, options.n_siblings)


class Heads:
    """A head beside a context, and what it knows of the texts there, by sequence."""

    def __init__(self, context: Context, head: DraftHead) -> None:
        self.head = head
        self._context = context
        self._texts: dict[int, HeadText] = {}

    def text(self, seq_id: int) -> HeadText:
        if seq_id not in self._texts:
            self._texts[seq_id] = HeadText(self.head, self.head.sequence(seq_id))
        return self._texts[seq_id]

    def make_room(self) -> None:
        """Forget what the context has dropped."""
        for seq_id, seen in self._texts.items():
            seen.cut(min(len(seen.tokens), self._context.sequence(seq_id).n_past))


class Drafter:
    """Greedy drafts, each token from the states that the one before it left.

    The model's passes over the text leave the states that the head reads, see ``Follows``. Behind
    tokens that were looked up it does not draft: their states are not known yet.
    """

    mask = None

    def __init__(
        self,
        context: Context,
        opened: Heads,
        short: ShortList | None = None,
        n_siblings: int = 0,
    ) -> None:
        self._context = context
        self._siblings = Siblings(n_siblings)
        self._short = Shortened(short)
        self._heads = opened
        # siblings are found among the logits
        self._what: Head = "best" if short else "logits" if n_siblings else opened.head.best_head
        self._file = opened.head.file
        self._text = opened.text(0)

    @property
    def identity(self) -> Mapping[str, Any]:
        file = self._file
        own = {"drafter": "head", "file": file.file.path.name, "n_bytes_read": file.n_bytes_read}
        return {**own, **self._short.identity}

    def costs(self) -> CostTable:
        """As measured, else by the bytes of the head's weights."""
        n_bytes, widths = self._file.n_bytes_read, learned.widths(self._context)
        return costs_of_second(self._context, n_bytes, self.identity, widths)

    # reading the states of the text

    @property
    def leave(self) -> tuple[int, ...]:
        return self._heads.head.blocks

    def known(self, seq: KVSequence, history: Sequence[int]) -> int:
        return self._heads.text(seq.seq_id).known(history)

    def saw(self, seq: KVSequence, pos: int, tokens: Sequence[int], states: Hidden) -> None:
        seen = self._heads.text(seq.seq_id)
        seen.cut(pos)
        if pos != len(seen.tokens):
            return  # it had no room for the beginning
        if len(seen.waiting) + len(tokens) > N_WAITING:
            self._run_waiting(seen, [*seen.tokens, tokens[0]])
        if pos == len(seen.tokens):
            seen.saw(tokens, states.numpy())

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._short.begin(history)
        self._siblings.begin()
        self._text = self._heads.text(seq.seq_id)
        if self._text.known(history) == len(history) - 1:
            self._text.cut(len(history) - 1)
            self._run_waiting(self._text, history[:-1])

    def _run_waiting(self, seen: HeadText, text: Sequence[int]) -> None:
        """Run the rows of a text, all but the last token's; where the head has no room for them, go
        on without drafts."""
        try:
            seen.catch_up(text, len(text) - 1)
            return
        except ContextFullError:
            self._heads.make_room()
        try:
            seen.catch_up(text, len(text) - 1)
        except ContextFullError:
            seen.cut(0)

    # drafting

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        self._short.saw(history)
        seen = self._text
        n_past = len(history) - 1
        if limit.n_max == 0 or n_past == 0 or seen.known(history) < n_past:
            return Draft()
        seen.cut(n_past)
        begin = time.perf_counter_ns()
        if len(seen.waiting) > N_LATE:
            self._run_waiting(seen, history[:-1])
        start = time.perf_counter_ns()
        try:
            self._siblings.start()
            guesses = self._guesses(seen, history, limit)
            draft = chain(Draft(), guesses, limit, self._context.model.is_eog)
            draft = self._siblings.beside(draft, limit, self._context)
        finally:
            seen.back()
        us = (time.perf_counter_ns() - start) // 1000
        return replace(draft, draft_us=max(1, us), late_us=(start - begin) // 1000)

    def _guesses(
        self, seen: HeadText, history: Sequence[int], limit: DraftLimit
    ) -> Iterator[tuple[int, float]]:
        head, seq_id = self._heads.head, seen.seq.seq_id
        states, row = seen.lead(history, self._what, self._short.tokens)
        first = pos = len(history) - 1 + head.n_first
        while True:
            token, p = head.argmax(row)
            if self._siblings.wants(p, limit):
                others = head.runners_up(row, (token, p), self._siblings.n_most, P_MIN)
                self._siblings.offer(pos - first, others)
            yield token, p
            rows = Rows.of(seq_id, pos, [token], "last")
            states, row = head.decode(rows, states, self._what, self._short.tokens), 0
            pos += 1

    def hear(self, draft: Draft, verdict: Verdict, rows: range, best: Callable[[int], int]) -> None:
        self._short.hear(verdict, rows, best)

    def accept(self, verdict: Verdict) -> None:
        self._siblings.accept(verdict)

    def close(self) -> None:
        pass
