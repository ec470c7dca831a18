"""The size of a picture in a file's first bytes, without decoding it. Pure.

A small file can unpack to gigabytes, so its size is known before anything is unpacked. PNG files
may hold more than their size says, see png_size.py.
"""

from __future__ import annotations

FORMATS = "PNG, JPEG, GIF or BMP"  # which need no other library, see webp.py
PNG = b"\x89PNG\r\n\x1a\n"  # how such a file begins
# JPEG: markers of frames, which hold the size; 0xC4, 0xC8 and 0xCC are others
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset((0x01, *range(0xD0, 0xD9)))  # JPEG: markers without a length


def size_of(data: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels, None for a file of another format."""
    if data.startswith(PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data.startswith((b"GIF87a", b"GIF89a")) and len(data) >= 10:
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if data.startswith(b"BM") and len(data) >= 26:
        sides = (int.from_bytes(data[at : at + 4], "little", signed=True) for at in (18, 22))
        width, height = map(abs, sides)
        return width, height
    if is_webp(data):
        return _webp(data)
    return _jpeg(data) if data.startswith(b"\xff\xd8") else None


def is_webp(data: bytes) -> bool:
    """Return whether a file begins as WebP files do."""
    return data.startswith(b"RIFF") and data[8:12] == b"WEBP"


def _webp(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8X":
            width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = (
                int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28)
            )
        case _:
            return None
    return width, height


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF or marker in _BARE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _FRAMES:
            height, width = (int.from_bytes(data[i : i + 2], "big") for i in (at + 5, at + 7))
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
