"""Tokens per second, measured by generating with drafts of a fixed length.

The first half of each chunk is the prompt. Slow; the scores depend on the machine's load and are
not written to a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from ...masks.layer_mask import LayerMask
from ...masks.score import Score
from ...runtime.sampling import SamplingParams
from ...speculate.completion import Completion
from ...speculate.config import DraftConfig
from ...speculate.controllers.fixed import Fixed
from ..chunks import first_scored
from . import About, Setting

N_PREDICT = 64  # tokens after each prompt


class Objective:
    """Scores are microseconds per token without the time for the prompt. Uses the default sampler
    and sequence 0 of the context."""

    about: ClassVar[About] = About(
        label="tokens per second",
        lost="microseconds per token lost",
        n_chunks=4,
        weighs_cost=True,
        kept=False,
        n_generated=N_PREDICT,
    )

    def __init__(self, setting: Setting) -> None:
        self._context = setting.context
        self._prompts = [chunk[: first_scored(len(chunk))] for chunk in setting.chunks]
        self._sampling = SamplingParams(seed=setting.seed)
        self._plain_us: dict[int, float] = {}  # per token of plain decoding, by chunk
        self.n_sublayers = 0  # not counted here

    @property
    def n_chunks(self) -> int:
        return len(self._prompts)

    def scores(self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]) -> Iterator[Score]:
        full = LayerMask.full(base.n_layer)
        if chunk not in self._plain_us:
            self._plain_us[chunk] = self._generate(chunk, full)[1]
        plain_us = self._plain_us[chunk]
        for mask in masks:
            n, us = (1, plain_us) if mask == full else self._generate(chunk, mask)
            yield Score.of(np.full(n, us), np.full(n, plain_us))

    def value(self, mask: LayerMask, score: Score) -> float:
        return 1e6 / score.mean if score.mean else 0.0

    def shown(self, mask: LayerMask, score: Score) -> float:
        return self.value(mask, score)

    def error(self, score: Score) -> float | None:
        return None

    def _generate(self, chunk: int, mask: LayerMask) -> tuple[int, float]:
        """Return the number of tokens and microseconds per token. A full mask decodes plainly."""
        drafts = mask != LayerMask.full(mask.n_layer)
        completion = Completion(
            self._context,
            self._prompts[chunk],
            n_predict=N_PREDICT,
            draft=DraftConfig(mask=mask, controller=Fixed()) if drafts else None,
            sampling=self._sampling,
        )
        for _piece in completion:
            pass
        stats = completion.stats
        n = max(1, stats.n_generated)
        return n, (stats.total_us - stats.prefill_us) / n
