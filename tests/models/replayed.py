"""Texts with drafts on a device, and the same passes without the drafts: equal on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyselfspec import GREEDY, Completion, Context, Model, SamplingParams
from pyselfspec.speculate.types import Step
from tools.replay import AsDrafted, Recorded, Replay, run_steps

N = 16  # tokens of a text
IDS = [5 + i % 9 for i in range(30)]


def opened(model: Model, **options: Any) -> Context:
    return model.context(**({"n_ctx": 256, "n_threads": 1} | options))


def written(context: Context, prompt: str | Sequence[int], **options: Any) -> Completion:
    made = Completion(context, prompt, n_predict=N, **options)
    for _ in made:
        pass
    return made


def replayed(
    context: Context, prompt: Sequence[int], sampling: SamplingParams, steps: Sequence[Step]
) -> list[int]:
    """Write a text in the passes of these steps, without their drafters."""
    again = run_steps(context, prompt, Replay(steps), AsDrafted(), sampling, n_predict=N)
    return [token for step in again for token in step.tokens]


def both(
    model: Model, prompt: Sequence[int], sampling: SamplingParams, **options: Any
) -> tuple[Completion, list[int]]:
    """Return a text with drafts, and the tokens of its replay."""
    recorded = Recorded()
    with opened(model) as context:
        made = written(context, prompt, sampling=sampling, **(options | {"controller": recorded}))
    with opened(model) as context:
        return made, replayed(context, prompt, sampling, recorded.steps)


def both_of_two(
    model: Model, prompt: Sequence[int], more: Sequence[int], **options: Any
) -> tuple[list[int], list[int], int]:
    """Return the tokens of a text with drafts and of another that continues it, those of their
    replays, and how many tokens the second text reused."""
    turns: list[tuple[Sequence[int], Recorded]] = []
    tokens: list[int] = []
    with opened(model) as context:
        for after in ((), more):
            turns.append(([*prompt, *tokens, *after], Recorded()))
            recorded = turns[-1][1]
            made = written(context, turns[-1][0], sampling=GREEDY, controller=recorded, **options)
            tokens += made.tokens
    with opened(model) as context:
        texts = [replayed(context, turn, GREEDY, each.steps) for turn, each in turns]
    return tokens, [token for text in texts for token in text], made.stats.n_prompt_reused
