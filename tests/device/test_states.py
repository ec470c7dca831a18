"""Models with recurrent states on a device: rejected draft tokens leave states on both sides.

The oracle is a replay with as many layers on the device: the same passes without drafters.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from replayed import both, both_of_two, opened
from tiny_hybrids import VARIED, write_hybrid

from pyselfspec import GREEDY, Model, SamplingParams
from pyselfspec.runtime.width_check import same_at_widths

pytestmark = pytest.mark.device

LAYERS = {"none": 0, "head": 1, "half": 3, "all": 5}  # of four blocks and the head
SAMPLINGS = {"greedy": GREEDY, "drawn": SamplingParams(temperature=0.8, seed=7)}
PROMPT = [40 + i % 7 for i in range(21)]
N_WRONG = 2


@pytest.fixture(scope="module", params=[(arch, n) for arch in VARIED for n in LAYERS], ids="-".join)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    arch, layers = request.param
    path = write_hybrid(tmp_path_factory.mktemp("hybrid") / "model.gguf", arch, varied=True)
    with Model(path, n_gpu_layers=LAYERS[layers]) as model:
        assert model.n_gpu_layers == LAYERS[layers]
        yield model


def require_equal_removal(model: Model) -> None:
    """Skip where the tokens that remain are evaluated again, and the device rounds differently in
    passes of other widths: CUDA with mamba, not llvmpipe."""
    with opened(model) as context:
        if not (context.abilities.max_rollback or same_at_widths(context)):
            pytest.skip("without snapshots, and this device's results depend on the width")


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_texts_with_rejected_copies(model: Model, kind: str) -> None:
    require_equal_removal(model)
    made, again = both(model, PROMPT, SAMPLINGS[kind], draft="ngram")
    assert made.tokens == again
    assert made.stats.n_drafted > made.stats.n_accepted


def test_a_continued_text_after_rejected_copies(model: Model) -> None:
    require_equal_removal(model)
    tokens, again, n_reused = both_of_two(model, PROMPT, [44, 45, 46], draft="ngram")
    assert tokens == again and n_reused >= len(PROMPT)


def test_states_after_a_removal(model: Model) -> None:
    """Wide passes may round differently on a device, so logits are compared, not bits."""
    with opened(model) as context:
        if context.abilities.max_rollback < N_WRONG:
            pytest.skip("llama.cpp keeps no snapshots for this architecture")
        wanted = [context.decode([token]).logits[0] for token in PROMPT]
        context.sequence().drop()
        context.decode(PROMPT[:9])
        for pos in range(9, len(PROMPT) - 4, 4):
            context.decode([*PROMPT[pos : pos + 3], *[9] * N_WRONG])
            context.sequence().rollback(pos + 3)
            got = context.decode(PROMPT[pos + 3 : pos + 4]).logits[0]
            np.testing.assert_allclose(got, wanted[pos + 3], atol=0.02 * np.ptp(wanted[pos + 3]))
