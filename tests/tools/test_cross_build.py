"""Contents of wheels for other systems, with libraries made here: by hand, and by a compiler."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyselfspec.runtime.ffi.prototypes import PROTOTYPES
from tools import cross_build
from tools.cross_build import TARGETS, bound, faults
from tools.exports import Library, NotALibraryError, read

ROOT = Path(__file__).resolve().parents[2]
MINGW = "x86_64-w64-mingw32-gcc"  # Debian: mingw-w64

AT = 0x1000  # address of the only section of the DLL below
PLACE = 0x400  # its place in the file


def dll(exported: list[str], needed: list[str], machine: int = 0x8664) -> bytes:
    """The parts of a DLL that are read: headers, and a section with both tables and the names."""
    section = bytearray()

    def put(data: bytes) -> int:
        section.extend(data)
        return AT + len(section) - len(data)

    names = [put(name.encode() + b"\0") for name in exported]
    pointers = put(struct.pack(f"<{len(names)}I", *names))
    exports = put(
        struct.pack("<6I", 0, 0, 0, 0, 1, 0) + struct.pack("<4I", len(names), 0, pointers, 0)
    )
    others = [put(name.encode() + b"\0") for name in needed]
    imports = put(b"".join(struct.pack("<5I", 1, 0, 0, name, 1) for name in others) + bytes(20))
    header = 0x80
    directories = struct.pack("<4I", exports if names else 0, 40, imports if others else 0, 40)
    optional = struct.pack("<H", 0x20B) + bytes(110) + directories + bytes(14 * 8)
    coff = b"PE\0\0" + struct.pack("<HH12xHH", machine, 1, len(optional), 0x2022)
    table = b".rdata\0\0" + struct.pack("<4I16x", 0x1000, AT, len(section), PLACE)
    start = b"MZ" + bytes(0x3A) + struct.pack("<I", header)
    data = start.ljust(header, b"\0") + coff + optional + table
    return data.ljust(PLACE, b"\0") + bytes(section)


def dylib(exported: list[str], needed: list[str], *, signed: bool = True) -> bytes:
    """A header, load commands, and a table of symbols, among them one that is looked up elsewhere
    and one that is the library's own."""
    symbols = [(f"_{name}", 0x0F) for name in exported] + [("_wanted", 0x01), ("_hidden", 0x0E)]
    texts, table = b"\0", b""
    for name, kind in symbols:
        table += struct.pack("<IBBHQ", len(texts), kind, 1, 0, 0)
        texts += name.encode() + b"\0"
    commands = [struct.pack("<6I", 0x32, 24, 1, 11 << 16, 0, 0)]
    commands += [
        struct.pack("<6I", 0x0C, 24 + len(text), 24, 0, 0, 0) + text
        for text in (name.encode().ljust(8 * (len(name) // 8 + 1), b"\0") for name in needed)
    ]
    commands += [struct.pack("<4I", 0x1D, 16, 0, 0)] if signed else []
    size = 24 + sum(map(len, commands))
    place = 32 + size
    commands.append(
        struct.pack("<6I", 0x02, 24, place, len(symbols), place + len(table), len(texts))
    )
    header = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, len(commands), size, 0, 0)
    return header + b"".join(commands) + table + texts


def test_a_dll_is_read() -> None:
    library = read(dll(["alpha", "beta"], ["KERNEL32.dll", "ggml.dll"]))
    assert library == Library(
        "x86-64", frozenset({"alpha", "beta"}), frozenset({"KERNEL32.dll", "ggml.dll"})
    )
    assert read(dll([], [], 0xAA64)) == Library("ARM", frozenset(), frozenset())


def test_a_dylib_is_read() -> None:
    needed = ["@rpath/libggml.dylib", "/usr/lib/libSystem.B.dylib"]
    library = read(dylib(["alpha", "beta"], needed))
    assert library == Library("ARM", frozenset({"alpha", "beta"}), frozenset(needed), "11.0", True)
    assert not read(dylib(["alpha"], [], signed=False)).is_signed


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF", b"MZ", dll(["alpha"], ["x"])[: PLACE + 4], dylib(["alpha"], ["x"])[:60]],
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(NotALibraryError):
        read(data)


@pytest.mark.nightly
@pytest.mark.slow  # the compiler makes its libraries of the system first
@pytest.mark.skipif(find_spec("ziglang") is None, reason="pip install ziglang")
@pytest.mark.parametrize(
    ("target", "processor", "system"),
    [("x86_64-windows-gnu", "x86-64", "kernel32.dll"), ("aarch64-macos", "ARM", "libSystem")],
)
def test_what_a_compiler_makes_is_read(
    target: str, processor: str, system: str, tmp_path: Path
) -> None:
    source = tmp_path / "some.c"
    source.write_text(
        "#include <stdio.h>\n"
        "#if defined(_WIN32)\n#define E __declspec(dllexport)\n#else\n#define E\n#endif\n"
        'E int exported_one(void) { return puts("x"); }\nE int exported_two;\n'
        "static int hidden(void) { return 1; }\nE int exported_three(void) { return hidden(); }\n"
    )
    made = tmp_path / "some.library"
    command = [cross_build.zig(), "cc", "-target", target, "-shared", "-o", made, source]
    subprocess.run(command, check=True)
    library = read(made.read_bytes())
    assert {name for name in library.exported if name.startswith(("exported", "hidden"))} == {
        "exported_one",
        "exported_two",
        "exported_three",
    }
    assert library.processor == processor
    assert any(system.lower() in name.lower() for name in library.needed)


# --- what is asked of a wheel ---------------------------------------------------------------------


def good(**changed: Library) -> dict[str, Library]:
    def library(*names: str, needed: tuple[str, ...] = ("KERNEL32.dll",)) -> Library:
        return Library("x86-64", frozenset(names), frozenset(needed))

    ours = [name for name in PROTOTYPES if name.startswith("selfspec")]
    theirs = [name for name in PROTOTYPES if name not in ours]
    return {
        "llama": library(*bound(), *ours, needed=("ggml.dll", "ggml-base.dll")),
        "ggml": library(*theirs[::2]),
        "ggml-base": library(*theirs[1::2]),
        "ggml-cpu-haswell": library(),
        "selfspec-processor": library("selfspec_processor_has"),
    } | changed


def test_the_bindings_are_understood() -> None:
    assert {"llama_decode", "llama_max_devices", "llama_model_quantize"} <= bound()
    assert len(bound()) > 150 and all(name.startswith("llama_") for name in bound())


def test_a_complete_wheel_has_no_faults() -> None:
    assert faults(good(), TARGETS["windows"]) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama", ["there is no llama", "no library exports selfspec_"]),
        ("ggml-base", ["there is no ggml-base", "no library exports ggml_", "needs ggml-base.dll"]),
        ("ggml-cpu-haswell", ["there is no ggml-cpu"]),
        ("selfspec-processor", ["there is no selfspec-processor"]),
    ],
)
def test_a_missing_library_is_found(name: str, said: list[str]) -> None:
    libraries = good()
    del libraries[name]
    found = "\n".join(faults(libraries, TARGETS["windows"]))
    assert all(each in found for each in said), found


