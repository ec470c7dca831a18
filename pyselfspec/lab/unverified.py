"""Texts that a mask writes and nothing verifies: the texts of the model that is left, for research.

Layers that were skipped for drafts are judged by them; a text of their own shows what they can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.sampling import Sampler
from ..speculate.completion import Completion, CompletionOptions
from ..speculate.controllers.fixed import Fixed
from ..speculate.generation import Generation
from ..speculate.residual import Residual


class UnverifiedCompletion(Completion):
    """A completion whose passes all skip what the mask skips, those over the prompt too.

    The K/V cache of the prompt is the masked model's, so nothing in it is reused, before or after.
    Raises MaskError for a mask of a model with another number of blocks.
    """

    def __init__(
        self,
        context: Context,
        prompt: str | Sequence[int],
        mask: LayerMask,
        **options: Unpack[CompletionOptions],
    ) -> None:
        super().__init__(context, prompt, None, **options)
        self._mask = mask.require(context.model.n_layer)

    @property
    def mask(self) -> LayerMask:
        """The sublayers that the text is written without."""
        return self._mask

    def _generation(self, sampler: Sampler, residual: Residual | None) -> Generation:
        return Generation(
            self._seq,
            self.prompt,
            drafter=None,
            controller=Fixed(),
            sampler=sampler,
            n_predict=self._n_predict,
            consume=self._stream.consume,
            mask=self._mask,
        )
