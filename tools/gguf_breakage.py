"""Ways to break a GGUF file: bytes, metadata, entries of tensors, weights, its length."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

NUMBERS = (0, 1, 2, 3, 7, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of value types
STRING, ARRAY = 8, 9


@dataclass
class Breakage:
    """A damaged file.

    head: all that comes before the tensors' data, of the length that it had. n_bytes: of the file.
    data: changed bytes behind the head, by their offsets.
    """

    head: bytearray
    n_bytes: int
    data: dict[int, bytes] = field(default_factory=dict)


def breakage(head: bytes, n_bytes: int, rng: random.Random) -> Breakage:
    what = Breakage(bytearray(head), n_bytes)
    ways: tuple[Way, ...] = (
        cut_off,
        change_data,
        *map(in_head, (change_bytes, change_word, remove_part)),
        *4 * (in_head(change_value),),
        *2 * (in_head(change_tensor),),
    )
    for _ in range(rng.choice((1, 1, 1, 2))):
        try:
            rng.choice(ways)(what, rng)
        except (struct.error, IndexError, KeyError, OverflowError, ValueError):
            pass  # broken before so that it cannot be taken apart
    return what


Way = Callable[[Breakage, random.Random], None]


def in_head(change: Callable[[bytearray, random.Random], None]) -> Way:
    return lambda what, rng: change(what.head, rng)


def cut_off(what: Breakage, rng: random.Random) -> None:
    what.n_bytes = rng.randrange(1, rng.choice((what.n_bytes, len(what.head))))


def change_data(what: Breakage, rng: random.Random) -> None:
    """Weights: any bytes, infinite, not a number, or zero."""
    size = rng.choice((1, 32, 4096))
    for _ in range(rng.choice((1, 20))):
        offset = rng.randrange(len(what.head), max(len(what.head) + 1, what.n_bytes - size))
        fill = rng.choice((rng.randbytes(size), b"\xff" * size, bytes(size), b"\0\x7c" * size))
        what.data[offset] = fill[: min(size, what.n_bytes - offset)]


def header_end(data: bytearray) -> int:
    *_, (_start, end) = tensors(data)
    return end


def change_bytes(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 8)):
        data[rng.randrange(rng.choice((24, header_end(data))))] = rng.randrange(256)


def change_word(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(header_end(data) - 8)
    code = rng.choice("IQ")
    struct.pack_into(f"<{code}", data, at, rng.choice(NUMBERS) % 2 ** (8 * struct.calcsize(code)))


def remove_part(data: bytearray, rng: random.Random) -> None:
    """Remove bytes; later bytes move up, except the tensors' data."""
    at = rng.randrange(header_end(data))
    n = min(rng.randrange(1, 500), len(data) - at)
    del data[at : at + n]
    data.extend(bytes(n))


def change_value(data: bytearray, rng: random.Random) -> None:
    """A metadata value: a scalar, the type, an item of an array, its length, or a key."""
    key_at, type_at, end = rng.choice(list(pairs(data)))
    kind = struct.unpack_from("<I", data, type_at)[0]
    what = rng.randrange(10)
    if what == 0:
        struct.pack_into("<I", data, type_at, rng.randrange(14))
    elif what == 1:
        data[rng.randrange(key_at + 8, type_at)] = rng.choice(b"\0x.")
    elif kind in SIZES:
        fill(data, type_at + 4, SIZES[kind], rng)
    elif kind == STRING:
        if end > type_at + 12:
            data[rng.randrange(type_at + 12, end)] = rng.choice(b"\0\n\xffa0")
    elif what == 2:
        struct.pack_into("<Q", data, type_at + 8, rng.choice(NUMBERS))
    else:
        item = struct.unpack_from("<I", data, type_at + 4)[0]
        size = SIZES.get(item, 1)
        n = (end - type_at - 16) // size
        if n:
            fill(data, type_at + 16 + rng.randrange(n) * size, size, rng)


def change_tensor(data: bytearray, rng: random.Random) -> None:
    """Its name, number of dimensions, a size, type or offset."""
    start, end = rng.choice(list(tensors(data)))
    n_name = struct.unpack_from("<Q", data, start)[0]
    dims_at = start + 8 + n_name
    what = rng.randrange(5)
    if what == 0:
        data[rng.randrange(start + 8, dims_at)] = rng.choice(b"\0x.9")
    elif what == 1:
        struct.pack_into("<I", data, dims_at, rng.choice((0, 1, 2, 3, 4, 5, 2**31)))
    elif what == 2:
        n_dims = struct.unpack_from("<I", data, dims_at)[0]
        at = dims_at + 4 + 8 * rng.randrange(max(1, n_dims))
        size = struct.unpack_from("<Q", data, at)[0]
        near = (size - 1, size + 1, size * 2, size // 2, size * 32, rng.choice(NUMBERS))
        struct.pack_into("<Q", data, at, rng.choice(near) % 2**64)
    elif what == 3:
        struct.pack_into("<I", data, end - 12, rng.randrange(45))
    else:
        struct.pack_into("<Q", data, end - 8, rng.choice(NUMBERS))


def fill(data: bytearray, at: int, size: int, rng: random.Random) -> None:
    number = rng.choice((rng.choice(NUMBERS), rng.randrange(64), rng.getrandbits(64)))
    data[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")


def pairs(data: bytearray) -> Iterator[tuple[int, int, int]]:
    """Yield the offsets of the key, the type and the end of each metadata entry."""
    at = 24
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        key_at = at
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        type_at = at
        at = value_end(data, at + 4, struct.unpack_from("<I", data, at)[0])
        yield key_at, type_at, at


def value_end(data: bytearray, at: int, kind: int) -> int:
    if kind == STRING:
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
    if kind != ARRAY:
        return at + SIZES[kind]
    item, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if item != STRING:
        return at + int(n) * SIZES[item]
    for _ in range(n):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
    return at


def tensors(data: bytearray) -> Iterator[tuple[int, int]]:
    """Yield the offsets of the beginning and the end of each tensor's entry."""
    *_, (_key, _type, at) = pairs(data)
    for _ in range(struct.unpack_from("<Q", data, 8)[0]):
        start = at
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
        yield start, at


def tokenizer_of(data: bytearray) -> bytes | None:
    for key_at, type_at, end in pairs(data):
        if data[key_at + 8 : type_at] == b"tokenizer.ggml.model":
            return bytes(data[type_at + 12 : end])
    return None
