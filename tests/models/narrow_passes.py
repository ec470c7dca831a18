"""The logits of a text that is read a few tokens at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyselfspec import Context


def decoded(context: Context, tokens: list[int], width: int) -> NDArray[np.float32]:
    """Logits of the tokens, fed `width` at a time; the context is as before afterwards."""
    seq = context.sequence()
    n_past = seq.n_past
    parts = [tokens[i : i + width] for i in range(0, len(tokens), width)]
    logits = np.concatenate([context.decode(part).logits for part in parts])
    seq.rollback(n_past)
    return logits