def test_missing_functions_are_found() -> None:
    libraries = good()
    llama = libraries["llama"]
    fewer = llama.exported - {"llama_decode", "selfspec_decode"}
    libraries["llama"] = Library("x86-64", fewer, llama.needed)
    assert faults(libraries, TARGETS["windows"]) == [
        "llama does not export llama_decode",
        "no library exports selfspec_decode",
    ]


def test_foreign_libraries_are_found() -> None:
    libgomp = Library("ARM", frozenset(), frozenset({"libgomp-1.dll"}))
    assert faults(good(**{"ggml-cpu-haswell": libgomp}), TARGETS["windows"]) == [
        "ggml-cpu-haswell: is for ARM, not for x86-64",
        "ggml-cpu-haswell: needs libgomp-1.dll, which is neither in the wheel nor a part of the "
        "system",
    ]
    found = faults({"ggml-cpu": read(dylib([], [], signed=False))}, TARGETS["macos"])
    assert any("is not signed" in each for each in found)


def wheel(folder: Path, llama: bytes) -> Path:
    file = folder / "pyselfspec-1-py3-none-win_amd64.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("pyselfspec/__init__.py", "")
        archive.writestr("pyselfspec/lib/libllama.dll", llama)
        for name in ("ggml.dll", "ggml-cpu-haswell.dll"):
            archive.writestr(f"pyselfspec/lib/{name}", dll([], []))
        archive.writestr("pyselfspec/lib/ggml-base.dll", dll([*PROTOTYPES], []))
        archive.writestr(
            "pyselfspec/lib/libselfspec-processor.dll", dll(["selfspec_processor_has"], [])
        )
    return file


def test_a_wheel_is_checked_from_the_command_line(tmp_path: Path) -> None:
    complete = wheel(tmp_path, dll([*bound()], ["ggml-base.dll"]))
    done = CliRunner().invoke(cross_build.main, ["check", str(complete)])
    assert done.exit_code == 0, done.output
    assert f"llama                        x86-64, {len(bound())} exported" in done.output
    done = CliRunner().invoke(cross_build.main, ["check", str(wheel(tmp_path, dll([], [])))])
    assert done.exit_code == 1 and "llama does not export llama_" in done.output


@pytest.mark.skipif(not (shutil.which(MINGW) and shutil.which("cmake")), reason="no such compiler")
def test_other_compilers_for_windows_are_refused(tmp_path: Path) -> None:
    command = ["cmake", "-S", ROOT / "pyselfspec" / "native", "-B", tmp_path / "build"]
    options = {
        "CMAKE_SYSTEM_NAME": "Windows",
        "CMAKE_C_COMPILER": MINGW,
        "CMAKE_CXX_COMPILER": MINGW.replace("gcc", "g++"),
        "PYSELFSPEC_LLAMA_CPP_DIR": tmp_path,
        "PYSELFSPEC_BUILD_ID": "x",
        "PYSELFSPEC_UPSTREAM": "x",
    }
    command += [f"-D{name}={value}" for name, value in options.items()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert (
        "compile with Clang (-DCMAKE_TOOLCHAIN_FILE=vendor/toolchains/windows.cmake)"
        in " ".join(done.stderr.split())
    )
