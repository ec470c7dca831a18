"""Draft with the model itself, some of its sublayers skipped.

Zhang et al., "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative
Decoding", https://arxiv.org/abs/2309.08168. A mask that skips all later blocks is the exit of
Elhoushi et al., "LayerSkip", https://arxiv.org/abs/2404.16710.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...costs.calibration import costs_for
from ...costs.table import CostTable
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...runtime.passes import Pass, Rows
from ...runtime.short_list import ShortList
from .. import exit_map, short_lists, siblings
from ..exit_map import Jump
from ..requests import Answer, Request, Work
from ..shared_blocks import SharedBlocks
from ..short_lists import Shortened
from ..siblings import P_MIN, Siblings
from ..types import After, Draft, DraftLimit, Law, Pick, Verdict


@dataclass(frozen=True, slots=True)
class Options:
    """mask: what drafts skip; None: the model's own mask, else every other block, as far as the
        architecture allows.
    share: False drafts in a fork also where draft and verification could share blocks.
    shortlist: tokens that drafts look at, see short_lists.py; 0: all of the vocabulary.
    n_siblings: most tokens of a draft that stand beside others, see siblings.py. Where there are
        any, draft and verification share no blocks.
    map: file of a linear map behind the exit that the mask is, see exit_map.py; needs share.
    """

    mask: LayerMask | None = None
    share: bool = True
    shortlist: int = 0
    n_siblings: int = 0
    map: Path | None = None

    def __post_init__(self) -> None:
        short_lists.require(self.shortlist)
        siblings.require(self.n_siblings, self.shortlist)
        if self.map is not None and not self.share:
            raise ArgumentError("map needs the blocks that drafts and checks share: leave share on")


def default_mask(context: Context) -> LayerMask | None:
    """The mask to draft with when none is known: the model's own, else every other block, as far as
    the architecture allows. None where that leaves nothing to skip."""
    model = context.model
    if model.draft_mask is not None:
        return model.draft_mask
    inner, can = LayerMask.alternate(model.n_layer), context.mask_support
    attn, ffn = inner.skip_attn & can.attn, inner.skip_ffn & can.ffn
    return LayerMask(model.n_layer, attn, ffn) if attn or ffn else None


def suggested(context: Context, mask: LayerMask | None) -> Options | None:
    """With a mask that was given, found by a search or trained for. Nothing else: of a model that
    was not trained for it, hardly a sublayer can be left out at random."""
    if mask is None and context.can_rollback and context.n_seq_max > 1:
        mask = context.model.draft_mask
    return None if mask is None else Options(mask)


def make(context: Context, options: Options) -> Drafter:
    mask = options.mask or default_mask(context) or LayerMask.full(context.model.n_layer)
    short = short_lists.of(context, options.shortlist) if context.can_shorten else None
    return Drafter(
        context,
        mask,
        share=options.share,
        short=short,
        n_siblings=options.n_siblings,
        jump=None if options.map is None else _jump(context, options.map, mask),
    )


def _jump(context: Context, path: Path, mask: LayerMask) -> Jump:
    path = Path(path)
    key = ("exit map", path, mask)
    return context.once(key, lambda: Jump(context, exit_map.load(path, context, mask)))


class Drafter:
    """Drafts of the likeliest tokens, or of drawn ones where the limit says so.

    Where the model allows it, drafts are decoded in the text's own sequence and share blocks with
    the verification pass. Else they are decoded in a fork, which sees the full model's K/V of the
    text so far and is dropped before the text needs the place.

    Raises MaskError for a mask of another model.
    """

    def __init__(
        self,
        context: Context,
        mask: LayerMask,
        *,
        share: bool = True,
        short: ShortList | None = None,
        n_siblings: int = 0,
        jump: Jump | None = None,
    ) -> None:
        self._context = context
        self._siblings = Siblings(n_siblings)
        self._jump = jump
        self._short = Shortened(short)
        self._mask = mask.require(context.model.n_layer)
        self.shares = share and SharedBlocks.possible(context, mask)
        if not self.shares:
            context.require_spare()
        self._seq = context.sequence()

    @property
    def mask(self) -> LayerMask:
        return self._mask

    @property
    def identity(self) -> Mapping[str, Any]:
        own = {"drafter": "layer-skip", "mask": self._mask.to_dict(), "shares": self.shares}
        mapped = {} if self._jump is None else {"map": self._jump.sha256}
        return {**own, **self._short.identity, **mapped}

    def costs(self) -> CostTable:
        share = self._short.share(self._context.model.n_vocab)
        run = self._mask if self._jump is None else self._jump.run_besides(self._mask)
        return costs_for(self._context, run, self.shares, self.identity, share)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._seq = seq
        self._short.begin(history)
        self._siblings.begin()

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft | Work[Draft]:
        return self.draft_behind(Draft(), history, limit)

    def draft_behind(
        self, copied: Draft, history: Sequence[int], limit: DraftLimit
    ) -> Draft | Work[Draft]:
        """The first pass runs the copied tokens as well."""
        self._short.saw(history)
        too_wide = len(copied.tokens) >= self._context.pass_width
        if limit.n_max == 0 or too_wide or not (self.shares or self._context.has_spare):
            return copied
        draft = self._shared if self.shares else self._forked
        return draft(copied, history, limit)

    def _shared(self, copied: Draft, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
        n_past, shared = len(history) - 1, SharedBlocks(self._mask)
        with ExitStack() as stack:
            stack.callback(self._seq.undo, n_past)
            drafting = shared.drafting(self._pass(limit))
            draft = yield from self._chain(self._seq, copied, history, limit, drafting, shared)
            if not draft.n_siblings:  # else it is verified from the first block on
                stack.pop_all()
        return draft

    def _forked(self, copied: Draft, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
        with self._context.spare_sequence() as fork:
            self._fork_into(fork)
            drafting = self._pass(limit)
            return (yield from self._chain(fork, copied, history, limit, drafting, None))

    def _fork_into(self, fork: KVSequence) -> None:
        """What drafts see of the text: all of it."""
        self._seq.fork(fork.seq_id)

    def _pass(self, limit: DraftLimit) -> Pass:
        """A draw needs all logits, and so do siblings."""
        if limit.drawing is not None or self._siblings.n_most:
            return Pass(self._mask)
        short = self._short.tokens
        return Pass(self._mask, head="best" if short else self._context.best_head, among=short)

    def _chain(
        self,
        seq: KVSequence,
        copied: Draft,
        history: Sequence[int],
        limit: DraftLimit,
        drafting: Pass,
        shared: SharedBlocks | None,
    ) -> Work[Draft]:
        n_copied = len(copied.tokens)
        text = [history[-1], *copied.tokens]  # and the draft
        n_run = 0  # tokens of it that went through a pass
        probs = list(copied.probs or ())
        laws: list[Law | None] = [None] * n_copied
        dropped = None
        after = After.GO_ON
        found = self._siblings
        found.start()

        while after is After.GO_ON:
            answer, row = yield from self._masked(
                seq, len(history) - 1 + n_run, text[n_run:], drafting, shared
            )
            pick = limit.pick(answer, row)
            if found.wants(pick.p, limit):
                best = (pick.token, pick.p)
                found.offer(len(text) - 1, answer.runners_up(row, best, found.n_most, P_MIN))
            pick = yield from self._surer(pick, seq, len(history) - 1, text, limit, shared)
            n_run = len(text)
            after = limit.after([*probs[n_copied:], pick.p])
            ends = self._context.model.is_eog(pick.token)
            # an end of the text need not be drafted: the verification pass draws that token anyway;
            # but what was drawn may not be dropped for what it is
            if after is After.DROP or (ends and pick.law is None):
                dropped = (pick.likeliest, pick.p)
                break
            text.append(pick.token)
            probs.append(pick.p)
            laws.append(pick.law)
            if ends:
                break
        draft = Draft(
            tuple(text[1:]),
            probs=tuple(probs),
            dropped=dropped,
            n_copied=n_copied,
            laws=tuple(laws) if limit.drawing else (),
        )
        draft = found.beside(draft, limit, self._context)
        if shared is None or draft.n_siblings:
            return draft
        if dropped is None:
            # Not another masked pass and its token to drop: for the same rows to verify, that took
            # 2 to 3 % longer per step (0.85 B, Q8_0 and Q4_0, exit after a quarter), all of it the
            # head.
            rows = Rows.of(seq.seq_id, len(history) - 1 + n_run, text[n_run:], "none")
            answer = yield Request(rows, shared.below())
            shared.keep(answer.hidden)
        return replace(draft, verify=shared.verification())

    def _masked(
        self,
        seq: KVSequence,
        pos: int,
        tokens: Sequence[int],
        drafting: Pass,
        shared: SharedBlocks | None,
    ) -> Work[tuple[Answer, int]]:
        """Run tokens with the mask, from this position on; also says in which row the last is."""
        if shared is None or self._jump is None:
            answer = yield Request(Rows.of(seq.seq_id, pos, tokens, "last"), drafting)
            if shared is not None:
                shared.keep(answer.hidden)
            return answer, len(tokens) - 1
        answer = yield Request(Rows.of(seq.seq_id, pos, tokens, "none"), shared.below())
        shared.keep(answer.hidden)
        assert answer.hidden is not None
        last = pos + len(tokens) - 1
        return (yield self._jump.request(seq, last, tokens[-1], answer.hidden, drafting)), 0

    def _surer(
        self,
        pick: Pick,
        seq: KVSequence,
        pos: int,
        text: Sequence[int],
        limit: DraftLimit,
        shared: SharedBlocks | None,
    ) -> Work[Pick]:
        """What more passes make of a pick; here there are none.

        text: the last token of the text, at this position, and the draft so far.
        """
        return pick
        yield

    def hear(self, draft: Draft, verdict: Verdict, rows: range, best: Callable[[int], int]) -> None:
        self._short.hear(verdict, rows, best)

    def accept(self, verdict: Verdict) -> None:
        self._siblings.accept(verdict)

    def close(self) -> None:
        pass
