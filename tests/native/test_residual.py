"""Residual sampling on a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from chi_square import LIMIT, Prefix, deviation
from fixture_types import NewContext

from pyselfspec import Completion, Context, Fixed, LayerMask, Sampler, SamplingParams
from pyselfspec.errors import ArgumentError, UnsupportedError
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.speculate import residual
from pyselfspec.speculate.types import Distribution

PROMPT = [7, 40, 9, 40]


SAMPLING = SamplingParams(
    temperature=1.5, top_k=4, top_p=1.0, min_p=0.0, repeat_penalty=1.2, repeat_last_n=4, seed=1
)


def chain_law(logits: np.ndarray, text: list[int]) -> Distribution:
    """Return the distribution of SAMPLING's samplers, computed without the library."""
    logits = logits.astype(np.float64)
    for token in set(text[-SAMPLING.repeat_last_n :]):
        up = logits[token] > 0
        logits[token] *= 1 / SAMPLING.repeat_penalty if up else SAMPLING.repeat_penalty
    logits[logits < np.sort(logits)[-SAMPLING.top_k]] = -np.inf
    weights = np.exp((logits - logits.max()) / SAMPLING.temperature)
    return weights / weights.sum()


@pytest.fixture
def context(tiny: Any, new_context: NewContext) -> Context:
    return new_context(tiny(n_layer=4), n_ctx=256, n_threads=1)


@pytest.fixture
def law_of(context: Context) -> Callable[[Prefix], Distribution]:
    """The exact law of each prefix, by enumeration."""
    laws: dict[Prefix, Distribution] = {}

    def distribution(prefix: Prefix) -> Distribution:
        if prefix not in laws:
            text = [*PROMPT, *prefix]
            with context.spare_sequence() as seq:
                logits = context.decode(text, seq=seq, outputs="last").logits[0]
            laws[prefix] = chain_law(logits, text)
        return laws[prefix]

    return distribution


def completions(
    context: Context, n: int, sampling: SamplingParams = SAMPLING, **options: Any
) -> Iterator[Completion]:
    mask = LayerMask(4, {1}, {2})
    for seed in range(n):
        completion = Completion(
            context,
            PROMPT,
            n_predict=3,
            draft="layer-skip",
            mask=mask,
            controller=Fixed(2, p_min=0.0),
            sampling=SamplingParams(**{**_fields(sampling), "seed": seed}),
            verify="residual",
            **options,
        )
        list(completion)
        yield completion


def _fields(params: SamplingParams) -> Mapping[str, Any]:
    return {name: getattr(params, name) for name in params.__dataclass_fields__}


def test_the_real_loop_follows_the_law(
    context: Context, law_of: Callable[[Prefix], Distribution], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a penalty, which drafts do not know."""
    found = list(completions(context, 1200))
    assert deviation([tuple(each.tokens) for each in found], law_of) < LIMIT
    assert sum(each.stats.n_accepted for each in found) > 300

    monkeypatch.setattr(residual, "remainder", lambda p, q: p)
    wrong = [tuple(each.tokens) for each in completions(context, 1200)]
    assert deviation(wrong, law_of) > 2 * LIMIT


def test_a_seed_gives_one_text(context: Context) -> None:
    first, second = ([each.tokens for each in completions(context, 20)] for _ in range(2))
    assert first == second
    assert len(set(map(tuple, first))) > 5


def test_greedily_it_is_sample_and_match(context: Context) -> None:
    """Greedy residual sampling gives the text and the drafts of sample-and-match."""
    greedy = SamplingParams(temperature=0.0)
    (found,) = completions(context, 1, greedy)
    plain = Completion(context, PROMPT, n_predict=3, draft=None, sampling=greedy)
    list(plain)
    assert found.tokens == plain.tokens


def test_the_law_of_a_chain_is_what_it_draws_by(context: Context) -> None:
    model = context.model
    text = [3, 40, 5, 41]
    logits = (2 * np.random.default_rng(2).standard_normal(model.n_vocab)).astype(np.float32)
    logits[text] += 5
    with Sampler(model, SAMPLING) as sampler:
        sampler.begin(text)
        law = sampler.distribution_of(logits)
        assert np.allclose(law, chain_law(logits, text), atol=1e-6)
        assert np.array_equal(sampler.distribution_of(logits), law), "to ask changes nothing"
        sampler.accept(7)
        sampler.accept(9)
        assert np.allclose(
            sampler.distribution_of(logits), chain_law(logits, [*text, 7, 9]), atol=1e-6
        )


def test_a_law_keeps_to_the_grammar(context: Context) -> None:
    model = context.model
    params = SamplingParams(temperature=1.0, top_k=0, grammar='root ::= "a" "b"')
    logits = np.zeros(model.n_vocab, np.float32)
    with Sampler(model, params) as sampler:
        for piece in (b"a", b"b"):
            law = sampler.distribution_of(logits)
            allowed = {token for token in np.flatnonzero(law)}
            assert allowed and all(b"ab".find(model.piece(int(t))) >= 0 for t in allowed)
            sampler.accept(next(int(t) for t in allowed if model.piece(int(t)) == piece))


def test_a_greedy_law_is_a_point(context: Context) -> None:
    logits = np.random.default_rng(0).random(context.model.n_vocab).astype(np.float32)
    with Sampler(context.model) as sampler:
        law = sampler.distribution_of(logits)
    assert law[logits.argmax()] == law.sum() == 1.0


def test_a_sampler_without_a_law_is_named(context: Context) -> None:
    logits = np.zeros(context.model.n_vocab, np.float32)
    with Sampler(context.model, SAMPLING) as sampler:
        sampler._add(llama.llama_sampler_init_mirostat_v2(1, 5.0, 0.1))
        with pytest.raises(UnsupportedError, match="mirostat"):
            sampler.distribution_of(logits)


def test_bad_combinations(context: Context) -> None:
    with pytest.raises(ArgumentError, match="verify is one of match, residual, got 'exact'"):
        Completion(context, PROMPT, verify="exact")
    with pytest.raises(ArgumentError, match="nothing to verify"):
        Completion(context, PROMPT, draft=None, verify="residual")
