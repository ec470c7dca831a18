"""What passes cost by the bytes of the weights that they read, for want of measurements."""

from __future__ import annotations

from dataclasses import dataclass

from ..gguf.file import GgufFile
from ..masks.layer_mask import LayerMask
from .table import N_WIDTH, Costs, CostTable

WIDTH_COST = 0.25  # of one more token in a pass; between a GPU's and that of a CPU with few cores
BYTES_PER_US = 1e4  # any figure will do, only ratios count before there are timings


def costs_by_bytes(
    file: GgufFile, mask: LayerMask, shares: bool, head_share: float = 1.0
) -> CostTable:
    """Costs from the bytes of the weights that a pass reads, for want of measurements.

    head_share: of the head's rows, those that a draft token looks at.
    """
    full = file.weight_bytes()
    blocks = range(mask.first_skipped, mask.n_layer)
    shared = file.weight_bytes(blocks, blocks) - file.head_bytes if shares else 0
    drafting = file.weight_bytes(mask.skip_attn, mask.skip_ffn)
    drafting -= round((1 - head_share) * file.head_bytes)
    widths = [1 + WIDTH_COST * i for i in range(N_WIDTH)]
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


def costs_by_kv(
    file: GgufFile, mask: LayerMask, kv_bytes: int, n_seen: int, n_ctx: int
) -> CostTable:
    """Costs where drafts see n_seen tokens of the text, and full passes all of it: from the bytes
    of the weights and of the K/V that a pass reads.

    kv_bytes: of one token. n_ctx: tokens of the context, more than n_seen.
    """
    base = costs_by_bytes(file, mask, shares=False).levels[0]
    attending = 1 - len(mask.skip_attn) / mask.n_layer

    def level(n_past: int) -> Costs:
        longer = 1 + kv_bytes * n_past / file.weight_bytes()
        full_us = tuple(us * longer for us in base.full_us)
        seen_us = attending * kv_bytes * min(n_past, n_seen) / BYTES_PER_US
        return Costs(n_past, full_us, full_us, base.token_us + seen_us, 0.0)

    return CostTable(tuple(level(n_past) for n_past in (0, n_seen, n_ctx)))


@dataclass(frozen=True, slots=True)
class ByteCosts:
    """Masked passes by the bytes of the weights they read; wide ones as measured, where they were.

    A table measured for each mask would be better, but takes longer than most masks are worth.

    shares: whether draft and verification run the blocks below the first skip only once.
    widths: times of full passes over 1, 2, ... tokens over that of one, see
        calibration.width_costs.
    """

    file: GgufFile
    shares: bool = False
    widths: tuple[float, ...] | None = None

    def draft(self, mask: LayerMask) -> float:
        costs = self._costs(mask)
        return costs.token_us / costs.plain_us

    def step(self, mask: LayerMask, n_draft: int) -> float:
        costs = self._costs(mask)
        verify_us = costs.verifying_us(n_draft, n_draft)
        if self.widths is not None:
            verify_us *= self.widths[n_draft] * costs.plain_us / costs.full_us[n_draft]
        return (costs.drafting_us(n_draft, n_draft) + verify_us) / costs.plain_us

    def wide(self, mask: LayerMask, n_tokens: int) -> float:
        costs = self._costs(mask)
        times = self.widths or [us / costs.plain_us for us in costs.full_us]
        return times[n_tokens - 1] * costs.token_us / costs.plain_us

    def _costs(self, mask: LayerMask) -> Costs:
        return costs_by_bytes(self.file, mask, self.shares).levels[0]
