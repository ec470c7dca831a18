"""Checks what another run drafted, without drafting: the reference for texts of the same widths.

A full pass checks a draft as one batch, and kernels may round differently for a batch than for a
single token. A replay decodes the very same batches, none of them with a mask of the draft, so its
text must be equal whatever the kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pyselfspec import (
    Context,
    Draft,
    DraftLimit,
    LayerMask,
    Sampler,
    SamplingParams,
    Step,
    Verdict,
    generate_steps,
)
from pyselfspec.speculate.controllers import Controller
from pyselfspec.speculate.drafters import Drafter
from pyselfspec.speculate.types import SharedBlocks


def run_steps(
    context: Context,
    prompt: Sequence[int],
    drafter: Drafter,
    controller: Controller,
    sampling: SamplingParams,
    n_predict: int,
    ends: Callable[[int], bool] | None = None,
) -> list[Step]:
    """All steps of a text; ends as for generate_steps."""
    with Sampler(context.model, sampling) as sampler:
        return list(
            generate_steps(
                context,
                prompt,
                drafter=drafter,
                controller=controller,
                sampler=sampler,
                n_predict=n_predict,
                ends=ends,
            )
        )


class Replay:
    """Proposes what another run drafted, without running anything; but where that run left shared
    blocks, it runs those, with the full model, one token at a time."""

    def __init__(self, steps: Sequence[Step], context: Context | None = None) -> None:
        self._drafts = [step.draft for step in steps]
        self._context = context

    def begin(self, history: Sequence[int]) -> None:
        pass

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        draft = self._drafts.pop(0)
        if draft.shared is None:
            return draft
        assert self._context
        first = draft.shared.mask.first_active
        shared = LayerMask.early_exit(draft.shared.mask.n_layer, first)
        states = [
            self._context.decode([token], mask=shared, hidden_at=first, outputs="none").hidden
            for token in (history[-1], *draft.tokens)
        ]
        hidden = np.concatenate([state for state in states if state is not None])
        return replace(draft, shared=SharedBlocks(draft.shared.mask, hidden))

    def accept(self, verdict: Verdict) -> None:
        pass


class AsDrafted:
    """Lets Replay decide."""

    def limit(self, n_past: int) -> DraftLimit:
        return DraftLimit(64)

    def observe(self, step: Step) -> None:
        pass
