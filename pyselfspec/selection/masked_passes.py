"""Many masked passes over the same tokens; blocks that they share with a base mask run once.

Up to the first block where a mask differs from the base, all passes compute the same. The hidden
states that enter that block are computed once with the base mask, and the masked passes start from
them. Later blocks read nothing of earlier ones, K/V included, so results are identical bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import UnsupportedError
from ..masks.layer_mask import LayerMask, entry
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from ..runtime.pass_result import PassResult
from ..runtime.passes import Hidden, Outputs


@dataclass(frozen=True, slots=True)
class TextPart:
    """Tokens that are decoded in one pass, from position pos on."""

    tokens: tuple[int, ...]
    pos: int
    outputs: Outputs


class MaskedPasses:
    """Runs masks over parts of a text. Masks in the order of their `entry` share most; other
    orders give the same results but run from the first block.

    parts: every mask decodes all of them.
    place: returns the sequence for the part at a position, which holds the tokens before it only.
    cache_bytes: memory limit for kept states; if they do not fit, nothing is shared.
    """

    def __init__(
        self,
        context: Context,
        parts: Sequence[TextPart],
        base: LayerMask,
        place: Callable[[int], KVSequence],
        cache_bytes: int,
    ) -> None:
        self._context = context
        self._parts = tuple(parts)
        self._base = base
        self._place = place
        n_tokens = sum(len(part.tokens) for part in self._parts)
        self._shares = n_tokens * context.model.n_embd * 4 <= cache_bytes
        self._at = 0  # the block that the kept states enter
        self._states: list[Hidden] = []
        self.n_sublayers = 0  # attention and feed-forward sublayers run so far, times tokens

    def run(self, mask: LayerMask) -> Iterator[PassResult]:
        """Yield all parts decoded with a mask. Read the logits of each before the next."""
        target = entry(self._base, mask)
        try:
            if self._shares:
                self._advance(target)
            yield from self._decode_all(mask, self._at if target >= self._at else 0)
        except UnsupportedError:
            if self._at == 0:
                raise
            self._shares, self._at = False, 0  # this architecture cannot start from hidden states
            yield from self._decode_all(mask, 0)

    def _advance(self, to: int) -> None:
        """Replace the kept states with the states that enter block `to`, if it is a later block."""
        if to <= self._at:
            return
        outside = set(range(self._at)) | set(range(to, self._base.n_layer))
        n_skipped = len(self._base.skip_attn | outside) + len(self._base.skip_ffn | outside)
        if n_skipped == 2 * self._base.n_layer:  # the base runs nothing in between
            self._at = to if self._at else 0
            return
        between = self._base | LayerMask.skipping(self._base.n_layer, attn=outside, ffn=outside)
        states = []
        for decoded in self._decode_all(between, self._at, hidden_at=to):
            assert decoded.hidden is not None
            states.append(decoded.hidden)
        self._at, self._states = to, states

    def _decode_all(
        self, mask: LayerMask, at: int, hidden_at: int | None = None
    ) -> Iterator[PassResult]:
        mask |= LayerMask.enter_at(mask.n_layer, at)
        for i, part in enumerate(self._parts):
            self.n_sublayers += mask.n_active * len(part.tokens)
            yield self._context.decode(
                part.tokens,
                seq=self._place(part.pos),
                pos=part.pos,
                mask=mask,
                hidden=self._states[i] if at else None,
                hidden_at=hidden_at,
                outputs="none" if hidden_at else part.outputs,
            )
