"""Sizes of pictures, against files written by another program's library."""

from __future__ import annotations

import io
from typing import Any

import pytest

from pyselfspec.util.image_size import size_of


@pytest.mark.parametrize(
    "kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "WEBP lossless", "WEBP RGBA"]
)
@pytest.mark.parametrize("size", [(1, 1), (640, 3), (17, 1000)])
def test_sizes_are_those_that_pillow_wrote(kind: str, size: tuple[int, int]) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    kind, _, variant = kind.partition(" ")
    shown = image.new("RGBA" if variant == "RGBA" else "RGB", size)
    shown.save(made, kind, lossless=variant == "lossless")
    assert size_of(made.getvalue()) == size


def test_a_progressive_jpeg_with_comments() -> None:
    image: Any = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    image.new("RGB", (33, 44)).save(made, "JPEG", progressive=True, comment=b"x" * 5000)
    assert size_of(made.getvalue()) == (33, 44)


@pytest.mark.parametrize("n", range(0, 60, 7))
def test_other_and_short_files_have_no_size(n: int) -> None:
    assert size_of(b"hello, world"[:n]) is None
    assert size_of((b"\xff\xd8" + bytes(range(256)))[:n]) is None
    assert size_of((b"RIFF1234WEBPABCD" + bytes(range(256)))[:n]) is None


def test_a_png_begins_with_its_size() -> None:
    """Decoders may take files that begin with another chunk, and find the size later."""
    start = b"\x89PNG\r\n\x1a\n" + bytes(4)
    size = (7).to_bytes(4, "big") + (5).to_bytes(4, "big")
    assert size_of(start + b"IHDR" + size) == (7, 5)
    assert size_of(start + b"CgBI" + size) is None
