"""The state that the texts of a context share, and its end."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from pyselfspec import Completion
from pyselfspec.errors import ArgumentError
from pyselfspec.speculate.context_state import kept
from pyselfspec.speculate.drafters import ngram
from pyselfspec.speculate.resolve import DraftSetup


class Large:
    """Stands for memories of earlier texts."""


def test_memory_is_freed_with_the_context(tiny: Any) -> None:
    context = tiny().context(n_ctx=64)
    list(Completion(context, [5, 6, 7], "ngram", n_predict=4))
    freed = weakref.ref(kept(context, Large, None, Large))
    gc.disable()
    try:
        context.close()
        assert freed() is None
    finally:
        gc.enable()
    with pytest.raises(ArgumentError, match="the context is closed"):
        kept(context, Large, None, Large)


def test_a_closed_context_has_no_state(tiny: Any) -> None:
    context = tiny().context(n_ctx=64)
    context.close()
    with pytest.raises(ArgumentError, match="the context is closed"):
        kept(context, Large, None, Large)


def test_no_drafter_is_left_open_by_a_completion_that_cannot_be_made(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, closed, make = [], [], ngram.make

    def counted(*args: Any) -> Any:
        made.append(make(*args))
        return made[-1]

    monkeypatch.setattr(ngram, "make", counted)
    monkeypatch.setattr(DraftSetup, "controller", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(ngram.NgramDrafter, "close", lambda self: closed.append(self))
    with tiny().context(n_ctx=64) as context:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                Completion(context, [5, 6, 7], "ngram")
    assert made and closed == made
