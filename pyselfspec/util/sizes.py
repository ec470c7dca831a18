"""The largest count that the library takes, and sizes in bytes, formatted for people."""

from __future__ import annotations

INT32_MAX = 2**31 - 1
UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def size_text(n_bytes: int) -> str:
    """Return a number of bytes with one decimal and a unit.

    >>> size_text(98_362_432), size_text(512)
    ('98.4 MB', '512 B')
    """
    for unit, size in UNITS:
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} B"
