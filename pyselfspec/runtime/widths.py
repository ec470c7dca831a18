"""Whether a token's logits depend on how many tokens go through the pass with it, and for which
types of weights a pass over several costs less than as many passes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..gguf.header import TENSOR_TYPES
from . import _lib
from .context import Context

WIDTHS = (2, 3, 5, 8, 9, 16, 17)  # kernels change between these


def same_at_widths(context: Context) -> bool | None:
    """Tries passes over 1 to 17 tokens, or as many as the library promises, on an empty sequence,
    which is empty again afterwards; None where the memory cannot take tokens back.

    True means the same bits, so that drafting cannot turn even a near-tie.
    """
    if not context.can_rollback:
        return None
    n_vocab, widths = context.model.n_vocab, sorted({*WIDTHS, context.exact_width} - {0})
    tokens = [i * n_vocab // widths[-1] for i in range(widths[-1])]
    one = _logits(context, tokens, 1)
    return all(np.array_equal(_logits(context, tokens, width), one) for width in widths)


def exact_types(*, fast: bool = False) -> frozenset[str]:
    """Types of weights, by their ggml names, with which products on this CPU give each token the
    same bits at every width up to Context.exact_width.

    fast: only those that the library multiplies by several tokens at once. With the others every
    token is multiplied by itself, and a pass costs about as much as its tokens one by one.
    """
    names = {number: name for number, (name, _, _) in TENSOR_TYPES.items()}
    return frozenset(name for number, name in names.items() if _lib.type_width(number, fast))


def _logits(context: Context, tokens: list[int], width: int) -> NDArray[np.uint32]:
    """Bits of the logits of each token, `width` of them per pass, [n_tokens, n_vocab]."""
    parts = [tokens[i : i + width] for i in range(0, len(tokens), width)]
    logits = [context.decode(part, outputs="all").logits for part in parts]
    context.sequence().drop()
    return np.concatenate(logits).view(np.uint32)
