"""Measure whether logits depend on the width of a pass."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .context import Context

WIDTHS = (2, 3, 5, 8, 9, 16, 17)  # kernels change between these


def same_at_widths(context: Context) -> bool | None:
    """Return whether logits have identical bits at all widths up to 17, or the exact width where
    that is more; None where the memory cannot remove tokens. Uses sequence 0, which must be
    empty and is empty afterwards.

    With identical bits drafting cannot change the choice between nearly equal logits.
    """
    if not context.abilities.can_draft:
        return None
    n_vocab, widths = context.model.n_vocab, sorted({*WIDTHS, context.abilities.exact_width} - {0})
    tokens = [i * n_vocab // widths[-1] for i in range(widths[-1])]
    one = _logits(context, tokens, 1)
    return all(np.array_equal(_logits(context, tokens, width), one) for width in widths)


def _logits(context: Context, tokens: list[int], width: int) -> NDArray[np.uint32]:
    """Return the bits of each token's logits, uint32 [n_tokens, n_vocab], from passes over `width`
    tokens."""
    parts = [tokens[i : i + width] for i in range(0, len(tokens), width)]
    logits = [context.decode(part, outputs="all").logits for part in parts]
    context.sequence().drop()
    return np.concatenate(logits).view(np.uint32)
