"""No drafts: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ..types import Draft, DraftLimit, Verdict


class Drafter:
    def __init__(self, context: Context, mask: LayerMask) -> None:
        pass

    def begin(self, history: Sequence[int]) -> None:
        pass

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        return Draft()

    def accept(self, verdict: Verdict) -> None:
        pass
