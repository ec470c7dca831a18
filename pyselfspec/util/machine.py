"""What this process may use of the machine, and what others do."""

from __future__ import annotations

import os

BUSY = 1.5  # programs per core


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def overload() -> float | None:
    """How many programs have wanted to run in the last minute, where that is more than the cores
    can serve; else None."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return load if load > BUSY * (os.cpu_count() or 1) else None
