"""Text that a model wrote itself, which is what its drafts will have to predict."""

from __future__ import annotations

from collections.abc import Sequence

from ..runtime.context import Context
from ..runtime.sampling import Sampler, SamplingParams
from ..speculate.controllers.fixed import Fixed
from ..speculate.loop import generate_steps
from .chunks import first_scored
from .results import Results
from .rounds import Follow, Progress, ignore


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


def written(
    context: Context,
    chunks: Sequence[tuple[int, ...]],
    seed: int,
    results: Results,
    follow: Follow = ignore,
) -> list[tuple[int, ...]]:
    """Each chunk `continued`, once per file of results. Chunk i has the seed seed + i."""
    texts = []
    for i, chunk in enumerate(chunks):
        text = results.text(i)
        if text is None:
            text = continued(context, chunk, seed + i)
            results.add_text(i, text)
        follow(Progress(i + 1, len(chunks), "writing text"))
        texts.append(text)
    return texts
