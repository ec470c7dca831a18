"""Numbers of a scan: ranks, the curve, expected speeds; and that pictures show them."""

import json

import numpy as np
import pytest

from pyselfspec import LayerMask, plots
from pyselfspec.costs.speedup import Gain, gain
from pyselfspec.masks.score import Score
from pyselfspec.selection.objectives import agreement, perplexity
from pyselfspec.selection.report import report
from pyselfspec.selection.rounds import Scored
from pyselfspec.selection.tables import best_line, to_dict, to_lines

N = 4
FULL = LayerMask.full(N)
UNITS = [
    mask
    for il in range(N)
    for mask in (LayerMask.skipping(N, attn=[il]), LayerMask.skipping(N, ffn=[il]))
]


class Tenths:
    """Every sublayer costs a tenth of a full pass; verifying n tokens costs 1 + n / 4."""

    def draft(self, mask):
        return 0.2 + mask.n_active / 10

    def step(self, mask, n_draft):
        return n_draft * self.draft(mask) + 1 + n_draft / 4


def shown_by(objective):
    """An objective that needs no model, since it only shows scores."""
    return objective.Objective.__new__(objective.Objective)


def scored(objective, mask, score, complete=True):
    return Scored(mask, score, shown_by(objective).value(mask, score), complete)


def right(share, n=200):
    """A score of agreement with this share of right tokens, evenly spread."""
    hits = np.floor(np.arange(1, n + 1) * share) > np.floor(np.arange(n) * share)
    return Score.of_drafts(hits.reshape(10, n // 10))


@pytest.fixture
def found():
    totals = {unit: (2, right(0.99 - 0.1 * i)) for i, unit in enumerate(UNITS)}
    most = LayerMask.skipping(N, attn=[0, 1, 2, 3], ffn=[1, 2, 3])
    chosen = [
        *(scored(agreement, unit, totals[unit][1]) for unit in UNITS),
        scored(agreement, most, right(0.9)),
        scored(
            agreement,
            LayerMask.skipping(N, attn=[1, 2, 3], ffn=[0, 1, 2, 3]),
            right(0.95),
            complete=False,
        ),
    ]
    full = scored(agreement, FULL, right(1.0))
    return report(shown_by(agreement), full, totals, chosen, UNITS, Tenths())


def test_units_are_ranked_by_harm(found):
    assert [u.rank for u in found.units] == list(range(1, 9))
    assert [(u.block, u.kind) for u in found.units[:3]] == [
        (0, "attention"), (0, "feed-forward"), (1, "attention")
    ]  # fmt: skip
    assert all(u.cost == pytest.approx(0.1) for u in found.units)


def test_the_curve_has_the_best_complete_mask_of_each_size(found):
    assert [p.share for p in found.curve] == [0, 1 / 8, 7 / 8]
    assert [p.mask for p in found.curve[:2]] == [FULL, UNITS[0]]
    assert found.curve[2].score == right(0.9)


def test_the_best_mask_is_the_one_with_the_best_expected_speed(found):
    best = found.best
    assert best is not None and best.speed > 1 and best.speed == max(p.speed for p in found.curve)
    assert f"expected {best.speed:.2f}x" in best_line(best, found.about.label)


def test_expected_speed_by_hand():
    score = Score.of_drafts(np.array([[True, True, False, True]]))  # runs: 3 of 4, 1 of 3, 0 of 2
    mask = LayerMask.skipping(N, attn=[0, 1], ffn=[0, 1])  # 0.6
    assert gain(score, mask, Tenths()) == Gain(1.75 / (0.6 + 1.25), 1)
    cheap = LayerMask.skipping(N, attn=[0, 1, 2, 3], ffn=[1, 2, 3])  # 0.3
    two = (1 + 3 / 4 + 1 / 3) / (0.6 + 1.5)
    assert gain(score, cheap, Tenths()) == Gain(max(1.75 / (0.3 + 1.25), two), 1)


def test_perplexities_have_no_expected_speed():
    full = Score.of(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    worse = Score.of(np.array([3.0, 4.0]), np.array([1.0, 2.0]))
    found = report(
        shown_by(perplexity),
        scored(perplexity, FULL, full),
        {UNITS[0]: (1, worse)},
        [scored(perplexity, UNITS[0], worse)],
        UNITS,
        Tenths(),
    )
    assert found.best is None and found.curve[1].speed is None
    assert found.units[0].shown.value == pytest.approx(np.exp(3.5))
    assert "expected" not in "\n".join(to_lines(found))
    assert best_line(found.curve[1], "perplexity").endswith("perplexity 33.115")


def test_the_table_has_a_line_per_block_and_json_the_same_numbers(found):
    lines = to_lines(found)[3:]
    blocks = [line.split() for line in lines[: lines.index("")]]
    assert [line[0] for line in blocks] == ["0", "1", "2", "3"]
    data = json.loads(json.dumps(to_dict(found)))
    for unit in data["units"]:
        assert f"{unit['agreement']:.3f}" in blocks[unit["block"]]
    assert [p["skipped"] for p in data["curve"]] == [0, 0.125, 0.875]
    assert LayerMask.from_dict(data["curve"][2]["mask"]) == found.curve[2].mask


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_show_the_numbers(found, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    from pyselfspec.plots import scan as picture

    figure = picture.draw(found, "a title")
    bars, curve = figure.axes
    assert [bar.get_height() for bar in bars.patches[:4]] == pytest.approx(
        [u.lost for u in found.units if u.kind == "attention"]
    )
    assert list(curve.lines[0].get_xdata()) == [100 * p.share for p in found.curve]
    plots.save(figure, tmp_path / f"scan{suffix}")
    data = (tmp_path / f"scan{suffix}").read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert len(data) > 5000
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == [f"scan{suffix}"]
