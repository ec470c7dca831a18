"""Text that a model wrote itself, which is what its drafts will have to guess."""

from __future__ import annotations

from ..runtime.context import Context
from ..runtime.sampling import Sampler, SamplingParams
from ..speculate.controllers.fixed import Fixed
from ..speculate.loop import generate_steps
from .chunks import first_scored


def continued(context: Context, chunk: tuple[int, ...], seed: int) -> tuple[int, ...]:
    """A chunk whose second half the model wrote, with the default sampler.

    Uses sequence 0. A token that would end the text does not end it.
    """
    model = context.model
    first = first_scored(len(chunk))
    written: list[int] = []
    with Sampler(model, SamplingParams(seed=seed)) as sampler:
        for step in generate_steps(
            context,
            chunk[:first],
            controller=Fixed(),
            sampler=sampler,
            n_predict=len(chunk) - first,
            ends=lambda _token: False,
        ):
            written += step.tokens
    context.sequence().drop()
    return (*chunk[:first], *written)
