"""Input of a chat: text in triple quotes, and keys typed while no line is read."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

QUOTES = '"""'
_QUOTED = re.compile(
    rf"(?P<command>/(?:edit|system|set\s+system)\s+)?{QUOTES}(?P<text>.*)", re.DOTALL
)
_INPUT, _LOCAL, _KEYS = 0, 3, 6  # indices into the result of tcgetattr


def is_open(text: str) -> bool:
    """Tell whether the text has opening triple quotes and no closing ones, so that it continues.

    >>> is_open('\"\"\"a'), is_open('\"\"\"a\\nb\"\"\"'), is_open('what is \"\"\"?')
    (True, False, False)
    """
    quoted = _QUOTED.match(text.strip())
    return quoted is not None and not quoted["text"].endswith(QUOTES)


def unquoted(text: str) -> tuple[str, bool]:
    """Return the text without triple quotes, and whether it was a quoted message, never a
    command."""
    quoted = _QUOTED.match(text.strip())
    if quoted is None:
        return text.strip(), False
    said = quoted["text"].removesuffix(QUOTES).strip("\n")
    return f"{quoted['command'] or ''}{said}", quoted["command"] is None


@contextmanager
def typing_waits() -> Iterator[str]:
    """Keep keys typed while no line is read, without showing them, for the next line.

    Ctrl-C still interrupts. Restores the terminal at the end. Yields the keys typed before.
    """
    try:
        import termios
    except ImportError:  # the console of Windows keeps keys and does not show them
        yield ""
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    waiting = termios.tcgetattr(terminal)
    waiting[_INPUT] &= ~(termios.ICRNL | termios.INLCR)
    waiting[_LOCAL] &= ~(termios.ECHO | termios.ICANON)
    waiting[_KEYS][termios.VMIN], waiting[_KEYS][termios.VTIME] = 1, 0

    def again(_number: int, _frame: FrameType | None) -> None:
        """Set up the terminal again after Ctrl-Z and fg, which restore the shell's settings."""
        in_front = os.tcgetpgrp(terminal) == os.getpgrp()
        if in_front and termios.tcgetattr(terminal)[_LOCAL] & termios.ECHO:
            termios.tcsetattr(terminal, termios.TCSANOW, waiting)

    termios.tcsetattr(terminal, termios.TCSANOW, waiting)
    typed = b""
    while select.select([terminal], [], [], 0)[0] and (block := os.read(terminal, 4096)):
        typed += block
    former = signal.signal(signal.SIGCONT, again)
    try:
        yield typed.decode(errors="replace").replace("\n", "\r")
    finally:
        signal.signal(signal.SIGCONT, former)
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(terminal, termios.TCSANOW, before)
