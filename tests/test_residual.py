"""Residual sampling emits the target's law, whatever law drafts are drawn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from conftest import NewContext

from pyselfspec import Completion, Context, Fixed, LayerMask, Sampler, SamplingParams
from pyselfspec.errors import ArgumentError, UnsupportedError
from pyselfspec.runtime._lib import llama
from pyselfspec.speculate import residual
from pyselfspec.speculate.drafters import layer_skip
from pyselfspec.speculate.loop import steps_of
from pyselfspec.speculate.residual import Residual, acceptance, draw, remainder
from pyselfspec.speculate.text import Text
from pyselfspec.speculate.types import Draft, DraftLimit, Law, Pick, Step, copied
from pyselfspec.testing.conformance import HISTORY
from pyselfspec.testing.fakes import EOG, FakeContext, FakeModel, FakeSampler

Prefix = tuple[int, ...]
Texts = list[Prefix]

# --- the arithmetic, by enumeration ----------------------------------------------------------


def random_law(rng: np.random.Generator, n: int) -> Law:
    """Some of its tokens have no mass."""
    weights = rng.exponential(size=n) * (rng.random(n) < rng.choice([0.3, 0.7, 1.0]))
    weights[rng.integers(n)] += 0.1
    return weights / weights.sum()


def emitted(p: Law, q: Law) -> Law:
    """The law of the token that comes out, over all draws and both verdicts."""
    law = np.zeros(len(p))
    for token in np.flatnonzero(q):
        accepted = acceptance(p, q, int(token))
        law[token] += q[token] * accepted
        law += q[token] * (1 - accepted) * remainder(p, q)
    return law


def test_the_emitted_law_is_the_targets() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        p, q = random_law(rng, 9), random_law(rng, 9)
        assert np.abs(emitted(p, q) - p).sum() / 2 < 1e-12, seed
        rejected = 1 - sum(q[i] * acceptance(p, q, i) for i in range(9))
        assert rejected == pytest.approx(np.abs(p - q).sum() / 2), "more than need be"


def test_special_laws() -> None:
    p, q = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.3, 0.7])
    assert [acceptance(p, q, token) for token in (2, 3)] == [0, 0]
    assert np.array_equal(remainder(p, q), p), "of supports that are apart"
    assert acceptance(p, p, 0) == 1.0
    assert np.array_equal(remainder(p, p), p), "nothing is left over"
    point = np.eye(4)[1]
    assert np.array_equal(remainder(p, point), [1, 0, 0, 0]), "p without that token"


def test_a_token_without_mass_is_never_drawn() -> None:
    law = np.array([0, 0.25, 0, 0.75, 0])
    us = [0.0, 0.2499, 0.25, 0.5, np.nextafter(1, 0)]
    assert [draw(law, u) for u in us] == [1, 1, 3, 3, 3]
    assert draw(np.array([0, 1e-300, 0]), np.nextafter(1, 0)) == 1


# --- chi-square ------------------------------------------------------------------------------


N_EXPECTED = 5  # tokens that are expected less often are counted together


def chi_square(texts: Texts, law: Callable[[Prefix], Law], n: int) -> float:
    """Of the tokens behind all prefixes of n tokens, in standard deviations from what is expected,
    by Wilson and Hilferty; a token that cannot come makes it infinite."""
    statistic, n_free = 0.0, 0
    counts = Counter(text[: n + 1] for text in texts if len(text) > n)
    for prefix in {text[:n] for text in counts}:
        p = law(prefix)
        seen = np.array([counts[*prefix, token] for token in range(len(p))])
        if seen[p == 0].any():
            return np.inf
        expected = seen.sum() * p
        rare = expected < N_EXPECTED
        seen = np.append(seen[~rare], seen[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        enough = expected >= N_EXPECTED
        statistic += float(((seen - expected) ** 2 / expected.clip(1e-9))[enough].sum())
        n_free += max(0, int(enough.sum()) - 1)
    mean = 1 - 2 / (9 * n_free)
    return float(((statistic / n_free) ** (1 / 3) - mean) / (2 / (9 * n_free)) ** 0.5)


LIMIT = 3.72  # exceeded by chance once in 10 000; seeds are fixed, so never twice


def deviation(texts: Texts, law: Callable[[Prefix], Law]) -> float:
    return max(chi_square(texts, law, n) for n in range(3))


# --- the loop on a scripted model ------------------------------------------------------------


class LawSampler(FakeSampler):
    def law(self, context: FakeContext, row: int) -> Law:
        return context.laws[row]

    def accept(self, token: int) -> None:
        pass


def scripted_texts(
    model: FakeModel,
    rule: type[Residual] = Residual,
    p_min: float = 0.0,
    drafter: type[layer_skip.Drafter] = layer_skip.Drafter,
) -> tuple[Texts, list[Step]]:
    """Texts of three tokens or up to their end, and the steps of all."""
    texts, steps = [], []
    context: Any = FakeContext(model)
    sampler: Any = LawSampler(1)
    sampler.begin(HISTORY)
    sampler.begin = lambda prompt: None  # all texts by one stream
    settles = rule(sampler, 4)
    for _ in range(1200):
        text = Text(
            context.sequence(),
            HISTORY,
            drafter=drafter(context, LayerMask.alternate(model.n_layer)),
            controller=Fixed(2, p_min=p_min),
            sampler=sampler,
            n_predict=3,
            residual=settles,
        )
        steps += steps_of(context, text)
        texts.append(tuple(text.history[len(HISTORY) :]))
    return texts, steps


def target_law(model: FakeModel) -> Callable[[Prefix], Law]:
    return lambda prefix: model.target([*HISTORY, *prefix])


@pytest.mark.parametrize("p_min", [0.0, 0.45])
@pytest.mark.parametrize("end_after", [None, 1])
def test_texts_follow_the_targets_law(end_after: int | None, p_min: float) -> None:
    """Also where drafts end by their probability, or draw the end of the text."""
    end_at = None if end_after is None else len(HISTORY) + end_after
    model = FakeModel(quality=0.5, end_at=end_at, seed=3, n_vocab=6)
    texts, steps = scripted_texts(model, p_min=p_min)
    assert deviation(texts, target_law(model)) < LIMIT
    assert 100 < sum(step.n_accepted for step in steps) < sum(step.n_drafted for step in steps) - 50
    if end_after is not None:
        assert any(EOG in step.draft.tokens for step in steps)


class CopiesFirst(layer_skip.Drafter):
    """One token that is not drawn, drawn ones behind it."""

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Any:
        n = min(limit.n_max, 1)
        return self.draft_behind(copied([2] * n, [0.5] * n), history, limit.capped(limit.n_max - n))


def test_drawn_tokens_behind_copied_ones_follow_the_targets_law() -> None:
    model = FakeModel(quality=0.5, seed=3, n_vocab=6)
    texts, steps = scripted_texts(model, drafter=CopiesFirst)
    assert deviation(texts, target_law(model)) < LIMIT
    assert any(step.draft.n_copied == 1 < step.n_accepted for step in steps)


class EmitsTheTargetsLaw(Residual):
    """Draws from p, not from what is left of it, after a rejection."""

    def settle(self, token: int, q: Law, p: Law) -> int:
        accepted = self._settling.random() < acceptance(p, q, token)
        return token if accepted else draw(p, self._settling.random())


class DraftsTheLikeliest(Residual):
    """States a law that it did not draw from."""

    def drawing(self, answer: Any, row: int) -> Pick:
        pick = super().drawing(answer, row)
        return pick._replace(token=pick.likeliest)


class DropsByTheDraw(Residual):
    """Goes by the probability of the token that was drawn."""

    def drawing(self, answer: Any, row: int) -> Pick:
        pick = super().drawing(answer, row)
        assert pick.law is not None
        return pick._replace(p=float(pick.law[pick.token]))


@pytest.mark.parametrize("rule", [EmitsTheTargetsLaw, DraftsTheLikeliest, DropsByTheDraw])
def test_wrong_rules_are_found_out(rule: type[Residual]) -> None:
    model = FakeModel(quality=0.5, seed=3, n_vocab=6)
    texts, _ = scripted_texts(model, rule, p_min=0.45 if rule is DropsByTheDraw else 0.0)
    assert deviation(texts, target_law(model)) > 2 * LIMIT


# --- the loop on a real one ------------------------------------------------------------------

PROMPT = [7, 40, 9, 40]
SAMPLING = SamplingParams(
    temperature=1.5, top_k=4, top_p=1.0, min_p=0.0, repeat_penalty=1.2, repeat_last_n=4, seed=1
)


def chain_law(logits: np.ndarray, text: list[int]) -> Law:
    """Of the samplers of SAMPLING, written without the library."""
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
def law_of(context: Context) -> Callable[[Prefix], Law]:
    """The exact law of each prefix, by enumeration."""
    laws: dict[Prefix, Law] = {}

    def law(prefix: Prefix) -> Law:
        if prefix not in laws:
            text = [*PROMPT, *prefix]
            with context.spare_sequence() as seq:
                logits = context.decode(text, seq=seq, outputs="last").logits[0]
            laws[prefix] = chain_law(logits, text)
        return laws[prefix]

    return law


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
    context: Context, law_of: Callable[[Prefix], Law], monkeypatch: pytest.MonkeyPatch
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
    """The same text, the same drafts."""
    greedy = SamplingParams(temperature=0.0)
    (found,) = completions(context, 1, greedy)
    plain = Completion(context, PROMPT, n_predict=3, draft=None, sampling=greedy)
    list(plain)
    assert found.tokens == plain.tokens


# --- the law of a sampler --------------------------------------------------------------------


def test_the_law_of_a_chain_is_what_it_draws_by(context: Context) -> None:
    model = context.model
    text = [3, 40, 5, 41]
    logits = (2 * np.random.default_rng(2).standard_normal(model.n_vocab)).astype(np.float32)
    logits[text] += 5
    with Sampler(model, SAMPLING) as sampler:
        sampler.begin(text)
        law = sampler.law_of_logits(logits)
        assert np.allclose(law, chain_law(logits, text), atol=1e-6)
        assert np.array_equal(sampler.law_of_logits(logits), law), "to ask changes nothing"
        sampler.accept(7)
        sampler.accept(9)
        assert np.allclose(
            sampler.law_of_logits(logits), chain_law(logits, [*text, 7, 9]), atol=1e-6
        )


def test_a_law_keeps_to_the_grammar(context: Context) -> None:
    model = context.model
    params = SamplingParams(temperature=1.0, top_k=0, grammar='root ::= "a" "b"')
    logits = np.zeros(model.n_vocab, np.float32)
    with Sampler(model, params) as sampler:
        for piece in (b"a", b"b"):
            law = sampler.law_of_logits(logits)
            allowed = {token for token in np.flatnonzero(law)}
            assert allowed and all(b"ab".find(model.piece(int(t))) >= 0 for t in allowed)
            sampler.accept(next(int(t) for t in allowed if model.piece(int(t)) == piece))


def test_a_greedy_law_is_a_point(context: Context) -> None:
    logits = np.random.default_rng(0).random(context.model.n_vocab).astype(np.float32)
    with Sampler(context.model) as sampler:
        law = sampler.law_of_logits(logits)
    assert law[logits.argmax()] == law.sum() == 1.0


def test_a_sampler_without_a_law_is_named(context: Context) -> None:
    logits = np.zeros(context.model.n_vocab, np.float32)
    with Sampler(context.model, SAMPLING) as sampler:
        sampler._add(llama.llama_sampler_init_mirostat_v2(1, 5.0, 0.1))
        with pytest.raises(UnsupportedError, match="mirostat"):
            sampler.law_of_logits(logits)


# --- what does not go together ---------------------------------------------------------------


def test_bad_combinations(context: Context) -> None:
    with pytest.raises(ArgumentError, match="verify is one of match, residual, got 'exact'"):
        Completion(context, PROMPT, verify="exact")
    with pytest.raises(ArgumentError, match="nothing to verify"):
        Completion(context, PROMPT, draft=None, verify="residual")
    law = np.full(5, 0.2)
    with pytest.raises(ArgumentError, match="one law per token of a chain"):
        Draft((1, 2), laws=(law,))
    with pytest.raises(ArgumentError, match="one law per token of a chain"):
        Draft((1, 2), parents=(-1, -1), laws=(law, law))
