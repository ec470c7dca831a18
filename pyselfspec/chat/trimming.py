"""Leaves out old turns of a chat that is longer than its context. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from ..errors import ContextFullError
from ..templates.messages import DEVELOPER, SYSTEM, USER, Message


def trim_messages(
    messages: Sequence[Message], n_tokens: Callable[[Sequence[Message]], int], n_max: int
) -> tuple[Message, ...]:
    """Return the system messages at the start and as many of the latest turns as fit.

    A turn is a user's message with all that follows it, so that an answer or the result of a tool
    is never kept without its question. n_tokens: returns the number of tokens of messages, larger
    for more messages. n_max: most tokens of the returned messages.

    Raises ContextFullError if the last turn does not fit.
    """
    first = next((i for i, m in enumerate(messages) if m.role not in (SYSTEM, DEVELOPER)), None)
    if first is None:
        first = len(messages)
    system, turns = tuple(messages[:first]), messages[first:]
    starts = [i for i, message in enumerate(turns) if message.role == USER and i > 0]

    def kept(n_dropped: int) -> tuple[Message, ...]:
        return system + tuple(turns[([0, *starts])[n_dropped] :])

    n = bisect_left(range(len(starts) + 1), True, key=lambda n: n_tokens(kept(n)) <= n_max)
    if n > len(starts):
        raise ContextFullError(
            f"the last turn and the system prompt have {n_tokens(kept(len(starts)))} tokens, and "
            f"the context has room for {n_max}; give a larger n_ctx (-c) or a shorter message"
        )
    return kept(n)
