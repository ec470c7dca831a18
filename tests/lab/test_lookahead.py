"""Lookahead on tiny models."""

import pytest
from typed_models import SAMPLINGS, plain_text, require_exact

from pyselfspec import Fixed, Sampler
from pyselfspec.speculate import drafters
from pyselfspec.speculate.batching import generate_steps
from pyselfspec.testing.conformance import tokens_of


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["jacobi", "lookahead"])
def test_real_text_is_plain_text(name, sampling, tiny, new_context, token_ids):
    context = new_context(tiny("llama", qtype="Q8_0", late_scale=0.05))
    require_exact(context)
    prompt, n = token_ids(9), 100
    module = drafters.load(name)
    with Sampler(context.model, SAMPLINGS[sampling]) as sampler:
        steps = list(
            generate_steps(
                context,
                prompt,
                drafter=module.make(context, module.Options()),
                controller=Fixed(8, p_min=0),
                sampler=sampler,
                n_predict=n,
            )
        )
    assert sum(step.n_drafted for step in steps) > n
    assert tokens_of(steps) == plain_text(context, prompt, n, SAMPLINGS[sampling])
