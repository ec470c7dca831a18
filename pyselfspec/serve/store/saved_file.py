"""A file with one saved sequence: a line of JSON, then arrays. A damaged one is refused."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...runtime.checkpoints import Checkpoint
from ...runtime.context import Context
from ...runtime.ffi.devices import gpus, system_info
from ...runtime.saved import SavedSequence
from ...util import build
from ...util.files import replacing
from ...util.processor_name import processor_name

MAGIC = b"pyselfspec sequence 1\n"
N_HEADER = 1 << 16  # most bytes of the line of JSON


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of contexts that a saved sequence fits: the model's fingerprint, the build, how
    attention is computed, the processor, and the devices with layers, since others may lay out or
    round K/V differently; and whether K is rotated for long texts. How the weights were loaded,
    cores and idle devices change nothing."""

    model: str
    build: str
    attention: str
    devices: str
    is_long: bool = False

    @classmethod
    def of(cls, context: Context) -> Kind:
        model = context.model
        devices = f"{processor_name()}; {system_info()}"
        if model.n_gpu_layers:
            names = ", ".join([*gpus(), *model.rpc])
            devices += (
                f"; {model.n_gpu_layers} layers on {names}, split by {model.split_mode}, "
                f"main GPU {model.main_gpu}"
            )
        flash = "on" if context.abilities.has_flash_attn else "auto or on"
        if context.options.flash_attn is False:
            flash = "off"
        attention = (
            f"flash attention {flash}, K {context.options.type_k}, V {context.options.type_v}"
        )
        is_long = model.file.has_long_rope and context.n_cells > model.file.n_ctx_short_rope
        return cls(model.fingerprint, build.BUILD_ID, attention, devices, is_long)


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
    with _opened(path) as file:
        header = _header(path, file.readline(N_HEADER))
        start = file.tell()
        if path.stat().st_size != start + header.n_bytes:
            raise ArgumentError(f"{path} is damaged: its size is not what its header says")
        return header, np.frombuffer(file.read(4 * header.n_tokens), "<i4").astype(np.int32)


def owner_of(path: Path) -> str | None:
    """Return the owner of a file, whose contents may be damaged; None for one that has none. Raises
    OSError for a file that cannot be read."""
    try:
        with _opened(path) as file:
            return _header(path, file.readline(N_HEADER)).owner
    except ArgumentError:
        return None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Yield a file after its first line. Raises ArgumentError for a file of another kind."""
    if not path.is_file():  # opening a pipe would wait for a writer
        raise ArgumentError(f"{path} is no regular file")
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ArgumentError(f"{path} holds no saved sequence")
        yield file


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
        raise ArgumentError(
            f"{path} was saved with another model or build, or in a context of another kind"
        )
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
