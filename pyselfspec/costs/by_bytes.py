"""Estimates costs of passes from the bytes of the weights that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GgufFile
from ..masks.layer_mask import LayerMask
from .table import N_WIDTH, Costs, CostTable

WIDTH_COST = 0.25  # of one more token in a pass; between that of a GPU and of a CPU with few cores
BYTES_PER_US = 1e4  # arbitrary: before there are timings, only ratios count


def costs_by_bytes(
    file: GgufFile,
    mask: LayerMask,
    shares: bool,
    head_share: float = 1.0,
    widths: Sequence[float] | None = None,
) -> CostTable:
    """Return the estimated costs of drafting with a mask.

    shares: whether draft and verification pass share the blocks below the first skipped one.
    head_share: share of the output matrix's rows that a draft token computes.
    widths: times of full passes over 1 to N_WIDTH tokens, relative to that of one; None: by
        WIDTH_COST.
    """
    full = file.weight_bytes()
    blocks = range(mask.first_skipped, mask.n_layer)
    shared = file.weight_bytes(blocks, blocks) - file.head_bytes if shares else 0
    drafting = file.weight_bytes(mask.skip_attn, mask.skip_ffn)
    drafting -= round((1 - head_share) * file.head_bytes)
    widths = widths or [1 + WIDTH_COST * i for i in range(N_WIDTH)]
    return CostTable(
        (
            Costs(
                0,
                tuple(w * full / BYTES_PER_US for w in widths),
                tuple(w * (full - shared) / BYTES_PER_US for w in widths),
                drafting / BYTES_PER_US,
                shared / BYTES_PER_US,
            ),
        )
    )


@dataclass(frozen=True, slots=True)
class ByteCosts:
    """Costs of masked passes from the bytes of the weights, over that of a plain token. Measuring
    every mask would take longer than most are worth.

    shares: whether draft and verification pass share the blocks below the first skipped one.
    """

    file: GgufFile
    shares: bool = False

    def draft(self, mask: LayerMask) -> float:
        return self.wide(mask, 1)

    def step(self, mask: LayerMask, n_draft: int) -> float:
        costs = self._costs(mask)
        return costs.step_us(n_draft, n_draft) / costs.plain_us

    def wide(self, mask: LayerMask, n_tokens: int) -> float:
        costs = self._costs(mask)
        return costs.full_us[n_tokens - 1] * costs.token_us / costs.plain_us**2

    def _costs(self, mask: LayerMask) -> Costs:
        return costs_by_bytes(self.file, mask, self.shares).levels[0]
