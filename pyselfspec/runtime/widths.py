"""Whether a token's logits depend on how many tokens go through the pass with it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .context import Context

N_WIDTH = 16
WIDTHS = (2, 3, 5, 8, 9, N_WIDTH)  # kernels change between these


def same_at_widths(context: Context) -> bool | None:
    """Tries passes over 1 to N_WIDTH tokens on an empty sequence, which is empty again afterwards;
    None where the memory cannot take tokens back.

    True means the same bits, so that drafting cannot turn even a near-tie.
    """
    if not context.can_rollback:
        return None
    n_vocab = context.model.n_vocab
    tokens = [i * n_vocab // N_WIDTH for i in range(N_WIDTH)]
    one = _logits(context, tokens, 1)
    return all(np.array_equal(_logits(context, tokens, width), one) for width in WIDTHS)


def _logits(context: Context, tokens: list[int], width: int) -> NDArray[np.uint32]:
    """Bits of the logits of each token, `width` of them per pass, [n_tokens, n_vocab]."""
    parts = [tokens[i : i + width] for i in range(0, len(tokens), width)]
    logits = [context.decode(part, outputs="all").logits for part in parts]
    context.sequence().drop()
    return np.concatenate(logits).view(np.uint32)
