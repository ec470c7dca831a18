"""Blocks that a draft and its verification pass have in common, run once.

Elhoushi et al., "LayerSkip", section 4.3, https://arxiv.org/abs/2404.16710, here for any mask: the
blocks below the first one of which the mask skips anything compute the same with the mask and
without. So a masked pass leaves the states that enter there, and the verification pass enters with
them and rewrites K/V in place.
"""

from __future__ import annotations

from dataclasses import replace

from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.passes import Hidden, Pass


class SharedBlocks:
    """The passes of one draft.

    Raises UnsupportedError at the first pass where ``possible`` says no.
    """

    def __init__(self, mask: LayerMask) -> None:
        self._mask = mask
        self._first = mask.first_skipped
        self._below = LayerMask.early_exit(mask.n_layer, self._first)
        self._rest = LayerMask.enter_at(mask.n_layer, self._first)
        self._states: list[Hidden] = []

    @staticmethod
    def possible(context: Context, mask: LayerMask) -> bool:
        """Whether this architecture can do it, and there are blocks to share."""
        return context.can_enter(mask.first_skipped)

    def drafting(self, what: Pass) -> Pass:
        """A masked pass that leaves its states besides."""
        return replace(what, leave=self._first)

    def below(self) -> Pass:
        """The shared blocks alone, for a token that is not drafted from."""
        return Pass(self._below, leave=self._first)

    def keep(self, states: Hidden | None) -> None:
        """States that one of these passes left, in the order of the text."""
        assert states is not None
        self._states.append(states)

    @property
    def states(self) -> Hidden:
        """Those that were kept."""
        return Hidden.joined(self._states)

    def verification(self) -> Pass:
        """The other blocks, for all tokens whose states were kept."""
        return Pass(self._rest, enter=self.states, in_place=True)
