"""Reports of scans, with the costs of a model."""

import pytest

from pyselfspec import LayerMask
from pyselfspec.costs.by_bytes import WIDTH_COST, ByteCosts
from pyselfspec.costs.table import N_WIDTH


def test_costs_by_bytes(demo):
    file, half = demo.file, LayerMask.early_exit(demo.n_layer, 6)
    apart = ByteCosts(file)
    assert apart.draft(LayerMask.full(demo.n_layer)) == 1.0
    share = file.weight_bytes(half.skip_attn, half.skip_ffn) / file.weight_bytes()
    assert apart.draft(half) == pytest.approx(share)
    assert apart.step(half, 2) == pytest.approx(2 * share + 1 + 2 * WIDTH_COST)
    assert ByteCosts(file, shares=True).step(half, 2) < apart.step(half, 2)


def test_measured_widths_take_the_place_of_guessed_ones(demo):
    half = LayerMask.early_exit(demo.n_layer, 6)
    guessed = tuple(1 + WIDTH_COST * i for i in range(N_WIDTH))
    for shares in (False, True):
        plain = ByteCosts(demo.file, shares)
        assert ByteCosts(demo.file, shares, guessed).step(half, 3) == pytest.approx(
            plain.step(half, 3)
        )
        expensive = ByteCosts(demo.file, shares, tuple(2 * w for w in guessed))
        check = plain.step(half, 3) - (expensive.step(half, 3) - plain.step(half, 3))
        assert check == pytest.approx(3 * plain.draft(half), abs=0.6)  # the draft stays as it was
        assert expensive.step(half, 3) > plain.step(half, 3)
