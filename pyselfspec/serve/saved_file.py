"""A file with one saved sequence: a line of JSON, then arrays. A damaged one is refused."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..costs.store import key_of
from ..errors import ArgumentError
from ..runtime.checkpoints import Checkpoint
from ..runtime.context import Context
from ..runtime.saved import SavedSequence
from ..util.files import replacing

MAGIC = b"pyselfspec sequence 1\n"
N_HEADER = 1 << 16  # most bytes of the line of JSON


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of contexts that a saved sequence fits: the model's fingerprint, the build, how
    attention is computed, and the processor and devices, since others may lay out or round K/V
    differently."""

    model: str
    build: str
    attention: str
    devices: str

    @classmethod
    def of(cls, context: Context) -> Kind:
        key = key_of(context)
        return cls(key.model, key.build, key.attention, key.devices)


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a file. owner: who may restore it, see auth.owner_of; "" for clients
    without a key, and for files of the cache. stops: tokens and bytes of each checkpoint. checksum:
    CRC-32 of the bytes after the header."""

    kind: Kind
    n_tokens: int
    n_state: int
    can_cut: bool
    owner: str
    stops: tuple[tuple[int, int], ...]
    checksum: int

    @property
    def n_bytes(self) -> int:
        """The bytes after the header."""
        return 4 * self.n_tokens + self.n_state + sum(n for _, n in self.stops)


def write(path: Path, saved: SavedSequence, kind: Kind, owner: str = "") -> int:
    """Write a file, which has its name when it is complete; return its number of bytes."""
    tokens = saved.tokens.astype("<i4").tobytes()
    parts: list[bytes | memoryview] = [
        tokens,
        saved.state.data,
        *(each.state.data for each in saved.checkpoints),
    ]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    stops = tuple((each.n_tokens, each.state.nbytes) for each in saved.checkpoints)
    header = Header(
        kind, len(saved.tokens), saved.state.nbytes, saved.can_cut, owner, stops, checksum
    )
    line = json.dumps(asdict(header)).encode() + b"\n"
    with replacing(path) as unfinished, open(unfinished, "xb", opener=_private) as file:
        for part in (MAGIC, line, *parts):
            file.write(part)
        return file.tell()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # conversations are private


def read_header(path: Path) -> tuple[Header, NDArray[np.int32]]:
    """Return the header of a file and its tokens, int32 [n_tokens]. Raises ArgumentError for a file
    of another kind or size, OSError for one that cannot be read."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ArgumentError(f"{path} holds no saved sequence")
        header = _header(path, file.readline(N_HEADER))
        start = file.tell()
        if path.stat().st_size != start + header.n_bytes:
            raise ArgumentError(f"{path} is damaged: its size is not what its header says")
        return header, np.frombuffer(file.read(4 * header.n_tokens), "<i4").astype(np.int32)


def _header(path: Path, line: bytes) -> Header:
    try:
        found: dict[str, Any] = json.loads(line)
        found["kind"] = Kind(**found["kind"])
        found["stops"] = tuple((int(n), int(size)) for n, size in found["stops"])
        header = Header(**found)
        numbers = [header.n_tokens, header.n_state, *(x for pair in header.stops for x in pair)]
        if not all(isinstance(x, int) and x >= 0 for x in numbers):
            raise ValueError
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise ArgumentError(f"{path} is damaged: its header cannot be read") from None
    return header


def read(path: Path, kind: Kind) -> tuple[SavedSequence, Header]:
    """Return a saved sequence and its header. Raises ArgumentError for a file that is damaged or of
    another model or build, OSError for one that cannot be read."""
    header, tokens = read_header(path)
    if header.kind != kind:
        raise ArgumentError(f"{path} was saved with another model or build")
    with path.open("rb") as file:
        file.seek(-header.n_bytes, os.SEEK_END)
        data = np.fromfile(file, np.uint8, header.n_bytes)
    if len(data) != header.n_bytes or zlib.crc32(data.data) != header.checksum:
        raise ArgumentError(f"{path} is damaged: its checksum differs")
    at = 4 * header.n_tokens
    state = data[at : at + header.n_state]
    at += header.n_state
    kept = []
    for n_tokens, n_bytes in header.stops:
        kept.append(Checkpoint(n_tokens, data[at : at + n_bytes]))
        at += n_bytes
    return SavedSequence(tokens, state, header.can_cut, tuple(kept)), header
