"""Advice that people need now and then, not with every command."""

from __future__ import annotations

import time

from .paths import cache


def is_due(name: str, every_s: float) -> bool:
    """True at most once in this many seconds, over all processes of the user.

    Where the cache folder cannot be written, it never is.
    """
    stamp = cache("said") / name
    try:
        if stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < every_s:
            return False
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    except OSError:
        return False
    return True
