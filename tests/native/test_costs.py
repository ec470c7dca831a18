"""Costs from the weights of a file."""

import itertools

import pytest

from pyselfspec.costs.by_bytes import costs_by_bytes
from pyselfspec.gguf import file as gguf_file
from pyselfspec.masks.layer_mask import LayerMask
from tools.models import tiny_gguf


def test_estimates_come_from_weight_bytes(tmp_path):
    file = gguf_file.check(tiny_gguf.write(tmp_path / "m.gguf", "llama", n_layer=4))
    mask = LayerMask.early_exit(4, 1)
    shared, forked = (costs_by_bytes(file, mask, s).levels[0] for s in (True, False))
    total = file.weight_bytes()
    block = file.blocks[0].total
    assert shared.token_us / shared.plain_us == pytest.approx((block + file.head_bytes) / total)
    assert shared.last_us / shared.plain_us == pytest.approx(block / total)
    assert shared.verify_us[0] / shared.plain_us == pytest.approx(1 - block / total)
    assert forked.verify_us == forked.full_us and forked.last_us == 0
    assert all(a < b for a, b in itertools.pairwise(shared.verify_us))
