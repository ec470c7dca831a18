"""Every early exit, the shallowest first, like LayerSkip's sweep over exit layers.

Elhoushi et al., "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding",
https://arxiv.org/abs/2404.16710. It ignores the share.
"""

from __future__ import annotations

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ..rounds import Round
from . import Rounds, Setting, from_rounds


@from_rounds
def make(setting: Setting) -> Rounds:
    space = setting.space
    exits = (LayerMask.early_exit(space.n_layer, keep) for keep in range(1, space.n_layer))
    masks = [mask for mask in exits if space.mask(space.inside(mask)) == mask]
    if not masks:
        raise ArgumentError("the strategy exit needs blocks that can be skipped whole")
    for mask in masks:
        yield Round.of_one(mask)
