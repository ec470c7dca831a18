"""Guards of native memory: for one thread at a time, or for many until it is freed. A thread that
must not enter gets an error instead of waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ArgumentError


class SingleThread:
    """A lock that another thread cannot wait for: entering raises ArgumentError there. The thread
    that holds it may enter again.

    what: the guarded thing, for the message.
    """

    __slots__ = ("_lock", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ArgumentError(
                f"{self._what} is in use in another thread; it belongs to one thread at a time"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class InUse:
    """A count of the current users of a thing, in any thread. The thing can be freed only while
    there are none.

    what: the thing, for messages.
    """

    __slots__ = ("_lock", "_n_users", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._n_users = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._n_users < 0:
                raise ArgumentError(f"{self._what} is being closed in another thread")
            self._n_users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_users -= 1

    @contextmanager
    def freeing(self) -> Iterator[None]:
        """Keep users out while the thing is being freed. Raises ArgumentError while there are
        any."""
        with self._lock:
            if self._n_users:
                raise ArgumentError(
                    f"{self._what} is in use in another thread; close it when that is done"
                )
            self._n_users = -1
        try:
            yield
        finally:
            with self._lock:
                self._n_users = 0
