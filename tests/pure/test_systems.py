"""Branches for other systems than this one: names of libraries, of the processor, and streams."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyselfspec.util import libraries, memory, processor_name, streams
from pyselfspec.util.memory import address_space

FILES = {"linux": "libllama.so", "darwin": "libllama.dylib", "win32": "llama.dll"}


# --- libraries ------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", FILES)
def test_a_library_has_the_name_of_the_system(system: str, tmp_path: Path) -> None:
    assert libraries.find(tmp_path, "llama", system) is None
    for name in FILES.values():
        (tmp_path / f"{name}.a").touch()  # what linkers read
    assert libraries.find(tmp_path, "llama", system) is None
    for name in FILES.values():
        (tmp_path / name).touch()
    found = libraries.find(tmp_path, "llama", system)
    assert found is not None and found.name == FILES[system]
    assert libraries.find(tmp_path, "lla", system) is None


def test_prefixed_dlls_and_modules_of_macos_are_found(tmp_path: Path) -> None:
    (tmp_path / "libllama.dll").touch()
    (tmp_path / "libggml-cpu.so").touch()
    assert libraries.find(tmp_path, "llama", "win32") == tmp_path / "libllama.dll"
    assert libraries.find(tmp_path, "ggml-cpu", "darwin") == tmp_path / "libggml-cpu.so"


@pytest.mark.parametrize(
    ("there", "system", "said"),
    [
        ("win32", "linux", "is for Windows, and this is Linux on arm64; install pyselfspec again"),
        ("linux", "win32", "is for Linux, and this is Windows on arm64; install pyselfspec again"),
        (None, "darwin", "has no library for macOS on arm64; install pyselfspec again"),
        (None, "freebsd15", "no library for freebsd15 on arm64, only for Linux, macOS, Windows; "),
    ],
)
def test_a_missing_library_is_one_sentence(
    there: str | None,
    system: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(libraries.machine_facts, "machine", lambda: "arm64")
    if there:
        (tmp_path / FILES[there]).touch()
    sentence = libraries.why_missing(tmp_path, "llama", system)
    assert said in sentence and "\n" not in sentence


# --- the processor's name -------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    file = folder / "cpuinfo"
    file.write_text(text, encoding="utf-8")
    return file


def test_linux_names_the_processor_or_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_name.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(processor_name.platform, "processor", lambda: "")
    for text, name in (
        ("processor\t: 0\nmodel name\t: A Chip 7 \n\nmodel name\t: Another\n", "A Chip 7"),
        (
            "CPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n",
            "aarch64 CPU implementer 0x41 CPU part 0xd0c CPU variant 0x3",
        ),
        ("", "aarch64"),
    ):
        monkeypatch.setattr(processor_name, "CPUINFO", written(tmp_path, text))
        assert processor_name.processor_name("linux") == name
    monkeypatch.setattr(processor_name, "CPUINFO", tmp_path / "none")
    assert processor_name.processor_name("linux") == "aarch64"


def test_macos_is_asked_with_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_name.platform, "processor", lambda: "arm")
    program = (sys.executable, "-c", "print('Apple M9')")
    monkeypatch.setattr(processor_name, "SYSCTL", program)
    assert processor_name.processor_name("darwin") == "Apple M9"
    for broken in ((sys.executable, "-c", "raise SystemExit(1)"), ("/no/such/program",)):
        monkeypatch.setattr(processor_name, "SYSCTL", broken)
        assert processor_name.processor_name("darwin") == "arm"

    def late(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("sysctl", 1)

    monkeypatch.setattr(processor_name.subprocess, "run", late)
    assert processor_name.processor_name("darwin") == "arm"


class Key:
    def __enter__(self) -> Key:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_windows_has_it_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Any = ModuleType("winreg")
    registry.HKEY_LOCAL_MACHINE = 1
    opened: list[str] = []
    registry.OpenKey = lambda _top, path: (opened.append(path), Key())[1]
    registry.QueryValueEx = lambda _key, name: (f"A Chip 8, {name}  ", 1)
    monkeypatch.setitem(sys.modules, "winreg", registry)
    assert processor_name.processor_name("win32") == "A Chip 8, ProcessorNameString"
    assert opened == [processor_name.REGISTRY]

    def closed(*_: object) -> None:
        raise FileNotFoundError

    registry.OpenKey = closed
    monkeypatch.setattr(processor_name.platform, "processor", lambda: "Family 6")
    assert processor_name.processor_name("win32") == "Family 6"
    monkeypatch.setitem(sys.modules, "winreg", None)
    assert processor_name.processor_name("win32") == "Family 6"


def test_another_system_names_what_python_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_name.platform, "processor", lambda: "")
    monkeypatch.setattr(processor_name.platform, "machine", lambda: "riscv64")
    assert processor_name.processor_name("plan9") == "riscv64"


# --- limits on memory -----------------------------------------------------------------------------


def test_address_space_is_not_limited_where_the_module_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: Any = ModuleType("resource")
    limits.RLIMIT_AS, limits.RLIM_INFINITY = 9, -1
    limits.getrlimit = lambda _which: (1 << 30, 1 << 30)
    monkeypatch.setitem(sys.modules, "resource", limits)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "status").write_text("VmSize: 1024 kB\n")
    assert address_space(tmp_path) == (1 << 30) - (1024 << 10)
    assert address_space(tmp_path / "none") is None  # macOS: a limit, and no such file
    limits.getrlimit = lambda _which: (-1, -1)
    assert address_space(tmp_path) is None
    monkeypatch.setitem(sys.modules, "resource", None)
    assert address_space(tmp_path) is None
    assert memory.available(tmp_path / "none") is None
    assert memory.total(tmp_path / "none") is None


# --- streams --------------------------------------------------------------------------------------


class Stream(io.TextIOWrapper):
    def __init__(self, terminal: bool) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding="cp1252", newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("system", "terminal", "expected"),
    [
        ("win32", False, "héllo 語".encode()),
        ("win32", True, "héllo ?".encode("cp1252")),
        ("linux", False, "héllo ?".encode("cp1252")),
    ],
)
def test_streams_take_any_text(system: str, terminal: bool, expected: bytes) -> None:
    stream = Stream(terminal)
    streams.take_any_text(stream, system)
    stream.write("héllo 語")
    stream.flush()
    assert stream.bytes.getvalue() == expected
    streams.take_any_text(io.StringIO(), system)  # a replacement that cannot be set up
