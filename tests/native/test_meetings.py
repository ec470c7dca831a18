"""Threads wait for each other only where a node needs it (native/kernels/meetings.cpp). A pass by
several threads has the bits of one by a single thread, whose nodes follow each other.
"""

from __future__ import annotations

import numpy as np
import pytest
from fixture_types import TinyModel
from numpy.typing import NDArray

from pyselfspec import Model
from tools.models import tiny_archs

# up to four rows of these models are few enough for one thread; the second pass of a width follows
# what was decided in the first
WIDTHS = (1, 1, 4, 4, 8, 8, 40)
N_THREADS, N_ROUNDS = 4, 10


def logits(model: Model, n_threads: int) -> NDArray[np.float32]:
    found, tokens = [], [5 + i % 200 for i in range(sum(WIDTHS))]
    with model.context(n_ctx=256, n_threads=n_threads) as context:
        for width in WIDTHS:
            n_past = context.sequence().n_past
            found.append(context.decode(tokens[n_past : n_past + width]).logits)
    return np.concatenate(found)


@pytest.mark.parametrize("qtype", ["F16", "Q4_0"])
@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
def test_bits_do_not_depend_on_the_number_of_threads(
    arch: str, qtype: str, tiny: TinyModel
) -> None:
    model = tiny(arch, qtype=qtype)
    want = logits(model, 1)
    for _ in range(N_ROUNDS):
        np.testing.assert_array_equal(logits(model, N_THREADS), want)
