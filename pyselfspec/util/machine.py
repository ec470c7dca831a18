"""Processors that this process may use, and their load."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the number of CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float | None:
    """Return the load average of the last minute; None where the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
