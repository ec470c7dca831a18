"""What a head gains: the same text plainly and with drafts, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..runtime.context import Context
from ..runtime.model import Model
from ..runtime.sampling import GREEDY
from ..speculate.completion import Completion

N_PREDICT = 96  # tokens of an answer
N_PROMPTS = 12
GAIN_MIN = 0.02  # less is not worth the memory
COPIES = "ngram"  # what drafts where there is no head


@dataclass(frozen=True, slots=True)
class Gain:
    """Medians over prompts. plain: tokens per second without drafts. copies, both: how much faster
    it is with copies alone, and with the head too."""

    plain: float
    copies: float
    both: float

    @property
    def pays(self) -> bool:
        """Whether the head gains something over copies alone."""
        return self.both >= (1 + GAIN_MIN) * self.copies


def measure(
    model: Model,
    path: Path,
    prompts: Sequence[Sequence[int]],
    *,
    context: dict[str, Any],
    n_predict: int = N_PREDICT,
    follow: Callable[[float], None] = lambda share: None,
) -> Gain:
    """Answers to these prompts, one way after the other for each. path: of the head.

    Each way has a context of its own, since one remembers what it has written and would copy the
    answer; the first prompt is only there to make them ready. Raises ArgumentError for fewer than
    two prompts.
    """
    if len(prompts) < 2:
        raise ArgumentError(f"to measure a gain takes two prompts or more, got {len(prompts)}")
    ways = (None, COPIES, f"{COPIES}+head:{path}")
    speeds: dict[str | None, list[float]] = {way: [] for way in ways}
    n_ctx = max(map(len, prompts)) + n_predict + 64
    with ExitStack() as stack:
        opened = {way: stack.enter_context(model.context(n_ctx=n_ctx, **context)) for way in ways}
        for i, prompt in enumerate(prompts):
            for way in ways:
                found = _speed(opened[way], prompt, way, n_predict)
                if i:
                    speeds[way].append(found)
            follow((i + 1) / len(prompts))
    plain = speeds[None]
    times = (
        statistics.median(a / b for a, b in zip(speeds[way], plain, strict=True))
        for way in ways[1:]
    )
    return Gain(statistics.median(plain), *times)


def _speed(context: Context, prompt: Sequence[int], way: str | None, n_predict: int) -> float:
    """Tokens per second behind the prompt."""
    context.sequence().drop()
    completion = Completion(context, prompt, draft=way, sampling=GREEDY, n_predict=n_predict)
    for _piece in completion:
        pass
    stats = completion.stats
    return 1e6 * len(completion.tokens) / max(1, stats.total_us - stats.prefill_us)
