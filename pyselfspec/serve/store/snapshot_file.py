"""A file with one snapshot: a line of JSON, then arrays. A damaged one is refused."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import ArgumentError
from ...runtime.checkpoints import Checkpoint
from ...runtime.context import Context
from ...runtime.ffi.devices import gpus, system_info
from ...runtime.sequence_snapshot import SavedSequence
from ...util import build, records
from ...util.files import replacing
from ...util.processor_name import processor_name

MAGIC = b"pyselfspec sequence 1\n"
N_HEADER = 1 << 16  # most bytes of the line of JSON


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Properties that two contexts must share to exchange snapshots: the model's fingerprint,
    the build, how attention is computed, the processor, and the devices with layers, since others
    may lay out or round K/V differently; and whether K is rotated for long contexts. How the
    weights were loaded, cores and idle devices change nothing."""

    model: str
    build: str
    attention: str
    devices: str
    is_long: bool = False

    @classmethod
    def of(cls, context: Context) -> Compatibility:
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

    kind: Compatibility
    n_tokens: int
    n_state: int
    can_cut: bool
    owner: str
    stops: tuple[tuple[int, int], ...]
    checksum: int

    def __post_init__(self) -> None:
        if min(*self.sizes, *(n_tokens for n_tokens, _ in self.stops)) < 0:
            raise ValueError("a number is negative")

    @property
    def sizes(self) -> list[int]:
        """The bytes of the arrays after the header: tokens, K/V and recurrent states, and those of
        checkpoints."""
        return [4 * self.n_tokens, self.n_state, *(n_bytes for _, n_bytes in self.stops)]


def make_folder(folder: Path) -> None:
    """Make a folder for this user alone if it is missing. Raises ArgumentError where it cannot."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be used: {error.strerror or error}") from None


def write(path: Path, saved: SavedSequence, kind: Compatibility, owner: str = "") -> int:
    """Write a file, which has its name when it is complete; return its number of bytes."""
    states = [saved.state, *(each.state for each in saved.checkpoints)]
    parts: list[bytes | memoryview] = [saved.tokens.astype("<i4").tobytes()]
    parts += [state.data for state in states]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    stops = tuple((each.n_tokens, each.state.nbytes) for each in saved.checkpoints)
    n_tokens, n_state = len(saved.tokens), saved.state.nbytes
    header = Header(kind, n_tokens, n_state, saved.can_cut, owner, stops, checksum)

    def private(path: str, flags: int) -> int:
        return os.open(path, flags, 0o600)  # conversations are private

    with replacing(path) as unfinished, open(unfinished, "xb", opener=private) as file:
        for part in (MAGIC, records.encode(header) + b"\n", *parts):
            file.write(part)
        return file.tell()


def read_header(path: Path) -> tuple[Header, int]:
    """Return the header of a file, whose arrays may be damaged, and where they begin. Raises
    ArgumentError for another kind of file, OSError for one that cannot be read."""
    if not path.is_file():  # opening a pipe would wait for a writer
        raise ArgumentError(f"{path} is no regular file")
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ArgumentError(f"{path} holds no snapshot")
        line = file.readline(N_HEADER)
    try:
        return records.convert(records.parse(line), Header), len(MAGIC) + len(line)
    except records.RecordError:
        raise ArgumentError(f"{path} is damaged: its header cannot be read") from None


def read(path: Path, kind: Compatibility, *, outline: bool = False) -> SavedSequence | None:
    """Return a snapshot, or None for one of another kind. outline: with empty states, which
    are neither read nor checked. Raises ArgumentError for a damaged file, OSError for one that
    cannot be read."""
    header, start = read_header(path)
    if header.kind != kind:
        return None
    if path.stat().st_size != start + sum(header.sizes):
        raise ArgumentError(f"{path} is damaged: its size is not what its header says")
    data = np.fromfile(path, np.uint8, header.sizes[0] if outline else -1, offset=start)
    if not outline and zlib.crc32(data.data) != header.checksum:
        raise ArgumentError(f"{path} is damaged: its checksum differs")
    tokens, state, *states = np.split(data, np.cumsum(header.sizes)[:-1])
    stops = (Checkpoint(n, each) for (n, _), each in zip(header.stops, states, strict=True))
    return SavedSequence(tokens.view("<i4").astype(np.int32), state, header.can_cut, tuple(stops))
