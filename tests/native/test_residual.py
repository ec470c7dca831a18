"""Residual sampling on a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_head
import tiny_nextn
from chi_square import LIMIT, Prefix, deviation
from fixture_types import NewContext, TinyModel, TinyPath
from gguf import GGUFReader
from head_oracle import knowing_head

from pyselfspec import Completion, Context, Fixed, LayerMask, Model, Sampler, SamplingParams
from pyselfspec.errors import ArgumentError, UnsupportedError
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.runtime.pass_result import Distribution
from pyselfspec.speculate import residual
from pyselfspec.speculate.drafters import head, layer_skip, universal
from pyselfspec.speculate.drafters import model as second_model

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
def context(tiny: TinyModel, new_context: NewContext) -> Context:
    return new_context(tiny(n_layer=4), n_ctx=256, n_threads=1)


# --- drafters that know a distribution ---------------------------------------------------------

LATE = {"late_scale": 0.25, "late_from": 0}  # the last token says most about the next one
SHORT = 150  # tokens of a short list
FLAT = np.float32(0.1)  # factor on the logits of a model that counts, which is too sure
GAIN = 3.0  # of its sublayers, which its head does not know


@dataclass(frozen=True)
class Drafting:
    """A target and what drafts for it."""

    target: Path
    draft: str
    options: Any
    prompt: Sequence[int] = (7, 40, 9, 40)


def with_mask(path: TinyPath, _: Path, shortlist: int = 0) -> Drafting:
    options = layer_skip.Options(LayerMask(4, {1}, {2}), shortlist=shortlist)
    return Drafting(path(**LATE), "layer-skip", options)


def with_head(path: TinyPath, folder: Path, shortlist: int = 0) -> Drafting:
    options = head.Options(knowing_head(path(**LATE), folder), shortlist=shortlist)
    return Drafting(path(**LATE), "head", options)


def with_own_tokens(path: TinyPath, folder: Path) -> Drafting:
    """A head that knows every other token of the model."""
    weights = {t.name: np.array(t.data) for t in GGUFReader(path(**LATE)).tensors}
    known = tiny_head.knowing_weights(weights, tokens=range(3, 317, 2))
    written = tiny_head.write(folder / "own.gguf", known, n_head_kv=2)
    return Drafting(path(**LATE), "head", head.Options(written))


def with_own_head(_: TinyPath, folder: Path) -> Drafting:
    weights = tiny_nextn.counting_weights(tiny_nextn.GLM4MOE, gain=GAIN)
    weights["output.weight"] *= FLAT
    written = tiny_nextn.write(folder / "counting.gguf", weights, tiny_nextn.GLM4MOE)
    return Drafting(written, "head", head.Options(), range(20, 24))


def with_model(path: TinyPath, _: Path) -> Drafting:
    small = path(**LATE, drop_blocks=(2, 3))
    return Drafting(path(**LATE), "model", second_model.Options(small))


def with_assistant(path: TinyPath, _: Path) -> Drafting:
    """Its tokens are those of the target, with other ids."""
    other = path(**LATE, drop_blocks=(2, 3), vocab="reversed")
    options = universal.Options(other, mode="shared")
    return Drafting(path(**LATE), "universal", options, (1, 299, 283, 300))


KINDS: dict[str, Callable[[TinyPath, Path], Drafting]] = {
    "mask": with_mask,
    "mask, short list": partial(with_mask, shortlist=SHORT),
    "head": with_head,
    "head, short list": partial(with_head, shortlist=SHORT),
    "head of its own tokens": with_own_tokens,
    "own head": with_own_head,
    "model": with_model,
    "assistant": with_assistant,
}


class Texts:
    """Generates texts of three tokens in one context."""

    def __init__(self, make_context: Callable[[], Context], drafting: Drafting) -> None:
        self.context = make_context()
        self._make_context = make_context
        self._drafting = drafting
        self._laws: dict[Prefix, Distribution] = {}

    def in_a_new_context(self) -> Texts:
        return Texts(self._make_context, self._drafting)

    def completions(
        self, n: int, sampling: SamplingParams = SAMPLING, verify: str = "residual"
    ) -> Iterator[Completion]:
        """Yield texts by seeds from 0 on."""
        for seed in range(n):
            completion = Completion(
                self.context,
                self._drafting.prompt,
                n_predict=3,
                draft=self._drafting.draft,
                options=self._drafting.options,
                controller=Fixed(2, p_min=0.0),
                sampling=replace(sampling, seed=seed),
                verify=verify,
            )
            list(completion)
            yield completion

    def law_of(self, prefix: Prefix) -> Distribution:
        """The exact law of each prefix, by enumeration."""
        if prefix not in self._laws:
            text = [*self._drafting.prompt, *prefix]
            with self.context.spare_sequence() as seq:
                logits = self.context.decode(text, seq=seq, outputs="last").logits[0]
            self._laws[prefix] = chain_law(logits, text)
        return self._laws[prefix]


@pytest.fixture(params=KINDS)
def texts(
    request: pytest.FixtureRequest, tiny_path: TinyPath, tmp_path: Path, new_context: NewContext
) -> Iterator[Texts]:
    drafting = KINDS[request.param](tiny_path, tmp_path)
    with Model(drafting.target) as model:
        yield Texts(partial(new_context, model, n_ctx=256, n_threads=1), drafting)


@pytest.mark.slow
def test_the_real_loop_follows_the_law(texts: Texts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a penalty, which drafts do not know."""
    found = list(texts.completions(1200))
    assert deviation([tuple(each.tokens) for each in found], texts.law_of) < LIMIT
    n_drafted = sum(each.stats.n_drafted for each in found)
    assert 0.3 * n_drafted < sum(each.stats.n_accepted for each in found) < 0.8 * n_drafted

    monkeypatch.setattr(residual, "remainder", lambda p, q: p)
    wrong = [tuple(each.tokens) for each in texts.completions(1200)]
    assert deviation(wrong, texts.law_of) > 2 * LIMIT


def test_a_seed_gives_one_text(texts: Texts) -> None:
    """Also with a short list, after the same texts: it remembers them."""
    first, second = (
        [each.tokens for each in made.completions(20)] for made in (texts, texts.in_a_new_context())
    )
    assert first == second
    assert len(set(map(tuple, first))) > 5


def test_greedily_it_is_sample_and_match(texts: Texts) -> None:
    """Greedy residual sampling gives the text and the drafts of sample-and-match."""
    greedy = SamplingParams(temperature=0.0)
    found, plain = (next(texts.completions(1, greedy, verify)) for verify in ("residual", "match"))
    assert found.tokens == plain.tokens
    assert found.stats.n_drafted == plain.stats.n_drafted > 0
    assert found.stats.n_accepted_at == plain.stats.n_accepted_at


def test_more_drawn_tokens_are_accepted_than_by_sample_and_match(texts: Texts) -> None:
    def rate(verify: str) -> float:
        counted = [each.stats for each in texts.completions(200, verify=verify)]
        return sum(each.n_accepted for each in counted) / sum(each.n_drafted for each in counted)

    assert rate("residual") > rate("match") + 0.05


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
