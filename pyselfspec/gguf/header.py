"""The header of one GGUF file: metadata and tensor table, checked against the file's size.

It knows the container format and nothing about models; tensor data are never read. gguf-py's own
reader makes several numpy objects per vocabulary entry (twelve seconds and 600 MB for a
128k-token vocabulary), and on broken files it raises whatever comes; this one needs a tenth of
a second. Names and block sizes of the tensor types come from gguf-py.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import ModelFileError

Scalar = int | float | bool | str
Value = Scalar | tuple[int | float | bool | bytes, ...]

CONVERT = "give the folder to pyselfspec models convert"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4  # ggml's limits
MAX_NAME = 63  # bytes
MAX_ELEMENTS = 2**63 - 1
MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # key length, key, type, value
MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8  # name length, name, n_dims, type, offset
BROKEN = "the file is broken: download or convert it again"

LENGTH = struct.Struct("<Q")

# Numbers of the value types in the GGUF format; scalars with their codes for struct.
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip

_OTHER_FORMATS = (
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint"),
    (b"\x80", "a Python pickle, perhaps a PyTorch checkpoint"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x89HDF", "an HDF5 file"),
    (b"version https://git-lfs", "a git LFS pointer, not the model itself: run 'git lfs pull'"),
    (b"lmgg", "a GGML file older than GGUF"),
    (b"fmgg", "a GGML file older than GGUF"),
    (b"tjgg", "a GGML file older than GGUF"),
    (b"\x00\x00\x00\x00", "zeros, perhaps an unfinished download"),
)


@cache
def tensor_types() -> Mapping[int, tuple[str, int, int]]:
    """Return the name, block size and bytes per block of each tensor type, by its number."""
    from gguf.constants import GGML_QUANT_SIZES

    # Q2_0 is newer than the oldest gguf-py that is allowed.
    return {42: ("Q2_0", 64, 18)} | {
        int(number): (number.name, *sizes) for number, sizes in GGML_QUANT_SIZES.items()
    }


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: sizes inputs first (ggml's order), type by its ggml name, such as Q4_K."""

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def n_elements(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata and tensor list of one GGUF file. Strings in arrays stay bytes.

    starts: by tensor, the offset of its data in the file, in bytes.
    """

    path: Path
    n_bytes: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    starts: Mapping[str, int]


def read_header(path: Path) -> Header:
    """Read and check the header. Raises ModelFileError with one line that states the fault."""
    try:
        return _read(path)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = error.strerror if isinstance(error, OSError) else None
        raise ModelFileError(f"{path}: cannot be read: {reason or error}") from None


def _read(path: Path) -> Header:
    if not path.exists():
        raise ModelFileError("no such file")
    if path.is_dir():
        if next(path.glob("*.safetensors"), None):
            raise ModelFileError(f"is a checkpoint's folder: {CONVERT}")
        raise ModelFileError("is a directory: give the .gguf file itself")
    if not path.is_file():
        raise ModelFileError("is not a regular file")
    n_bytes = path.stat().st_size
    if n_bytes == 0:
        raise ModelFileError("is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data)
        _check_start(data[:64], cursor)
        n_tensors, n_pairs = cursor.number("Q"), cursor.number("Q")
        _check_counts(n_tensors, n_pairs, cursor.n_left)
        metadata = _read_metadata(cursor, n_pairs)
        table = _read_tensors(cursor, n_tensors)
        alignment = _alignment(metadata)
        data_start = cursor.position + -cursor.position % alignment
    _check_layout(table, data_start, alignment, n_bytes)
    starts = {tensor.name: data_start + offset for tensor, offset in table}
    return Header(path, n_bytes, metadata, tuple(tensor for tensor, _ in table), starts)


class _Cursor:
    """A position in the mapped file. Reading past the end raises ModelFileError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    @property
    def n_left(self) -> int:
        return len(self.data) - self.position

    def numbers(self, code: str, n: int) -> tuple[int | float | bool, ...]:
        layout = struct.Struct("<" + code)
        if n * layout.size > self.n_left:
            raise ModelFileError(
                f"{n} values are announced at byte {self.position}, but only {self.n_left} bytes "
                f"are left; {BROKEN}"
            )
        values = struct.unpack_from(f"<{n}{code}", self.data, self.position)
        self.position += n * layout.size
        return values

    def number(self, code: str) -> int:
        if struct.calcsize("<" + code) > self.n_left:
            raise ModelFileError(
                f"the header ends too early, after {len(self.data)} bytes: the file is cut off, "
                "download it again"
            )
        return int(self.numbers(code, 1)[0])

    def raw_string(self) -> bytes:
        length = self.number("Q")
        if length > self.n_left:
            raise ModelFileError(
                f"a string of {length} bytes is announced at byte {self.position}, but only "
                f"{self.n_left} bytes are left; {BROKEN}"
            )
        start = self.position
        self.position += length
        return self.data[start : self.position]

    def string(self) -> str:
        return self.raw_string().decode("utf-8", errors="replace")

    def value(self, value_type: int, key: str) -> Value:
        if value_type == _STRING:
            return self.string()
        if value_type == _ARRAY:
            return self._array(key)
        (number,) = self.numbers(_scalar_code(value_type, key), 1)
        return number

    def _array(self, key: str) -> Value:
        item_type, n = self.number("I"), self.number("Q")
        if item_type != _STRING:
            return self.numbers(_scalar_code(item_type, key), n)
        return self._strings(n)

    def _strings(self, n: int) -> tuple[bytes, ...]:
        """Read n strings without a call per string: vocabularies have hundreds of thousands."""
        if n * LENGTH.size > self.n_left:
            raise ModelFileError(f"{n} strings are announced, more than the file holds; {BROKEN}")
        data, end, position = self.data, len(self.data), self.position
        strings = []
        for _ in range(n):
            start = position + LENGTH.size
            position = start + LENGTH.unpack_from(data, position)[0] if start <= end else start
            if position > end:
                raise ModelFileError(
                    f"a string at byte {start} ends {position - end} bytes after the file's end; "
                    f"{BROKEN}"
                )
            strings.append(data[start:position])
        self.position = position
        return tuple(strings)


def short(value: object) -> str:
    """Return a value of a file, which may be megabytes, shortened for a message on one line."""
    text = repr(value[:41] if isinstance(value, str | bytes | tuple) else value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _scalar_code(value_type: int, key: str) -> str:
    code = _SCALARS.get(value_type)
    if code is None:
        raise ModelFileError(f"{short(key)} has the unknown value type {value_type}; {BROKEN}")
    return code


def _check_start(start: bytes, cursor: _Cursor) -> None:
    """Read magic and version, and leave the cursor after them."""
    if not start.startswith(MAGIC):
        raise ModelFileError(f"is not a GGUF file: it looks like {_looks_like(start)}")
    cursor.position = len(MAGIC)
    version = cursor.number("I")
    if version & 0xFFFF == 0 and version:
        raise ModelFileError("is a big-endian GGUF file: convert it for little-endian machines")
    if version not in VERSIONS:
        raise ModelFileError(
            f"GGUF version {version} is not supported, only {' and '.join(map(str, VERSIONS))}: "
            "convert the model again"
        )


def _looks_like(start: bytes) -> str:
    for magic, description in _OTHER_FORMATS:
        if start.startswith(magic):
            return description
    if start[8:9] == b"{" and start[5:8] == b"\0\0\0":
        return f"a safetensors file, part of a checkpoint: {CONVERT}"
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, perhaps an error page saved instead of the model"
    if text.startswith((b"{", b"[")):
        return "a JSON file"
    return f"something else (first bytes: {start[:4].hex(' ')})"


def _check_counts(n_tensors: int, n_pairs: int, n_left: int) -> None:
    if n_tensors * MIN_TENSOR_BYTES + n_pairs * MIN_PAIR_BYTES > n_left:
        raise ModelFileError(
            f"the header announces {n_tensors} tensors and {n_pairs} metadata entries, more than "
            f"fit into the remaining {n_left} bytes; {BROKEN}"
        )


def _read_metadata(cursor: _Cursor, n_pairs: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(n_pairs):
        key = cursor.string()
        if not key or key in metadata:
            raise ModelFileError(f"metadata key {short(key)} is empty or comes twice; {BROKEN}")
        metadata[key] = cursor.value(cursor.number("I"), key)
    return metadata


def _alignment(metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise ModelFileError(
            f"general.alignment is {short(alignment)}, not a power of two; {BROKEN}"
        )
    if alignment < DEFAULT_ALIGNMENT:
        raise ModelFileError(
            f"general.alignment is {alignment}, at least {DEFAULT_ALIGNMENT} is needed: "
            "convert the model again"
        )
    return alignment


def _read_tensors(cursor: _Cursor, n_tensors: int) -> list[tuple[TensorInfo, int]]:
    """Return the tensors with their offsets in the data section, in bytes."""
    table: list[tuple[TensorInfo, int]] = []
    names: set[str] = set()
    for _ in range(n_tensors):
        tensor = _read_tensor(cursor)
        if tensor.name in names:
            raise ModelFileError(f"tensor {tensor.name!r} comes twice; {BROKEN}")
        names.add(tensor.name)
        table.append((tensor, cursor.number("Q")))
    return table


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    raw_name = cursor.raw_string()
    name = raw_name.decode("utf-8", errors="replace")
    if not 0 < len(raw_name) <= MAX_NAME:
        raise ModelFileError(
            f"a tensor name has {len(raw_name)} bytes, allowed are 1 to {MAX_NAME}; {BROKEN}"
        )
    n_dims = cursor.number("I")
    if not 1 <= n_dims <= MAX_DIMS:
        raise ModelFileError(
            f"tensor {name!r} has {n_dims} dimensions, allowed are 1 to {MAX_DIMS}; {BROKEN}"
        )
    shape = tuple(int(size) for size in cursor.numbers("Q", n_dims))
    type_number = cursor.number("I")
    if type_number not in tensor_types():
        raise ModelFileError(
            f"tensor {name!r} has the unknown or retired type {type_number}: "
            "convert the model again"
        )
    type_name, block_size, block_bytes = tensor_types()[type_number]
    tensor = TensorInfo(name, type_name, shape, 0)
    if not 0 < tensor.n_elements <= MAX_ELEMENTS:
        raise ModelFileError(f"tensor {name!r} has the impossible shape {list(shape)}; {BROKEN}")
    if shape[0] % block_size:
        raise ModelFileError(
            f"tensor {name!r} has rows of {shape[0]} values, but {type_name} needs a multiple of "
            f"{block_size}; {BROKEN}"
        )
    return TensorInfo(name, type_name, shape, tensor.n_elements // block_size * block_bytes)


def _check_layout(
    table: list[tuple[TensorInfo, int]], data_start: int, alignment: int, n_bytes: int
) -> None:
    """Require that tensors follow one another, aligned, and end inside the file (ggml's rule)."""
    expected = end = 0
    for tensor, offset in table:
        if offset != expected:
            raise ModelFileError(
                f"data of tensor {tensor.name!r} start at offset {offset} instead of {expected}: "
                f"outside the file, overlapping or misaligned; {BROKEN}"
            )
        end = offset + tensor.n_bytes
        expected = end + -end % alignment
    missing = data_start + end - n_bytes
    if table and missing > 0:
        raise ModelFileError(
            f"the file is cut off: {missing} of {data_start + end} bytes are missing, "
            "download it again"
        )
