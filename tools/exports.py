"""Names that a shared library exports, and libraries that it needs, read from its bytes: DLLs of
64-bit Windows and dylibs of 64-bit Macs. For libraries that cannot be loaded here."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MACHINES = {0x8664: "x86-64", 0xAA64: "ARM"}  # of DLLs
CPU_TYPES = {0x01000007: "x86-64", 0x0100000C: "ARM"}  # of dylibs
MACH_O = 0xFEEDFACF
# Load commands of dylibs.
SYMBOLS, NEEDED, SIGNATURE, BUILD_VERSION = 0x02, 0x0C, 0x1D, 0x32
EXTERNAL, KIND, UNDEFINED = 0x01, 0x0E, 0x00  # bits of a symbol's type


class NotALibraryError(Exception):
    """The bytes are neither a DLL nor a dylib, or are damaged."""


@dataclass(frozen=True)
class Library:
    """exported: names of functions and data. needed: names of other libraries. minimum: the oldest
    version of macOS, "" elsewhere. is_signed: ARM Macs run nothing else."""

    processor: str
    exported: frozenset[str]
    needed: frozenset[str]
    minimum: str = ""
    is_signed: bool = False


def read(data: bytes) -> Library:
    """Raises NotALibraryError."""
    try:
        if data[:2] == b"MZ":
            return _Dll(data).library()
        if data[:4] == struct.pack("<I", MACH_O):
            return _dylib(data)
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise NotALibraryError(f"cut off or damaged ({error!r})") from error
    raise NotALibraryError(f"begins with {data[:4]!r}, neither a DLL nor a dylib")


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


class _Dll:
    def __init__(self, data: bytes) -> None:
        self._data = data
        header = struct.unpack_from("<I", data, 0x3C)[0]
        if data[header : header + 4] != b"PE\0\0":
            raise NotALibraryError("begins like a program of DOS")
        machine, n_sections = struct.unpack_from("<HH", data, header + 4)
        n_optional = struct.unpack_from("<H", data, header + 20)[0]
        self._processor = MACHINES[machine]
        self._directories = header + 24 + 112  # the tables' places: of 64-bit files
        start = header + 24 + n_optional
        # of each section: its address in memory, its size in the file, its place in the file
        self._sections = [
            struct.unpack_from("<12xIII", data, start + 40 * i) for i in range(n_sections)
        ]

    def library(self) -> Library:
        return Library(self._processor, frozenset(self._exported()), frozenset(self._needed()))

    def _offset(self, address: int) -> int:
        for first, size, place in self._sections:
            if first <= address < first + size:
                return int(place + address - first)
        raise ValueError(f"address {address:#x} is in no section")

    def _table(self, index: int) -> int:
        address = struct.unpack_from("<I", self._data, self._directories + 8 * index)[0]
        return self._offset(address) if address else 0

    def _exported(self) -> Iterator[str]:
        if table := self._table(0):
            n_names, names = struct.unpack_from("<24xI4xI", self._data, table)
            start = self._offset(names) if n_names else 0
            for i in range(n_names):
                address = struct.unpack_from("<I", self._data, start + 4 * i)[0]
                yield _text(self._data, self._offset(address))

    def _needed(self) -> Iterator[str]:
        entry = self._table(1)
        while entry and any(fields := struct.unpack_from("<5I", self._data, entry)):
            yield _text(self._data, self._offset(fields[3]))
            entry += 20


def _dylib(data: bytes) -> Library:
    cpu_type, n_commands = struct.unpack_from("<4xI8xI", data, 0)
    exported: frozenset[str] = frozenset()
    needed, minimum, is_signed = set(), "", False
    place = 32
    for _ in range(n_commands):
        command, size = struct.unpack_from("<II", data, place)
        if command == SYMBOLS:
            exported = frozenset(_symbols(data, *struct.unpack_from("<8x4I", data, place)))
        elif command == NEEDED:
            needed.add(_text(data, place + struct.unpack_from("<8xI", data, place)[0]))
        elif command == BUILD_VERSION:
            version = struct.unpack_from("<12xI", data, place)[0]
            minimum = f"{version >> 16}.{version >> 8 & 0xFF}"
        is_signed |= command == SIGNATURE
        place += size
    return Library(CPU_TYPES[cpu_type], exported, frozenset(needed), minimum, is_signed)


def _symbols(data: bytes, table: int, n: int, texts: int, _size: int) -> Iterator[str]:
    """Yield the names that other libraries see; C names have an underscore before them."""
    for i in range(n):
        name, kind = struct.unpack_from("<IB", data, table + 16 * i)
        if kind & EXTERNAL and kind & KIND != UNDEFINED:
            yield _text(data, texts + name).removeprefix("_")
