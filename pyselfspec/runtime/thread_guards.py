"""Guards of native memory: for one thread at a time, or for many until it is freed. A thread that
must not enter gets an error instead of waiting.

Calling a guard returns a view of its buffer, for a ``with`` statement. A guard is held while it has
a view, which goes with its frame: an interrupt at any point, as of Ctrl-C, leaves nothing held.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ArgumentError


class SingleThread:
    """A guard that another thread cannot wait for: calling it raises ArgumentError there. The
    thread that holds it may enter again.

    what: the guarded thing, for the message.
    """

    __slots__ = ("_buffer", "_lock", "_owner", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()  # a signal handler may enter meanwhile
        self._buffer = bytearray()
        self._owner = 0  # identity of the last thread that entered

    def __call__(self) -> memoryview:
        with self._lock:
            me = threading.get_ident()
            if self._owner != me:
                if _is_viewed(self._buffer):
                    raise ArgumentError(
                        f"{self._what} is in use in another thread; it belongs to one thread at a "
                        "time"
                    )
                self._owner = me
            return memoryview(self._buffer)


class InUse:
    """A guard for users in any thread, of a thing that can be freed only while there are none.

    what: the thing, for messages.
    """

    __slots__ = ("_buffer", "_is_freeing", "_lock", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()  # a signal handler may enter meanwhile
        self._buffer = bytearray()
        self._is_freeing = False

    def __call__(self) -> memoryview:
        with self._lock:
            if self._is_freeing:
                raise ArgumentError(f"{self._what} is being closed in another thread")
            return memoryview(self._buffer)

    @contextmanager
    def freeing(self) -> Iterator[None]:
        """Keep users out while the thing is being freed. Raises ArgumentError while there are
        any."""
        with self._lock:
            if self._is_freeing or _is_viewed(self._buffer):
                raise ArgumentError(
                    f"{self._what} is in use in another thread; close it when that is done"
                )
            self._is_freeing = True
        try:
            yield
        finally:
            self._is_freeing = False


def _is_viewed(buffer: bytearray) -> bool:
    """Return whether the buffer has a view: such a buffer cannot grow."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.clear()
    return False
