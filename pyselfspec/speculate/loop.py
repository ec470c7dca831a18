"""The loop: begin a text, then draft, verify and settle, step by step. Knows the protocols, never a
concrete drafter or controller.

Plain decoding is this loop without a drafter, so there is no second path to keep equal.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from ..errors import ArgumentError, ContextFullError
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from ..runtime.sampling import Sampler
from .controllers import Controller
from .drafters import Drafter
from .requests import run
from .text import Text
from .types import Step


def generate_steps(
    context: Context,
    prompt: Sequence[int],
    *,
    seq: KVSequence | None = None,
    drafter: Drafter | None = None,
    controller: Controller,
    sampler: Sampler,
    n_predict: int,
    ends: Callable[[int], bool] | None = None,
) -> Generator[Step, None, None]:
    """Yield steps until n_predict tokens, the end of the text, or a full context, other sequences
    included.

    seq: default: sequence 0. The others as for Text, whose errors are raised at the first step.
    """
    seq = context.sequence() if seq is None else seq
    if seq.context is not context:
        raise ArgumentError("the sequence belongs to another context")
    text = Text(
        seq,
        prompt,
        drafter=drafter,
        controller=controller,
        sampler=sampler,
        n_predict=n_predict,
        ends=ends,
    )
    yield from steps_of(context, text)


def steps_of(context: Context, text: Text) -> Generator[Step, None, None]:
    """The same for a text that is there already."""
    run(context, text.begin())
    while not text.ended:
        try:
            step = run(context, text.step())
        except ContextFullError:
            return  # only one that finds other sequences in the way, see Text.step
        yield step
