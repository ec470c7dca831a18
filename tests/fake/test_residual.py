"""Residual sampling emits the target's distribution for any distribution of the drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from chi_square import LIMIT, Prefix, Texts, deviation

from pyselfspec import Fixed, LayerMask
from pyselfspec.runtime.pass_result import Distribution
from pyselfspec.speculate.batching import run_steps
from pyselfspec.speculate.drafters import Drafter, layer_skip
from pyselfspec.speculate.drafters import model as second_model
from pyselfspec.speculate.generation import Generation
from pyselfspec.speculate.limits import DraftLimit, Pick
from pyselfspec.speculate.residual import Residual, acceptance, draw, remainder
from pyselfspec.speculate.types import Draft, Step
from pyselfspec.testing.conformance import HISTORY
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_model import EOG, FakeModel, FakeSampler

# --- the arithmetic, by enumeration ----------------------------------------------------------


def random_law(rng: np.random.Generator, n: int) -> Distribution:
    """Some of its tokens have no mass."""
    weights = rng.exponential(size=n) * (rng.random(n) < rng.choice([0.3, 0.7, 1.0]))
    weights[rng.integers(n)] += 0.1
    return weights / weights.sum()


def emitted(p: Distribution, q: Distribution) -> Distribution:
    """Return the distribution of the emitted token, over all draws and both verdicts."""
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


# --- the loop on a scripted model ------------------------------------------------------------


def skipping(
    context: Any, kind: type[layer_skip.LayerSkipDrafter] = layer_skip.LayerSkipDrafter
) -> Drafter:
    return kind(context, LayerMask.alternate(context.model.n_layer))


class Second(FakeModel):
    """Thinks what drafts of the first model think."""

    def target(self, prefix: Sequence[int]) -> Distribution:
        return self.draft(prefix)


def with_second(n_vocab: int) -> Callable[[Any], Drafter]:
    """Return how to make a drafter with a second model of this many tokens."""
    second: Any = FakeContext(Second(quality=0.5, seed=3, n_vocab=n_vocab))
    return lambda context: second_model.ModelDrafter(context, second)


def scripted_texts(
    model: FakeModel,
    rule: type[Residual] = Residual,
    p_min: float = 0.0,
    make: Callable[[Any], Drafter] | None = None,
) -> tuple[Texts, list[Step]]:
    """Texts of three tokens or up to their end, and the steps of all."""
    texts, steps = [], []
    context: Any = FakeContext(model)
    sampler: Any = FakeSampler(1)
    sampler.begin(HISTORY)
    sampler.begin = lambda prompt: None  # all texts by one stream
    settles = rule(sampler, 4)
    for _ in range(1200):
        text = Generation(
            context.sequence(),
            HISTORY,
            drafter=(make or skipping)(context),
            controller=Fixed(2, p_min=p_min),
            sampler=sampler,
            n_predict=3,
            residual=settles,
        )
        steps += run_steps(context, text)
        texts.append(tuple(text.history[len(HISTORY) :]))
    return texts, steps


def target_law(model: FakeModel) -> Callable[[Prefix], Distribution]:
    return lambda prefix: model.target([*HISTORY, *prefix])


@pytest.mark.parametrize("p_min", [0.0, 0.45])
@pytest.mark.parametrize("end_after", [None, 1])
@pytest.mark.parametrize("make", [skipping, with_second(6)], ids=["mask", "second model"])
@pytest.mark.slow
def test_texts_follow_the_targets_law(
    make: Callable[[Any], Drafter], end_after: int | None, p_min: float
) -> None:
    """Also where drafts end by their probability, or draw the end of the text."""
    end_at = None if end_after is None else len(HISTORY) + end_after
    model = FakeModel(quality=0.5, end_at=end_at, seed=3, n_vocab=6)
    texts, steps = scripted_texts(model, p_min=p_min, make=make)
    assert deviation(texts, target_law(model)) < LIMIT
    assert 100 < sum(step.n_accepted for step in steps) < sum(step.n_drafted for step in steps) - 50
    if end_after is not None and make is skipping:  # the second model ends nothing
        assert any(EOG in step.draft.token_ids for step in steps)


class CopiesFirst(layer_skip.LayerSkipDrafter):
    """One token that is not drawn, and drawn tokens after it."""

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Any:
        n = min(limit.n_max, 1)
        return self.extend(Draft.copied([2] * n, [0.5] * n), history, limit.capped(limit.n_max - n))


def test_drawn_tokens_behind_copied_ones_follow_the_targets_law() -> None:
    model = FakeModel(quality=0.5, seed=3, n_vocab=6)
    texts, steps = scripted_texts(model, make=partial(skipping, kind=CopiesFirst))
    assert deviation(texts, target_law(model)) < LIMIT
    assert any(step.draft.n_copied == 1 < step.n_accepted for step in steps)


@pytest.mark.parametrize("n_vocab", [6, 11])
def test_tokens_that_one_model_lacks_are_not_drawn(n_vocab: int) -> None:
    """The target has eight; the others keep their proportions."""
    model = FakeModel(quality=0.5, seed=3, n_vocab=8)
    texts, steps = scripted_texts(model, make=with_second(n_vocab))
    assert deviation(texts, target_law(model)) < LIMIT
    own = Second(quality=0.5, seed=3, n_vocab=n_vocab).target(HISTORY)[:8]
    want = np.zeros(8)
    want[: len(own)] = own / own.sum()
    after_first = [step.draft.tokens[0] for step in steps if len(step.draft.tokens) == 2]
    assert any(
        each.distribution is not None and np.allclose(each.distribution, want, atol=1e-6)
        for each in after_first
    )
    drafted = [token for step in steps for token in step.draft.token_ids]
    assert max(drafted) == min(8, n_vocab) - 1


class EmitsTheTargetsLaw(Residual):
    """Draws from p after a rejection, instead of from the normalized positive part of p - q."""

    def decide(self, token: int, q: Distribution, p: Distribution) -> int:
        accepted = self._settling.random() < acceptance(p, q, token)
        return token if accepted else draw(p, self._settling.random())


class DraftsTheLikeliest(Residual):
    """States a law that it did not draw from."""

    def draw(self, answer: Any, row: int) -> Pick:
        pick = super().draw(answer, row)
        return pick._replace(token=pick.likeliest)


class DropsByTheDraw(Residual):
    """Goes by the probability of the token that was drawn."""

    def draw(self, answer: Any, row: int) -> Pick:
        pick = super().draw(answer, row)
        assert pick.distribution is not None
        return pick._replace(p=float(pick.distribution[pick.token]))


@pytest.mark.parametrize("rule", [EmitsTheTargetsLaw, DraftsTheLikeliest, DropsByTheDraw])
@pytest.mark.parametrize("make", [skipping, with_second(6)], ids=["mask", "second model"])
@pytest.mark.slow
def test_wrong_rules_are_found_out(make: Callable[[Any], Drafter], rule: type[Residual]) -> None:
    model = FakeModel(quality=0.5, seed=3, n_vocab=6)
    p_min = 0.45 if rule is DropsByTheDraw else 0.0
    texts, _ = scripted_texts(model, rule, p_min=p_min, make=make)
    assert deviation(texts, target_law(model)) > 2 * LIMIT
