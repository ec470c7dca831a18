"""Typing in a chat: text in triple quotes, and keys that come before a line is read."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

QUOTES = '"""'
_QUOTED = re.compile(
    rf"(?P<command>/(?:edit|system|set\s+system)\s+)?{QUOTES}(?P<text>.*)", re.DOTALL
)
_INPUT, _LOCAL, _KEYS = 0, 3, 6  # of what tcgetattr returns


def is_open(text: str) -> bool:
    """Whether more lines follow: triple quotes have begun and not ended.

    >>> is_open('\"\"\"a'), is_open('\"\"\"a\\nb\"\"\"'), is_open('what is \"\"\"?')
    (True, False, False)
    """
    quoted = _QUOTED.match(text.strip())
    return quoted is not None and not quoted["text"].endswith(QUOTES)


def unquoted(text: str) -> tuple[str, bool]:
    """The text without its triple quotes, and whether a message was quoted, so that it is no
    command whatever it begins with."""
    quoted = _QUOTED.match(text.strip())
    if quoted is None:
        return text.strip(), False
    said = quoted["text"].removesuffix(QUOTES).strip("\n")
    return f"{quoted['command'] or ''}{said}", quoted["command"] is None


@contextmanager
def typing_waits() -> Iterator[str]:
    """Keys typed while no line is read are not shown; they wait for the next line, where Enter is
    Enter. Ctrl-C still stops. The terminal is put back in the end.

    Yields the keys that were typed before.
    """
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    waiting = termios.tcgetattr(terminal)
    waiting[_INPUT] &= ~(termios.ICRNL | termios.INLCR)
    waiting[_LOCAL] &= ~(termios.ECHO | termios.ICANON)
    waiting[_KEYS][termios.VMIN], waiting[_KEYS][termios.VTIME] = 1, 0

    def again(_number: int, _frame: FrameType | None) -> None:
        """After Ctrl-Z and fg the terminal is as the shell has it."""
        in_front = os.tcgetpgrp(terminal) == os.getpgrp()
        if in_front and termios.tcgetattr(terminal)[_LOCAL] & termios.ECHO:
            termios.tcsetattr(terminal, termios.TCSANOW, waiting)

    termios.tcsetattr(terminal, termios.TCSANOW, waiting)
    former = signal.signal(signal.SIGCONT, again)
    try:
        yield _waiting(terminal).replace("\n", "\r")
    finally:
        signal.signal(signal.SIGCONT, former)
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def _waiting(terminal: int) -> str:
    """Text that was typed and not read yet."""
    typed = b""
    while select.select([terminal], [], [], 0)[0] and (block := os.read(terminal, 4096)):
        typed += block
    return typed.decode(errors="replace")
