"""Who may use native memory right now: one thread at a time, or many together until it is freed.
Who may not is told so, instead of having to wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from ..errors import ArgumentError


class Alone:
    """Held by the thread that uses something.

    what: names it in the error of another thread.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


class Shared:
    """Held by all threads that use something at the moment. Only while nobody does, it can be
    freed.

    what: names it in the errors.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._n_users -= 1

    @contextmanager
    def freeing(self) -> Iterator[None]:
        """Hold it for nobody else to use. Raises ArgumentError where somebody does."""
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
