"""The operations that a context supports, and the promises that the library makes for it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """The abilities of a context, found when it is opened.

    architecture: of the model, for errors.
    is_causal: whether a row sees only the rows before it; else draft tokens would change results.
    has_memory: whether there is a K/V cache or other state (diffusion models have none).
    can_rollback: whether the last tokens of a sequence can be removed, however many.
    max_rollback: the most tokens that can be removed directly after a pass, once: all where
        can_rollback holds; else as many as replay or the snapshots of the recurrent state allow.
    has_states: whether sequences have recurrent states, of which checkpoints can be made.
    has_flash_attn: whether a model with attention in all blocks computes it with flash attention.
    exact_width: the most rows of a pass for which the bits of each row's results do not depend on
        the other rows. 0 where the library cannot promise that: where a GPU or a BLAS library may
        compute, and for architectures that add up over the rows of a pass.
    exact_prompts: whether a prompt gives identical bits however it is split, in passes wider than
        exact_width too; False where the library cannot promise that.
    pass_width: the most rows of a verification pass; a wider one could change the text or, where
        the library promises no width, could not be computed.
    """

    architecture: str
    is_causal: bool
    has_memory: bool
    can_rollback: bool
    max_rollback: int
    has_states: bool
    has_flash_attn: bool
    exact_width: int
    exact_prompts: bool
    pass_width: int

    @property
    def can_fork(self) -> bool:
        """Whether a sequence can share its tokens with another one."""
        return self.can_rollback or self.has_states

    @property
    def can_draft(self) -> bool:
        """Whether draft tokens change no result of the rows before them, and rejected ones can be
        removed: by the memory, by replay or with snapshots of its state, or by going back to a
        checkpoint."""
        return self.is_causal and (self.max_rollback > 0 or self.has_states)

    @property
    def can_branch(self) -> bool:
        """Whether branches of a text leave its bits alone: tokens can be removed (not in recurrent
        and hybrid models), and the cells that branches leave empty change nothing, which only flash
        attention promises."""
        return self.can_rollback and self.has_flash_attn

    @property
    def is_exact_beside_others(self) -> bool:
        """Whether the bits of a text do not depend on the other texts in the context, as long as
        passes keep to the exact width. False without flash attention, which some architectures do
        not have: other attention adds up in an order that depends on where the cells are."""
        return bool(self.exact_width and self.has_flash_attn)

    def require_rollback(self) -> None:
        """Raise UnsupportedError where not any number of last tokens can be removed."""
        if not self.can_rollback:
            raise self._no_drafts("drop any number of tokens, which this drafter needs")

    def require_drafts(self) -> None:
        """Raise UnsupportedError where there can be no drafts."""
        if not self.is_causal:
            raise UnsupportedError(
                "with is_causal=False, or in a model made so, draft tokens would change what the "
                "tokens before them give; decode plainly with draft=None"
            )
        if not self.can_draft:
            raise self._no_drafts("take tokens back, which drafting needs")

    def _no_drafts(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"architecture {self.architecture}: its memory cannot {what}; decode plainly with "
            "draft=None (--draft off)"
        )
