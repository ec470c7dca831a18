"""Blocks that a draft and its verification pass share and that run once.

Elhoushi et al., "LayerSkip", section 4.3, https://arxiv.org/abs/2404.16710, here for any mask: the
blocks below the first one that the mask touches compute the same values with and without it. So a
masked pass returns the hidden states that enter that block, and the verification pass enters with
them and rewrites K/V in place.
"""

from __future__ import annotations

from dataclasses import replace

from ....masks.layer_mask import LayerMask
from ....runtime.context import Context
from ....runtime.passes import Hidden, Pass


class SharedBlocks:
    """The passes of one draft. The first of them raises UnsupportedError unless ``possible``."""

    def __init__(self, mask: LayerMask) -> None:
        self._mask = mask
        self._first = mask.first_skipped
        self._below = LayerMask.early_exit(mask.n_layer, self._first)
        self._rest = LayerMask.enter_at(mask.n_layer, self._first)
        self._states: list[Hidden] = []

    @staticmethod
    def possible(context: Context, mask: LayerMask) -> bool:
        """Return whether the architecture can enter at a block and there are blocks to share."""
        return context.can_enter(mask.first_skipped)

    def drafting(self, what: Pass) -> Pass:
        """Return the masked pass so that it also returns hidden states."""
        return replace(what, leave=self._first)

    def below(self) -> Pass:
        """Return a pass of the shared blocks alone, for a token after which nothing is drafted."""
        return Pass(self._below, leave=self._first)

    def keep(self, states: Hidden | None) -> None:
        """Keep the hidden states of one of these passes; call it in the order of the text."""
        assert states is not None
        self._states.append(states)

    @property
    def states(self) -> Hidden:
        """The states that were kept, one row per token."""
        return Hidden.joined(self._states)

    def verification(self) -> Pass:
        """Return a pass of the other blocks for all tokens whose states were kept."""
        return Pass(self._rest, enter=self.states, in_place=True)
