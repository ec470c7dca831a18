"""Estimates costs of passes from the bytes of the weights that they read."""

from __future__ import annotations

from dataclasses import dataclass

from ..gguf.file import GgufFile
from ..masks.layer_mask import LayerMask
from .table import N_WIDTH, Costs, CostTable

WIDTH_COST = 0.25  # of one more token in a pass; between that of a GPU and of a CPU with few cores
BYTES_PER_US = 1e4  # arbitrary: before there are timings, only ratios count


def costs_by_bytes(
    file: GgufFile, mask: LayerMask, shares: bool, head_share: float = 1.0
) -> CostTable:
    """Return the estimated costs of drafting with a mask.

    shares: whether draft and verification pass share the blocks below the first skipped one.
    head_share: share of the output matrix's rows that a draft token computes.
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
    """Return the estimated costs if drafts attend to n_seen tokens only, from the bytes of weights
    and K/V that a pass reads.

    kv_bytes: K/V of one token. n_ctx: size of the context, more than n_seen.
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
    """Costs of masked passes from the bytes of the weights, and from measured relative times of
    wide passes if there are any. Measuring every mask would take longer than most are worth.

    shares: whether draft and verification pass share the blocks below the first skipped one.
    widths: relative times of full passes, see lookup.mask_costs.
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
