"""Signals that end the program: it ends as after Ctrl-C, so that what was learned and measured is
kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# What docker, systemd and batch systems send, and closed terminals.
NAMES = ("SIGTERM", "SIGHUP")


class Ended(KeyboardInterrupt):
    """A signal asked the program to end."""


_received: int = signal.SIGINT


def _end(number: int, _frame: FrameType | None) -> None:
    global _received
    _received = number
    raise Ended


def exit_status() -> int:
    """What shells report for a program that the last signal ended, Ctrl-C unless told."""
    return 128 + _received


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Signals that would end the process at once raise `Ended` instead. Those that it was told to
    ignore, as nohup does, are ignored."""
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
