"""Drafts that see a part of the text: which part, what it costs, and that it changes no text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fixture_types import NewContext

from pyselfspec import GREEDY, Completion, Fixed, LayerMask
from pyselfspec.errors import ArgumentError
from pyselfspec.lab.drafters import partial_kv
from pyselfspec.masks import profiles
from pyselfspec.runtime.context import Context
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.speculate.pass_requests import run
from pyselfspec.speculate.resolve import resolve
from pyselfspec.speculate.types import Draft
from tools.models import tiny_vocab

PART = (2, 5)


def tokens(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(10, tiny_vocab.N_VOCAB_MIN, n).tolist()


def drafts_of(context: Context, text: list[int], mask: LayerMask) -> Draft:
    context.sequence().drop()
    context.prefill(text[:-1])
    drafter = partial_kv.make(context, partial_kv.Options(*PART, mask))
    drafter.begin(context.sequence(), text)
    work = drafter.draft(text, DraftLimit(4))
    assert not isinstance(work, Draft)
    return run(context, work)


def test_drafts_see_the_part_and_nothing_else(tiny: Any, new_context: NewContext) -> None:
    """In a model of one block, K/V of a token knows of no other."""
    context = new_context(tiny(n_layer=1), n_ctx=256, n_threads=1)
    mask, text = LayerMask.full(1), tokens(30, seed=2)
    draft = drafts_of(context, text, mask)
    within = {at: drafts_of(context, _changed(text, at), mask).probs for at in (0, 1, 24, 28)}
    beyond = {at: drafts_of(context, _changed(text, at), mask).probs for at in (2, 12, 23)}
    assert all(probs != draft.probs for probs in within.values())
    assert all(probs == draft.probs for probs in beyond.values())


def _changed(text: list[int], at: int) -> list[int]:
    return [*text[:at], text[at] + (1 if text[at] < 200 else -1), *text[at + 1 :]]


@pytest.mark.parametrize("mask", [None, LayerMask(4, {1}, {2})], ids=["whole", "masked"])
@pytest.mark.parametrize("draft", ["partial-kv", "ngram+partial-kv"])
def test_drafted_text_is_plain_text(
    draft: str, mask: LayerMask | None, tiny: Any, new_context: NewContext
) -> None:
    context = new_context(tiny(n_layer=4), n_ctx=256, n_threads=1)
    prompt = tokens(30, seed=3)
    plain = Completion(context, prompt, n_predict=24, draft=None, sampling=GREEDY)
    list(plain)
    fast = Completion(
        context,
        prompt,
        n_predict=24,
        draft=draft,
        options=partial_kv.Options(*PART, mask),
        controller=Fixed(3, p_min=0.0),
        sampling=GREEDY,
    )
    list(fast)
    assert fast.tokens == plain.tokens
    stats = fast.stats.sources["partial-kv"]
    assert 0 < stats.n_accepted < stats.n_drafted


def test_long_texts_are_expected_to_gain(tiny: Any, new_context: NewContext) -> None:
    """By the bytes that passes read: nothing where the text is no longer than the part."""
    context = new_context(tiny(), n_ctx=4096, n_threads=1)
    costs = partial_kv.make(context, partial_kv.Options()).costs()
    ratios = [costs.at(n).token_us / costs.at(n).plain_us for n in (0, 100, 256, 1000, 4000)]
    assert ratios[:3] == pytest.approx([1, 1, 1])
    assert 1 > ratios[3] > ratios[4]
    file = context.model.file
    kv = sum(
        2 * t.shape[1] for t in file.tensors if t.name.endswith(("attn_k.weight", "attn_v.weight"))
    )
    expected = (file.weight_bytes() + 256 * kv) / (file.weight_bytes() + 4000 * kv)
    assert ratios[4] == pytest.approx(expected)


def test_parts_that_are_none(tiny: Any, new_context: NewContext) -> None:
    context = new_context(tiny(), n_ctx=256, n_threads=1)
    with pytest.raises(ArgumentError, match="256 tokens together, and the context has 256"):
        Completion(context, [5, 6], draft="partial-kv")
    with pytest.raises(ArgumentError, match="n_last is 1 or more, got 0"):
        partial_kv.Options(n_last=0)
    with pytest.raises(ArgumentError, match="n_first is 0 or more, got -1"):
        partial_kv.Options(n_first=-1)


def test_the_mask_of_a_profile_is_for_drafts_that_read_the_whole_text(
    tiny: Any, new_context: NewContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = new_context(tiny(n_layer=4), n_ctx=512)
    mask = LayerMask.early_exit(4, 2)
    monkeypatch.setattr(profiles, "mask_for", lambda model: mask)
    for given, wanted in ((None, LayerMask.full(4)), (mask, mask)):
        found = resolve(context, DraftConfig("partial-kv", mask=given))
        assert found is not None and found.mask == wanted
