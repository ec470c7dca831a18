"""Siblings of draft tokens on tiny models."""

import numpy as np
import pytest
from typed_models import EXIT, SEEDED, plain_text, require_exact

from pyselfspec import Fixed, Sampler
from pyselfspec.speculate.batching import generate_steps
from pyselfspec.speculate.drafters import layer_skip
from pyselfspec.speculate.trees.siblings import P_MIN
from pyselfspec.testing.conformance import (
    tokens_of,
)


def was_beside(step):
    """Whether a sibling was accepted."""
    n_chain = len(step.draft.tokens) - step.draft.n_siblings
    return bool(step.verdict.path) and step.verdict.path[-1] >= n_chain


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_real_text_is_plain_and_siblings_are_accepted(arch, share, tiny, new_context, token_ids):
    context = new_context(tiny(arch, qtype="Q8_0", late_scale=0.05))
    require_exact(context)
    prompt, n = token_ids(9), 60
    plain = plain_text(context, prompt, n, SEEDED)
    context.sequence().drop()
    options = layer_skip.Options(EXIT, share, n_siblings=3)
    with Sampler(context.model, SEEDED) as sampler:
        steps = list(
            generate_steps(
                context,
                prompt,
                drafter=layer_skip.make(context, options),
                controller=Fixed(3, p_min=0),
                sampler=sampler,
                n_predict=n,
            )
        )
    assert tokens_of(steps) == plain
    assert any(map(was_beside, steps))
    n_past = len(prompt) + len(plain) - 1
    assert [context.sequence(i).n_past for i in range(4)] == [n_past, 0, 0, 0]


def test_runners_up_are_those_of_a_softmax(tiny, new_context, token_ids):
    context = new_context(tiny("llama"))
    context.decode(token_ids(5))
    logits = context.logits(4).astype(np.float64)
    law = np.exp(logits - logits.max())
    law /= law.sum()
    found = context.runners_up(4, context.argmax(4), 3, P_MIN / 100)
    assert [token for token, _ in found] == np.argsort(-law)[1:4].tolist()
    np.testing.assert_allclose([p for _, p in found], np.sort(law)[-2:-5:-1], rtol=1e-5)
    assert context.runners_up(4, context.argmax(4), 3, 1.0) == []
