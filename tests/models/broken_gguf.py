"""Raw GGUF files for tests: any field can be wrong, nothing is checked."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType

ALIGNMENT = 32
SCALARS = {
    GGUFValueType.UINT8: "B", GGUFValueType.INT8: "b", GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h", GGUFValueType.UINT32: "I", GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f", GGUFValueType.BOOL: "?", GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q", GGUFValueType.FLOAT64: "d",
}  # fmt: skip


@dataclass
class RawTensor:
    """One tensor: sizes inputs first, as in the file; offset None means the next free one."""

    name: str
    shape: list[int]
    type: int
    data: bytes
    offset: int | None = None


@dataclass
class RawGguf:
    """A GGUF file as plain lists, to be changed at will and written."""

    metadata: dict[str, tuple[Any, ...]]  # key -> (type, value) or (ARRAY, item type, list)
    tensors: list[RawTensor]
    version: int = 3
    byte_order: str = "<"
    n_metadata: int | None = None  # claimed count, None: the true one
    n_tensors: int | None = None
    extra_metadata: list[bytes] = field(default_factory=list)  # written as they are

    def set_u32(self, key: str, value: int) -> None:
        self.metadata[key] = (GGUFValueType.UINT32, value)

    def set_string(self, key: str, value: str) -> None:
        self.metadata[key] = (GGUFValueType.STRING, value)

    def set_array(self, key: str, item_type: GGUFValueType, values: list[Any]) -> None:
        self.metadata[key] = (GGUFValueType.ARRAY, item_type, values)

    def tensor(self, name: str) -> RawTensor:
        return next(t for t in self.tensors if t.name == name)

    def pack(self, code: str, *values: Any) -> bytes:
        return struct.pack(self.byte_order + code, *values)

    def string(self, text: str) -> bytes:
        raw = text.encode()
        return self.pack("Q", len(raw)) + raw

    def value(self, value_type: GGUFValueType, *content: Any) -> bytes:
        if value_type == GGUFValueType.STRING:
            return self.string(content[0])
        if value_type == GGUFValueType.ARRAY:
            item_type, values = content
            head = self.pack("IQ", item_type, len(values))
            return head + b"".join(self.value(item_type, v) for v in values)
        return self.pack(SCALARS[value_type], content[0])

    def header(self) -> bytes:
        pairs = [
            self.string(key) + self.pack("I", entry[0]) + self.value(*entry)
            for key, entry in self.metadata.items()
        ] + self.extra_metadata
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_metadata = len(pairs) if self.n_metadata is None else self.n_metadata
        infos, end = [], 0
        for t in self.tensors:
            offset = end if t.offset is None else t.offset
            dims = self.pack(f"I{len(t.shape)}Q", len(t.shape), *t.shape)
            infos.append(self.string(t.name) + dims + self.pack("IQ", t.type, offset))
            end += len(_padded(t.data))
        counts = self.pack("IQQ", self.version, n_tensors, n_metadata)
        return b"GGUF" + counts + b"".join(pairs) + b"".join(infos)

    def to_bytes(self) -> bytes:
        return _padded(self.header()) + b"".join(_padded(t.data) for t in self.tensors)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def read(path: Path) -> RawGguf:
    """A well-formed file, taken apart. Uses gguf-py, so it does not share code with the checker."""
    reader = GGUFReader(path)
    metadata: dict[str, tuple[Any, ...]] = {}
    for key, entry in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        if entry.types[0] == GGUFValueType.ARRAY:
            metadata[key] = (GGUFValueType.ARRAY, entry.types[-1], entry.contents())
        else:
            metadata[key] = (entry.types[0], entry.contents())
    tensors = [
        RawTensor(t.name, t.shape.tolist(), int(t.tensor_type), np.asarray(t.data).tobytes())
        for t in reader.tensors
    ]
    return RawGguf(metadata, tensors)
