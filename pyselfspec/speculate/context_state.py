"""State that the texts of one context share, kept as long as the context."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import Any, TypeVar

from ..runtime.context import Context
from ..util.closable import Closing

V = TypeVar("V")


class ContextState(Closing):
    """The values that `kept` has created for a context, closed with it."""

    def __init__(self) -> None:
        self.values: dict[tuple[type, Hashable], Any] = {}  # in the order of their creation

    def close(self) -> None:
        """Close the values that can be closed, the latest first."""
        with ExitStack() as stack:
            for value in self.values.values():
                if hasattr(value, "close"):
                    stack.callback(value.close)


def kept(context: Context, kind: type, key: Hashable, create: Callable[[], V]) -> V:
    """Return the value of a kind under a key in a context, created where there is none. What create
    raises is not kept.

    Raises ArgumentError for a closed context.
    """
    state = context.extension
    if state is None:
        state = ContextState()
        context.closes(state)
        context.extension = state
    assert isinstance(state, ContextState)
    if (kind, key) not in state.values:
        state.values[kind, key] = create()
    value: V = state.values[kind, key]
    return value
