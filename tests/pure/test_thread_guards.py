"""Guards of native memory under interrupts; tests/native/test_threads.py has them in use."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.thread_guards import InUse, SingleThread

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")


def interrupted_often(guard: Callable[[], memoryview]) -> None:
    """Enter and leave it until an interrupt comes, whose handler enters it too, three hundred
    times."""

    def interrupt(*_: object) -> None:
        with guard():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(300):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, (20 + i) / 1e6)
                while True:
                    with guard():
                        pass
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_many_use_can_be_freed_after_interrupts() -> None:
    guard = InUse("it")
    interrupted_often(guard)
    with guard.freeing():
        pass
    with guard(), pytest.raises(ArgumentError, match="in use"), guard.freeing():
        pass


def test_another_thread_can_enter_after_interrupts() -> None:
    guard = SingleThread("it")
    interrupted_often(guard)
    told = "it is in use in another thread; it belongs to one thread at a time"
    with ThreadPoolExecutor(1) as other:
        other.submit(guard).result().release()
        with guard(), pytest.raises(ArgumentError, match=told):
            other.submit(guard).result()
