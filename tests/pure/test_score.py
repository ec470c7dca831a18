"""Scores against direct computation with numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.masks.score import OVERFLOW, Score, token_loss
from pyselfspec.util import records
from pyselfspec.util.pass_width import MAX_DRAFT


def losses(seed, n=40):
    rng = np.random.default_rng(seed)
    return rng.gamma(2.0, size=n), rng.gamma(2.0, size=n)


def test_mean_and_standard_error_of_losses_and_of_their_excess():
    masked, full = losses(1)
    score = Score.of(masked, full)
    assert score.mean == pytest.approx(masked.mean())
    assert score.stderr == pytest.approx(masked.std(ddof=1) / math.sqrt(40))
    assert score.mean_excess == pytest.approx((masked - full).mean())
    assert score.stderr_excess == pytest.approx((masked - full).std(ddof=1) / math.sqrt(40))
    assert score.perplexity == pytest.approx(math.exp(masked.mean()))


def test_scores_of_pieces_add_up_to_the_score_of_the_whole():
    masked, full = losses(2)
    parts = Score.of(masked[:13], full[:13]) + Score.of(masked[13:], full[13:])
    whole = Score.of(masked, full)
    assert parts.n == whole.n
    assert parts.mean_excess == pytest.approx(whole.mean_excess)
    assert parts.stderr == pytest.approx(whole.stderr)
    assert Score() + whole == whole


def test_a_single_token_has_no_standard_error():
    assert Score.of(np.array([1.0]), np.array([1.0])).stderr == math.inf


def test_a_hopeless_loss_has_infinite_perplexity():
    assert Score.of(np.array([1e4]), np.array([1.0])).perplexity == math.inf


def test_logits_that_overflowed_are_as_wrong_as_can_be_and_survive_a_file():
    score = Score.of(np.array([np.nan, np.inf, 1.0]), np.array([2.0, 2.0, 2.0]))
    assert score.loss == 2 * OVERFLOW + 1 and math.isfinite(score.stderr_excess)
    assert records.convert(records.parse(records.encode(score)), Score) == score


def test_runs_of_right_tokens():
    right = np.array([[True, True, False, True], [True, True, True, True]])
    score = Score.of_drafts(right)
    assert score.agreement == 7 / 8
    assert score.n_runs == (8, 6, 4, 2)
    assert score.n_right_runs == (7, 4, 2, 1)
    assert score.survival[:2] == (7 / 8, 4 / 6)
    assert (score + score).n_right_runs == (14, 8, 4, 2)


def test_runs_against_counting_one_by_one():
    seed = 3
    print("seed", seed)
    right = np.random.default_rng(seed).random((5, 40)) < 0.8
    score = Score.of_drafts(right)
    for length in range(1, MAX_DRAFT + 1):
        runs = [row[i : i + length] for row in right for i in range(40 - length + 1)]
        assert score.n_runs[length - 1] == len(runs)
        assert score.n_right_runs[length - 1] == sum(run.all() for run in runs)
    assert len(score.n_runs) == MAX_DRAFT


def test_scores_survive_a_file():
    for score in (Score.of(*losses(4)), Score.of_drafts(np.array([[True, False]]))):
        assert records.convert(records.parse(records.encode(score)), Score) == score


def test_the_loss_of_a_token_is_its_negative_log_probability():
    logits = np.random.default_rng(5).normal(0, 5, 300).astype(np.float32)
    exact = logits.astype(np.float64)
    want = np.log(np.exp(exact).sum()) - exact[17]
    assert token_loss(logits, 17) == pytest.approx(want, abs=1e-5)
    assert token_loss(logits + np.float32(200), 17) == pytest.approx(want, abs=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"n": -1},
        {"loss": math.nan},
        {"excess_sq": math.inf},
        {"pieces": (0.5, math.nan)},
        {"n_runs": (8, 6, 4, 2, 1)},
        {"n_right_runs": (7, 4, 2, 1, 1)},
        {"n_right_runs": (9, 4, 2, 1)},
        {"n_right_runs": (-1, 4, 2, 1)},
        {"n_runs": (8, 6, 4, 0), "n_right_runs": (7, 4, 2, 0)},
    ],
)
def test_scores_that_cannot_be(changes):
    """Files hold them, and whoever edits one is told before it is computed with."""
    right = np.array([[True, True, False, True], [True, True, True, True]])
    score = Score.of_drafts(right)
    with pytest.raises(ArgumentError, match="a score"):
        replace(score, **changes)
    data = records.to_dict(score) | {
        key: list(value) if isinstance(value, tuple) else value for key, value in changes.items()
    }
    with pytest.raises(records.RecordError, match="a score"):
        records.convert(data, Score)
