"""The loop: draft, one full pass, verdict. Knows the protocols, never a concrete drafter or
controller.

Plain decoding is this loop with the drafter ``off``, so there is no second path to keep equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial

from ..errors import ArgumentError, ContextFullError, UnsupportedError
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from ..runtime.sampling import Sampler
from .controllers import Controller
from .drafters import Drafter
from .types import Draft, Step
from .verify import verify


def check(context: Context, seq: KVSequence, history: Sequence[int], draft: Draft) -> None:
    """The full model's pass over the last token of history and the draft, with logits of each."""
    tokens, pos = [history[-1], *draft.tokens], len(history) - 1
    if draft.shared is None:
        context.decode(tokens, seq=seq, pos=pos)
    else:
        mask, hidden = draft.shared.mask, draft.shared.hidden
        context.decode(tokens, seq=seq, pos=pos, mask=mask, hidden=hidden, in_place=True)


def generate_steps(
    context: Context,
    prompt: Sequence[int],
    *,
    drafter: Drafter,
    controller: Controller,
    sampler: Sampler,
    n_predict: int,
    ends: Callable[[int], bool] | None = None,
) -> Generator[Step, None, None]:
    """Yield steps until n_predict tokens, the end of the text, or a full context.

    ends: told every generated token once, in order; True when it ends the text. Default: the
    model's end-of-generation tokens.

    Sequence 0 starts empty and holds, whenever control is outside and however the loop is left, the
    prompt and the generated tokens but the last, whose K/V the next pass would compute. Masks never
    touch the prompt. At the first step, raises ArgumentError for an empty prompt or n_predict < 1,
    ContextFullError when the prompt does not fit.
    """
    if not prompt:
        raise ArgumentError("the prompt has no tokens; generation needs at least one")
    if n_predict < 1:
        raise ArgumentError(f"n_predict is at least 1, got {n_predict}")

    ends = ends or context.model.is_eog
    history = list(prompt)
    seq = context.sequence(0)
    seq.drop()
    if len(prompt) > context.n_ctx:
        raise ContextFullError(
            f"the prompt has {len(prompt)} tokens, the context {context.n_ctx}; "
            "use a larger context (-c) or a shorter prompt"
        )
    context.prefill(prompt[:-1], seq)
    sampler.begin(prompt)
    drafter.begin(history)
    sample = partial(sampler.sample, context)
    n_end = len(prompt) + n_predict
    ended = False
    # a pass needs cells for the last token and the draft
    while not ended and len(history) < n_end and len(history) <= context.n_ctx:
        room = min(n_end - len(history) - 1, context.n_ctx - len(history))
        limit = controller.limit(len(history) - 1).capped(min(room, context.n_batch - 1))
        draft = drafter.draft(history, limit) if limit.n_max else Draft()

        start = time.perf_counter_ns()
        try:
            check(context, seq, history, draft)
            verdict = verify(draft.tokens, sample, ends)
        except BaseException:
            with suppress(UnsupportedError):  # no rollback, no matter: the next text starts anew
                seq.rollback(len(history) - 1)
            raise
        step = Step(draft, verdict, (time.perf_counter_ns() - start) // 1000)

        ended = verdict.ended
        history += step.tokens
        seq.rollback(len(history) - 1)
        drafter.accept(verdict)
        controller.observe(step)
        yield step
