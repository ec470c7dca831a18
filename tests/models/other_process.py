"""Functions that tests run in another process, where they are found by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyselfspec import Context, Model


@contextmanager
def opened(path: Path) -> Iterator[tuple[Model, Context]]:
    with Model(path) as model, model.context(n_ctx=256, n_threads=1) as context:
        yield model, context


def logits(context: Context, token: int) -> Iterator[Any]:
    yield context.decode([token]).logits.copy()


def writes(context: Context, path: Path) -> Iterator[int]:
    """Write each number before it is yielded."""
    for i in (1, 2):
        path.write_text(str(i))
        yield i


def ends(context: Context, status: int) -> Iterator[int]:
    os._exit(status)
    yield status
