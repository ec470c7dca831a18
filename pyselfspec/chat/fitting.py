"""Which messages to keep when a chat has outgrown its context. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from ..errors import ContextFullError
from .messages import DEVELOPER, SYSTEM, USER, Message


def fitting(
    messages: Sequence[Message], n_tokens: Callable[[Sequence[Message]], int], n_max: int
) -> tuple[Message, ...]:
    """What the system says at the start, and as many of the latest turns as fit into n_max tokens.

    A turn is what a user says and all that follows, so no answer and no result of a tool is kept
    without what it belongs to. n_tokens: of messages; of more of them, more.

    Raises ContextFullError when the last turn does not fit.
    """
    first = next((i for i, m in enumerate(messages) if m.role not in (SYSTEM, DEVELOPER)), None)
    if first is None:
        first = len(messages)
    system, said = tuple(messages[:first]), messages[first:]
    starts = [i for i, message in enumerate(said) if message.role == USER and i > 0]

    def kept(n_dropped: int) -> tuple[Message, ...]:
        return system + tuple(said[([0, *starts])[n_dropped] :])

    n = bisect_left(range(len(starts) + 1), True, key=lambda n: n_tokens(kept(n)) <= n_max)
    if n > len(starts):
        raise ContextFullError(
            f"the last turn has {n_tokens(kept(len(starts)))} tokens with what the system says, "
            f"and there is room for {n_max}; give a larger n_ctx or say less"
        )
    return kept(n)
