"""PNG files."""

from __future__ import annotations

import zlib

import numpy as np


def chunk(kind: bytes, body: bytes) -> bytes:
    """Return a chunk of a PNG file, with its length and checksum."""
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def png(seed: int, width: int = 40, height: int = 30) -> bytes:
    """Return a PNG file of random colours."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (height, width * 3), dtype=np.uint8)
    data = b"".join(b"\0" + row.tobytes() for row in rows)
    sides = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    head = chunk(b"IHDR", sides + bytes([8, 2, 0, 0, 0]))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
