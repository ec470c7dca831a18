"""Draft with the model itself, some of its sublayers skipped.

Zhang et al., "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative
Decoding", https://arxiv.org/abs/2309.08168. A mask that skips all later blocks is the exit of
Elhoushi et al., "LayerSkip", https://arxiv.org/abs/2404.16710.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ....costs.lookup import costs_with_mask
from ....costs.table import CostTable
from ....masks.layer_mask import LayerMask
from ....runtime.context import Context
from ....runtime.kv import KVSequence
from ....runtime.passes import Pass, Rows
from ....runtime.short_list import ShortList
from ...limits import DraftLimit
from ...pass_requests import PassRequest, Work
from ...types import Draft, Verdict
from .. import Drafter
from .. import _short_list as short_lists
from .._chain import Chain
from .._short_list import Shortened
from .shared_blocks import SharedBlocks

READS_PICTURES = True  # through the K/V that the model has of them


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the drafter.

    mask: sublayers that draft passes skip; None: the model's own mask, else every other block, as
        far as the architecture allows.
    share: False: draft in a fork even if draft and verification could share blocks.
    shortlist: number of tokens that drafts choose from, or are drawn from, see _short_list.py; 0:
        all.
    """

    mask: LayerMask | None = None
    share: bool = True
    shortlist: int = 0

    def __post_init__(self) -> None:
        short_lists.require(self.shortlist)


def default_mask(context: Context) -> LayerMask | None:
    """Return the mask to draft with by default: the model's own, else every other block, as far as
    the architecture allows; None if nothing can be skipped."""
    model = context.model
    if model.draft_mask is not None:
        return model.draft_mask
    inner, can = LayerMask.alternate(model.n_layer), context.mask_support
    attn, ffn = inner.skip_attn & can.attn, inner.skip_ffn & can.ffn
    return LayerMask(model.n_layer, attn, ffn) if attn or ffn else None


def suggested(context: Context, mask: LayerMask | None) -> Options | None:
    """Return options if a mask was given, found by a search or trained for. Other models lose too
    much by skipping arbitrary sublayers."""
    if mask is None and context.abilities.can_rollback and context.n_seq_max > 1:
        mask = context.model.draft_mask
    return None if mask is None else Options(mask)


def make(context: Context, options: Options) -> LayerSkipDrafter:
    mask = options.mask or default_mask(context) or LayerMask.full(context.model.n_layer)
    short = short_lists.of(context, options.shortlist) if context.can_shorten else None
    return LayerSkipDrafter(context, mask, share=options.share, short=short)


class LayerSkipDrafter(Drafter):
    """Drafts the most likely tokens, or drawn ones if the limit has ``draw``.

    If the model allows it, drafts are decoded in the sequence of the text and share blocks with the
    verification pass. Else they are decoded in a fork, which reads the full model's K/V of the text
    and is dropped after the draft.

    Raises MaskError for a mask of another model.
    """

    name = "layer-skip"

    def __init__(
        self,
        context: Context,
        mask: LayerMask,
        *,
        share: bool = True,
        short: ShortList | None = None,
    ) -> None:
        super().__init__(context)
        self._short = Shortened(short)
        self._mask = mask.require(context.model.n_layer)
        self.shares = share and SharedBlocks.possible(context, mask)
        if not self.shares:
            context.abilities.require_rollback()
            context.require_spare()
        self._seq = context.sequence()

    @property
    def mask(self) -> LayerMask | None:
        return self._mask

    def costs(self) -> CostTable:
        share = self._short.share(self._context.model.n_vocab)
        return costs_with_mask(self._context, self._mask, self.shares, share)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._seq = seq
        self._short.begin(history)

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft | Work[Draft]:
        return self.extend(Draft(), history, limit)

    def extend(
        self, start: Draft, history: Sequence[int], limit: DraftLimit
    ) -> Draft | Work[Draft]:
        """Return a draft that begins with ``start``. The first pass runs its tokens as well."""
        self._short.update(history)
        too_wide = len(start.tokens) >= self._context.abilities.pass_width
        if limit.n_max == 0 or too_wide or not (self.shares or self._context.has_spare):
            return start
        draft = self._shared if self.shares else self._forked
        return draft(start, history, limit)

    def _shared(self, start: Draft, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
        n_past, shared = len(history) - 1, SharedBlocks(self._mask)
        with ExitStack() as stack:
            stack.callback(self._seq.rollback_if_open, n_past)
            drafting = shared.drafting(self._pass(limit))
            draft = yield from self._chain(self._seq, start, history, limit, drafting, shared)
            stack.pop_all()
        return draft

    def _forked(self, start: Draft, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
        with self._context.spare_sequence() as fork:
            self._seq.fork(fork.seq_id)
            drafting = self._pass(limit)
            return (yield from self._chain(fork, start, history, limit, drafting, None))

    def _pass(self, limit: DraftLimit) -> Pass:
        head = self._short.head(self._context.best_head, needs_logits=limit.draw is not None)
        return Pass(self._mask, head=head, among=self._short.tokens)

    def _chain(
        self,
        seq: KVSequence,
        start: Draft,
        history: Sequence[int],
        limit: DraftLimit,
        drafting: Pass,
        shared: SharedBlocks | None,
    ) -> Work[Draft]:
        text = [history[-1], *start.token_ids]  # and the draft
        n_run = 0  # tokens of it that went through a pass
        chain = Chain(start, limit, self._context.model.is_eog, self.name)

        while chain.is_open:
            rows = Rows.of(seq.seq_id, len(history) - 1 + n_run, text[n_run:], "last")
            result = yield PassRequest(rows, drafting)
            if shared is not None:
                shared.keep(result.hidden)
            pick = limit.select(result, len(rows) - 1)
            n_run = len(text)
            chain.add(pick)
            if chain.dropped is None:
                text.append(pick.token)
        draft = chain.draft()
        if shared is None:
            return draft
        if chain.dropped is None:
            # Another masked pass, whose token is dropped, would verify as many rows but took 2 to
            # 3 % longer per step (0.85 B, Q8_0 and Q4_0, exit after a quarter): the output layer.
            rows = Rows.of(seq.seq_id, len(history) - 1 + n_run, text[n_run:], "none")
            result = yield PassRequest(rows, shared.below())
            shared.keep(result.hidden)
        return replace(draft, verification=shared.verification())

    def on_verified(self, draft: Draft, verdict: Verdict, best: Callable[[int], int]) -> None:
        self._short.on_verified(draft, verdict, best)
