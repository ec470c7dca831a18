"""Verification with llama.cpp's samplers."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from drawn_tokens import (
    CHAIN_LAWS,
    DRAFTS,
    LAWS,
    PARAMS,
    TREES,
    Prefix,
    assert_follows,
    chains,
    generate,
)

from pyselfspec import Model, Sampler
from pyselfspec.runtime.thread_guards import InUse
from pyselfspec.speculate.types import Draft

LOGITS = {prefix: np.log(law).astype(np.float32) + 3 for prefix, law in LAWS.items()}


def chain() -> Sampler:
    return Sampler(cast(Model, SimpleNamespace(n_vocab=5, in_use=InUse("the model"))), PARAMS)


def plainly(text: Prefix) -> Draft:
    return Draft()


PROPOSALS = {kind: chains(draft_next, 2) for kind, draft_next in DRAFTS.items()} | {
    f"tree of {kind}": propose for kind, propose in TREES.items()
}


@pytest.mark.parametrize("kind", ["none", *PROPOSALS])
def test_a_real_chain_follows_its_law(kind):
    print("seed", PARAMS.seed)
    propose = PROPOSALS.get(kind, plainly)
    with chain() as sampler:
        draw = lambda prefix: sampler.sample_logits(LOGITS[prefix])  # noqa: E731
        texts = [generate(propose, draw) for _ in range(8_000)]
    assert_follows(texts, CHAIN_LAWS)


@pytest.mark.parametrize("kind", PROPOSALS)
def test_a_real_chain_gives_the_same_text_with_and_without_drafts(kind):
    def texts(propose):
        with chain() as sampler:
            draw = lambda prefix: sampler.sample_logits(LOGITS[prefix])  # noqa: E731
            return [generate(propose, draw) for _ in range(500)]

    assert texts(PROPOSALS[kind]) == texts(plainly)


def test_begin_restarts_the_random_stream():
    with chain() as sampler:
        runs = []
        for _ in range(2):
            sampler.begin([])
            runs.append([sampler.sample_logits(LOGITS[()]) for _ in range(50)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1
