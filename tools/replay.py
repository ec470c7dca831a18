"""Checks what another run drafted, without drafting: the reference for texts of the same widths.

A full pass checks a draft as one batch, and kernels may round differently for a batch than for a
single token. A replay decodes the very same batches, none of them with a mask of the draft, so its
text must be equal whatever the kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyselfspec import (
    Context,
    Draft,
    DraftLimit,
    LayerMask,
    Sampler,
    SamplingParams,
    Step,
    generate_steps,
)
from pyselfspec.costs.table import CostTable
from pyselfspec.runtime.kv import KVSequence
from pyselfspec.runtime.passes import Hidden, Pass, Rows
from pyselfspec.speculate.controllers import Controller
from pyselfspec.speculate.drafters import Drafter
from pyselfspec.speculate.pass_requests import PassRequest, Work


def run_steps(
    context: Context,
    prompt: Sequence[int],
    drafter: Drafter | None,
    controller: Controller,
    sampling: SamplingParams,
    n_predict: int,
    consume: Callable[[int], bool] | None = None,
) -> list[Step]:
    """All steps of a text; consume as for generate_steps."""
    with Sampler(context.model, sampling) as sampler:
        return list(
            generate_steps(
                context,
                prompt,
                drafter=drafter,
                controller=controller,
                sampler=sampler,
                n_predict=n_predict,
                consume=consume,
            )
        )


class Replay(Drafter):
    """Proposes what another run drafted, without running anything; but where that run left shared
    blocks, it runs those, with the full model, one token at a time."""

    name = "replay"

    def __init__(self, steps: Sequence[Step]) -> None:
        self._drafts = [step.draft for step in steps]
        self._seq: KVSequence | None = None

    def costs(self) -> CostTable:
        raise NotImplementedError("a replay is not timed")

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._seq = seq

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft | Work[Draft]:
        draft = self._drafts.pop(0)
        return self._shared(draft, history) if draft.verification.in_place else draft

    def _shared(self, draft: Draft, history: Sequence[int]) -> Work[Draft]:
        assert self._seq is not None and draft.verification.mask is not None
        first = draft.verification.mask.first_active
        below = Pass(LayerMask.early_exit(draft.verification.mask.n_layer, first), leave=first)
        states = []
        for i, token in enumerate((history[-1], *draft.token_ids)):
            rows = Rows.of(self._seq.seq_id, len(history) - 1 + i, [token], "none")
            answer = yield PassRequest(rows, below)
            assert answer.hidden is not None
            states.append(answer.hidden)
        return replace(draft, verification=replace(draft.verification, enter=Hidden.joined(states)))


class AsDrafted:
    """Lets Replay decide."""

    def limit(self, n_past: int) -> DraftLimit:
        return DraftLimit(64)

    def observe(self, step: Step) -> None:
        pass


class Recorded:
    """Drafts n_max tokens at a time, and keeps the steps for a replay."""

    def __init__(self, n_max: int = 4) -> None:
        self.n_max = n_max
        self.steps: list[Step] = []

    def limit(self, n_past: int) -> DraftLimit:
        return DraftLimit(self.n_max)

    def observe(self, step: Step) -> None:
        self.steps.append(step)
