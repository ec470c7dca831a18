"""Limit how often a hint is shown to the user."""

from __future__ import annotations

import time

from .paths import cache


def is_due(name: str, every_s: float) -> bool:
    """Return True at most once in this many seconds, over all processes of the user.

    Returns False if the cache folder cannot be written.
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
