"""Check that the data of a PNG file unpack to no more than the size that it states: libraries
unpack all of it, even if that is much more. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

_START = 8  # bytes of the signature
_N_HEADER = 2  # of the packed data
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by type of colour
_N_STEP = 1 << 16  # bytes unpacked at once
# Adam7: first column and row of each pass, and the steps to the next ones
_PASSES = (
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4),
    (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2),
)  # fmt: skip


def unpacks_as_stated(data: bytes) -> bool:
    """Return whether a PNG file unpacks to no more bytes than a picture of its size has. False also
    where the data are broken, since readers may go on after other faults than zlib does."""
    head = data[16:29]
    if len(head) < 13 or head[9] not in _CHANNELS:
        return False
    n_left = _n_bytes(head) + _N_STEP  # some writers add a few bytes
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)  # without the checksum, which readers ignore
    n_skipped = 0
    try:
        for kind, part in _chunks(data):
            if kind == b"CgBI":  # Apple's variant, which has no header to skip
                return False
            if kind != b"IDAT":
                continue
            n = min(_N_HEADER - n_skipped, len(part))
            n_skipped += n
            part = part[n:]
            while part and not unpacker.eof:
                n_left -= len(unpacker.decompress(part, _N_STEP))
                if n_left < 0:
                    return False
                part = unpacker.unconsumed_tail
    except zlib.error:
        return False
    return True


def _n_bytes(head: bytes) -> int:
    """Return the bytes of all rows, each with its filter. head: the 13 bytes of IHDR."""
    width, height = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    n_bits = _CHANNELS[head[9]] * head[8]
    passes = _PASSES if head[12] else ((0, 0, 1, 1),)
    total = 0
    for x, y, step_x, step_y in passes:
        columns, rows = -((x - width) // step_x), -((y - height) // step_y)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * n_bits // 8))
    return total


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the contents of each chunk."""
    at = _START
    while at + 8 <= len(data):
        n = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + n]
        at += 12 + n
