"""Reads a GGUF model and writes a changed copy, a piece of a tensor at a time.

It handles the container format only. Data that are read stay mapped from the file; new data are
computed when they are written, in pieces of up to PIECE_BYTES.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.gguf_writer import GGUFValue
from numpy.typing import NDArray

from ..errors import ArgumentError, ModelFileError
from ..gguf.file import GgufFile, check
from ..gguf.header import DEFAULT_ALIGNMENT, read_header
from ..util.files import replacing, require_space

PIECE_BYTES = 16 * 2**20
ARCHITECTURE = "general.architecture"
# What a copy does not take over: it is aligned anew, and its size is another.
NOT_COPIED = ("GGUF.", "general.alignment", "general.size_label")

Bytes = NDArray[np.uint8]
Metadata = dict[str, GGUFValue]  # strings are bytes: not every vocabulary is UTF-8


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written.

    shape: outputs first, inputs last. pieces: arrays of any shape and type whose bytes are the
    tensor's, in order; consumed when it is written.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]

    @property
    def n_bytes(self) -> int:
        block_size, block_bytes = GGML_QUANT_SIZES[self.type]
        return int(math.prod(self.shape) // block_size * block_bytes)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file. rows: uint8 [rows, bytes per row], mapped from the file."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    rows: Bytes

    def copy(self, name: str | None = None) -> Tensor:
        return Tensor(name or self.name, self.type, self.shape, (self.rows,))


@dataclass(frozen=True)
class Source:
    """A validated model file with its metadata and tensors."""

    file: GgufFile
    metadata: Metadata
    tensors: tuple[StoredTensor, ...]

    def key(self, name: str) -> str:
        """Return the metadata key of this name for the model's architecture."""
        return f"{self.file.architecture}.{name}"

    def value(self, key: str) -> Any:
        """Return the value of a metadata key, None if it is absent."""
        return self.metadata[key].value if key in self.metadata else None


@dataclass(frozen=True)
class Copy:
    """A changed copy of a model, to be written."""

    source: Source
    metadata: Metadata
    tensors: tuple[Tensor, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    def write(self, target: Path) -> None:
        """Write the model; nothing stays under the name unless all of it was written.

        Raises ArgumentError for a target that is not allowed, OSError if it cannot be written.
        """
        for _n_bytes in self.write_steps(target):
            pass

    def write_steps(self, target: Path) -> Generator[int, None, None]:
        """Write like ``write``; yield the bytes of each piece. Closed early, leaves no target."""
        require_other(self.source.file.path, target)
        try:
            with replacing(target) as unfinished:
                require_space(target, self.n_bytes)
                _write_header(unfinished, self.metadata, self.tensors)
                yield from _append_data(unfinished, self.tensors)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(target)) from error


def require_other(source: Path, target: Path) -> None:
    """Raise ArgumentError where the copy would replace its source."""
    if target.exists() and target.samefile(source):
        raise ArgumentError(f"{target} is the model itself: give the copy another name")


def read_model(path: Path) -> Source:
    """Validate a model file and map it. gguf-py takes seconds for a vocabulary of 128k tokens.

    Raises ModelFileError, also for a model in several files.
    """
    n_parts = read_header(path).metadata.get("split.count", 0)
    if isinstance(n_parts, int) and n_parts > 1:
        raise ModelFileError(
            f"{path}: is one of {n_parts} parts of a model: "
            "join them first with llama.cpp's llama-gguf-split --merge"
        )
    file = check(path)
    try:
        reader = GGUFReader(path)
    except ValueError as error:  # a tensor type that is newer than the installed gguf-py
        raise ModelFileError(f"{path}: gguf-py cannot read it: {error}") from None
    metadata = {
        name: _value(field)
        for name, field in reader.fields.items()
        if not name.startswith(NOT_COPIED) and field.data  # gguf-py cannot write empty arrays
    }
    return Source(file, metadata, tuple(map(_stored, reader.tensors)))


def _value(field: Any) -> GGUFValue:
    kind, item = field.types[0], field.types[-1]
    if kind == GGUFValueType.STRING:
        return GGUFValue(field.parts[-1].tobytes(), kind)
    if kind == GGUFValueType.ARRAY and item == GGUFValueType.STRING:
        return GGUFValue([field.parts[i].tobytes() for i in field.data], kind, item)
    return GGUFValue(field.contents(), kind, item if kind == GGUFValueType.ARRAY else None)


def _stored(tensor: Any) -> StoredTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    rows = tensor.data.reshape(-1, tensor.data.shape[-1]).view(np.uint8)
    return StoredTensor(tensor.name, tensor.tensor_type, shape, rows)


def _write_header(path: Path, metadata: Metadata, tensors: Iterable[Tensor]) -> None:
    writer = GGUFWriter(path, metadata[ARCHITECTURE].value.decode())
    try:
        for key, value in metadata.items():
            if key != ARCHITECTURE:  # the writer has it already
                writer.add_key_value(key, value.value, value.type, value.sub_type)
        for tensor in tensors:
            dtype = np.dtype(np.float32)  # unused, the type is given
            writer.add_tensor_info(tensor.name, tensor.shape, dtype, tensor.n_bytes, tensor.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()


def _append_data(path: Path, tensors: Iterable[Tensor]) -> Generator[int, None, None]:
    with path.open("ab") as file:
        for tensor in tensors:
            file.write(bytes(-file.tell() % DEFAULT_ALIGNMENT))
            for piece in tensor.pieces:
                data = piece.reshape(-1).view(np.uint8)
                for start in range(0, len(data), PIECE_BYTES):
                    yield file.write(data[start : start + PIECE_BYTES].data)
        file.write(bytes(-file.tell() % DEFAULT_ALIGNMENT))
