"""Texts whose drafts are verified in passes of one row: on any device those of plain decoding."""

from __future__ import annotations

from typing import Any

from pyselfspec import Completion, Context, Fixed, Model

N = 16  # tokens of a text
IDS = [5 + i % 9 for i in range(30)]
ALWAYS = Fixed(4, p_min=0.0)


def opened(model: Model, **options: Any) -> Context:
    return model.context(**({"n_ctx": 256, "n_threads": 1, "exact": True} | options))


def written(context: Context, prompt: str | list[int], **options: Any) -> Completion:
    if options.get("draft"):
        options.setdefault("controller", ALWAYS)
    made = Completion(context, prompt, n_predict=N, **options)
    for _ in made:
        pass
    return made
