"""What passes cost by the bytes of the weights that they read, for want of measurements."""

from __future__ import annotations

from dataclasses import dataclass

from ..gguf.file import GgufFile
from ..masks.layer_mask import LayerMask
from .table import N_WIDTH, Costs, CostTable

WIDTH_COST = 0.25  # of one more token in a pass; between a GPU's and that of a CPU with few cores
BYTES_PER_US = 1e4  # any figure will do, only ratios count before there are timings


def guessed_costs(file: GgufFile, mask: LayerMask, shares: bool) -> CostTable:
    """Costs from the bytes of the weights that a pass reads, for want of measurements."""
    full = file.weight_bytes()
    blocks = range(mask.first_skipped, mask.n_layer)
    shared = file.weight_bytes(blocks, blocks) - file.head_bytes if shares else 0
    widths = [1 + WIDTH_COST * i for i in range(N_WIDTH)]
    return CostTable(
        (
            Costs(
                0,
                tuple(w * full / BYTES_PER_US for w in widths),
                tuple(w * (full - shared) / BYTES_PER_US for w in widths),
                file.weight_bytes(mask.skip_attn, mask.skip_ffn) / BYTES_PER_US,
                shared / BYTES_PER_US,
            ),
        )
    )


@dataclass(frozen=True, slots=True)
class ByteCosts:
    """Masked passes by the bytes of the weights they read; wide ones as measured, where they were.

    A table measured for each mask would be better, but takes longer than most masks are worth.

    shares: whether draft and check run the blocks below the first skip only once.
    widths: times of full passes over 1, 2, ... tokens over that of one, see
        calibration.width_costs.
    """

    file: GgufFile
    shares: bool = False
    widths: tuple[float, ...] | None = None

    def draft(self, mask: LayerMask) -> float:
        costs = self._costs(mask)
        return costs.guess_us / costs.plain_us

    def step(self, mask: LayerMask, n_draft: int) -> float:
        costs = self._costs(mask)
        check_us = costs.verify_us(n_draft, n_draft)
        if self.widths is not None:
            check_us *= self.widths[n_draft] * costs.plain_us / costs.full_us[n_draft]
        return (costs.draft_us(n_draft, n_draft) + check_us) / costs.plain_us

    def wide(self, mask: LayerMask, n_tokens: int) -> float:
        costs = self._costs(mask)
        times = self.widths or [us / costs.plain_us for us in costs.full_us]
        return times[n_tokens - 1] * costs.guess_us / costs.plain_us

    def _costs(self, mask: LayerMask) -> Costs:
        return guessed_costs(self.file, mask, self.shares).levels[0]
