"""Reports of scans, with the costs of a model."""

import pytest

from pyselfspec import LayerMask
from pyselfspec.costs.by_bytes import WIDTH_COST, ByteCosts


def test_costs_by_bytes(demo):
    file, half = demo.file, LayerMask.early_exit(demo.n_layer, 6)
    apart = ByteCosts(file)
    assert apart.draft(LayerMask.full(demo.n_layer)) == 1.0
    share = file.weight_bytes(half.skip_attn, half.skip_ffn) / file.weight_bytes()
    assert apart.draft(half) == pytest.approx(share)
    assert apart.step(half, 2) == pytest.approx(2 * share + 1 + 2 * WIDTH_COST)
    assert ByteCosts(file, shares=True).step(half, 2) < apart.step(half, 2)
