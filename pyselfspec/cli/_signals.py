"""Signals end the program as Ctrl-C does, so that it saves its results."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Sent by docker, systemd and batch systems, and by terminals that are closed: those of Windows send
# the third.
NAMES = ("SIGTERM", "SIGHUP", "SIGBREAK")


class Ended(KeyboardInterrupt):
    """A signal other than Ctrl-C ends the program."""


_received: int = signal.SIGINT


def _end(number: int, _frame: FrameType | None) -> None:
    global _received
    _received = number
    raise Ended


def exit_status() -> int:
    """Return the exit status after the last signal, by the convention of shells; default:
    Ctrl-C."""
    return 128 + _received


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Make signals raise `Ended` that would end the process at once. Signals that the process
    ignores, as under nohup, stay ignored."""
    global _received
    _received = signal.SIGINT
    former = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in NAMES if hasattr(signal, name)):
            if signal.getsignal(number) is signal.SIG_DFL:
                former[number] = signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
