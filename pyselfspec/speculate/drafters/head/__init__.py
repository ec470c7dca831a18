"""Draft with a head: a small network that reads hidden states of the model's own passes. It is a
file of its own, or the last blocks of the model's file.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test", https://arxiv.org/abs/2503.01840. Heads are GGUF files as llama.cpp's converter writes them,
trained for one model; see gguf/heads for the kinds, and what must match. Assistants for Gemma 4
have no K and V: they attend to the model's. DFlash drafts a block of tokens in one pass (Chen et
al., https://arxiv.org/abs/2602.06036). Heads in the model's file: DeepSeek-AI, "DeepSeek-V3
Technical Report", section 2.2, https://arxiv.org/abs/2412.19437.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ....costs.lookup import costs_with_second
from ....costs.table import CostTable
from ....errors import ContextFullError, SelfSpecError
from ....gguf import heads
from ....masks.layer_mask import LayerMask
from ....runtime.context import Context
from ....runtime.draft_head import DraftHead, no_own_head
from ....runtime.kv import KVSequence
from ....runtime.model import Model
from ....runtime.passes import Hidden
from ....runtime.short_list import ShortList
from ...context_state import kept
from ...limits import DraftLimit, Pick
from ...types import Draft, Verdict
from .. import Drafter
from .. import _short_list as short_lists
from .._chain import extended
from .._second_model.reader import N_CATCH_UP
from .._short_list import Shortened
from .chained import ChainedSequence
from .sequence import N_WAITING, BlockSequence, HeadSequence, SharedSequence

# Of 262,144 tokens, as many lowered an acceptance rate from 0.685 to 0.665; see benchmarks/LOG.md.
SHORTLIST = 32_768


class HeadWarning(UserWarning):
    """The file of the trained head does not match the model."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the drafter.

    path: the GGUF file of a head for this model; None: the head in the model's own file.
    shortlist: number of tokens that drafts choose from, or are drawn from, see _short_list.py; 0:
        all.
    """

    path: Path | None = None
    shortlist: int = 0

    def __post_init__(self) -> None:
        short_lists.require(self.shortlist)


def suggested(context: Context, mask: LayerMask | None) -> Options | None:
    """Return options if the model's file has a head or one was trained for it."""
    if not context.abilities.max_rollback:  # each rejection would cost a further pass
        return None
    if context.model.own_head is not None:
        return Options(shortlist=_suggested_shortlist(context))
    path = _tuned(context.model)
    return None if path is None else Options(path)


def _suggested_shortlist(context: Context) -> int:
    """Return the length of a short list that makes drafts cheaper and loses few of them; 0 where
    the vocabulary is too small to gain from one."""
    is_large = context.model.n_vocab >= 3 * SHORTLIST
    return SHORTLIST if is_large and context.can_shorten else 0


def _tuned(model: Model) -> Path | None:
    """Return the head that ``tune`` trained for a model. Warns if the file does not match."""
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


def make(context: Context, options: Options) -> HeadDrafter:
    """Return a drafter. The head is opened once for all texts of a context.

    Raises ModelFileError or ArgumentError for a file that is not a head for this model, and
    UnsupportedError for a memory that cannot roll back. If the architecture cannot return the
    hidden states that the head reads, the first pass over a prompt raises.
    """
    path = None if options.path is None else Path(options.path)
    if path is None and context.model.own_head is None:
        raise no_own_head(context.model)
    context.abilities.require_drafts()
    opened = kept(context, Heads, path, lambda: Heads(context, DraftHead(context, path)))
    short = short_lists.of(context, options.shortlist) if opened.head.can_shorten else None
    return HeadDrafter(context, opened, short)


class Heads:
    """A head for a context, and its state for the text of each sequence."""

    def __init__(self, context: Context, head: DraftHead) -> None:
        self.head = head
        self._context = context
        self._texts: dict[int, HeadSequence] = {}

    def text(self, seq_id: int) -> HeadSequence:
        if seq_id not in self._texts:
            self._texts[seq_id] = _empty_text(self.head, seq_id)
        return self._texts[seq_id]

    def make_room(self) -> None:
        """Forget texts that the context has dropped."""
        for seq_id, seen in self._texts.items():
            seen.truncate(min(len(seen.tokens), self._context.sequence(seq_id).n_past))


