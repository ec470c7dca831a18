"""PNG files may unpack to no more than their size; the files are written here."""

from __future__ import annotations

import zlib

import pytest
from png_files import chunk, png

from pyselfspec.util.png_size import unpacks_as_stated

MiB = 1 << 20


def file(width: int, height: int, head: bytes, packed: bytes, n_part: int = 1 << 30) -> bytes:
    """head: depth, colour, compression, filter, interlace."""
    sides = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    parts = [packed[i : i + n_part] for i in range(0, len(packed), n_part)]
    data = b"".join(chunk(b"IDAT", part) for part in parts)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", sides + head) + data + chunk(b"IEND", b"")


HEADS = {
    "grey of one bit": (bytes([1, 0, 0, 0, 0]), 2 * (1 + 13)),
    "palette of four bits": (bytes([4, 3, 0, 0, 0]), 2 * (1 + 50)),
    "colours": (bytes([8, 2, 0, 0, 0]), 2 * (1 + 300)),
    "colours of 16 bits with alpha": (bytes([16, 6, 0, 0, 0]), 2 * (1 + 800)),
    # seven passes, of which those that begin at row 4 are empty
    "interlaced": (bytes([8, 0, 0, 0, 1]), 1 + 13 + 1 + 12 + 1 + 25 + 1 + 50 + 1 + 100),
}


@pytest.mark.parametrize(("head", "n_bytes"), HEADS.values(), ids=HEADS)
def test_as_many_bytes_as_a_picture_has(head: bytes, n_bytes: int) -> None:
    slack = 1 << 16
    for n, fits in ((n_bytes, True), (n_bytes + slack, True), (n_bytes + slack + 1, False)):
        data = file(100, 2, head, zlib.compress(bytes(n)), n_part=1)
        assert unpacks_as_stated(data) is fits, n


def test_a_small_file_that_unpacks_to_much() -> None:
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(MiB)) for _ in range(64)) + packer.flush()
    assert not unpacks_as_stated(file(8, 8, bytes([8, 2, 0, 0, 0]), packed))


def test_faults_that_readers_may_not_see() -> None:
    packed = zlib.compress(bytes(2 * 301))
    head = bytes([8, 2, 0, 0, 0])
    assert unpacks_as_stated(file(100, 2, head, packed[:-4] + b"\0\0\0\0")), "the checksum"
    assert not unpacks_as_stated(file(100, 2, head, packed[:2] + b"\xff" * 20))
    sound = file(100, 2, head, packed)
    assert not unpacks_as_stated(sound[:33] + chunk(b"CgBI", b"1234") + sound[33:])
    assert not unpacks_as_stated(sound[:20])


def test_sound_files() -> None:
    for width, height in ((1, 1), (40, 30), (301, 7)):
        assert unpacks_as_stated(png(0, width, height))
