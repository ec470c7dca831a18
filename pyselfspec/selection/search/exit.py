"""Every early exit, the shallowest first, as LayerSkip's sweep over exit layers."""

from __future__ import annotations

from ...masks.layer_mask import LayerMask
from . import Setting, Trial


class Search:
    def __init__(self, setting: Setting) -> None:
        space = setting.space
        exits = (LayerMask.early_exit(space.n_layer, k) for k in range(1, space.n_layer))
        self._left = [mask for mask in exits if space.mask(space.inside(mask)) == mask]

    def ask(self) -> LayerMask | None:
        return self._left.pop(0) if self._left else None

    def tell(self, trial: Trial) -> None:
        pass