def _empty_text(head: DraftHead, seq_id: int) -> HeadSequence:
    """Return the state of a head for an empty text in a sequence."""
    kind, seq = head.kind, head.sequence(seq_id)
    if kind.shares_cells:
        return SharedSequence(head, seq)
    if kind.n_block:
        return BlockSequence(head, seq)
    return ChainedSequence(head, seq) if kind.n_chained > 1 else HeadSequence(head, seq)


class HeadDrafter(Drafter):
    """Drafts the most likely tokens, or drawn ones if the limit has ``draw``, each from the hidden
    states of the one before it.

    It cannot extend a draft of looked-up tokens, since their states are not known yet.
    """

    name = "head"

    def __init__(self, context: Context, opened: Heads, short: ShortList | None = None) -> None:
        super().__init__(context)
        self._short = Shortened(short)
        self._heads = opened
        self._file = opened.head.file
        self._text = opened.text(0)

    def costs(self) -> CostTable:
        """Return estimates by the bytes of the head's weights."""
        return costs_with_second(self._context, self._file.n_bytes_read)

    # reading hidden states

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return self._heads.head.blocks

    def n_seen(self, seq: KVSequence, history: Sequence[int]) -> int:
        return self._heads.text(seq.seq_id).n_seen(history)

    def on_hidden(self, seq: KVSequence, pos: int, tokens: Sequence[int], states: Hidden) -> None:
        seen = self._heads.text(seq.seq_id)
        seen.truncate(pos)
        if pos != len(seen.tokens):
            return  # there was no room for the beginning
        if len(seen.waiting) + len(tokens) > N_WAITING:
            self._run_waiting(seen, [*seen.tokens, tokens[0]])
        if pos == len(seen.tokens):
            seen.append(tokens, states.numpy())

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._short.begin(history)
        self._text = self._heads.text(seq.seq_id)
        if self._text.n_seen(history) == len(history) - 1:
            self._text.truncate(len(history) - 1)
            self._run_waiting(self._text, history[:-1])

    def _run_waiting(self, seen: HeadSequence, text: Sequence[int]) -> None:
        """Run the rows of a text but for the last token's; without room for them, go on without
        drafts."""
        try:
            seen.catch_up(text, len(text) - 1)
            return
        except ContextFullError:
            self._heads.make_room()
        try:
            seen.catch_up(text, len(text) - 1)
        except ContextFullError:
            seen.truncate(0)

    # drafting

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        self._short.update(history)
        seen = self._text
        n_past = len(history) - 1
        if limit.n_max == 0 or n_past == 0 or seen.n_seen(history) < n_past:
            return Draft()
        seen.truncate(n_past)
        begin = time.perf_counter_ns()
        if len(seen.waiting) > N_CATCH_UP:
            self._run_waiting(seen, history[:-1])
        start = time.perf_counter_ns()
        try:
            picks = self._picks(seen, history, limit)
            draft = extended(Draft(), picks, limit, self._context.model.is_eog, self.name)
        finally:
            seen.undo()
        us = (time.perf_counter_ns() - start) // 1000
        return replace(draft, draft_us=max(1, us), catch_up_us=(start - begin) // 1000)

    def _picks(
        self, seen: HeadSequence, history: Sequence[int], limit: DraftLimit
    ) -> Iterator[Pick]:
        head = self._heads.head
        what = self._short.head(head.best_head, needs_logits=limit.draw is not None)
        row: int | None = seen.lead(history, what, self._short.tokens)
        while row is not None:
            pick = limit.select(head, row)
            if seen.confidence is not None:
                pick = pick._replace(p=float(seen.confidence[row]))
            yield pick
            row = seen.follow(pick.token, what, self._short.tokens)

    def on_verified(self, draft: Draft, verdict: Verdict, best: Callable[[int], int]) -> None:
        self._short.on_verified(draft, verdict, best)
