"""Wheels for Windows and macOS, compiled on another system, where they cannot be run.

    python tools/cross_build.py build windows FOLDER
    python tools/cross_build.py build macos FOLDER
    python tools/cross_build.py check WHEEL

The compiler is Clang from the Python package ziglang (pip install ziglang wheel), with its headers
of both systems. `check` reads the libraries in a wheel: every function that Python calls must be
exported by the library where it is looked up, and every library that is needed must be in the wheel
or a part of the system. It works on wheels from anywhere, also on those systems themselves.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # after the installed package, for tools.exports

from pyselfspec.runtime.ffi.load import PARTS  # noqa: E402
from pyselfspec.runtime.ffi.prototypes import PROTOTYPES  # noqa: E402
from tools.exports import Library, read  # noqa: E402
from tools.wheels.building import retagged  # noqa: E402

BOUND = re.compile(r'@ctypes_function\(\s*"(\w+)"|^_lib\.(\w+)\.restype', re.MULTILINE)
LLAMA, PROCESSOR, CPU = "llama", "selfspec-processor", "ggml-cpu"
OFTEN = ("ggml_backend_init",)  # what a backend that is loaded as a file must have


@dataclass(frozen=True)
class Target:
    """A system to build for. tag: of the wheel.
    own: names of libraries of the system itself. options: of CMake."""

    tag: str
    processor: str
    own: re.Pattern[str]
    options: tuple[str, ...] = ()


TARGETS = {
    "windows": Target(
        "win_amd64",
        "x86-64",
        re.compile(r"(kernel32|ntdll|advapi32|ws2_32|user32|api-ms-win-\S+)\.dll$", re.IGNORECASE),
        ("PYSELFSPEC_PORTABLE=ON",),
    ),
    "macos": Target("macosx_11_0_arm64", "ARM", re.compile(r"/usr/lib/lib(System|c\+\+)\S*$")),
}


@click.group(help=__doc__.splitlines()[0])
def main() -> None:
    pass


@main.command()
@click.argument("system", type=click.Choice([*TARGETS]))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path, resolve_path=True))
def build(system: str, folder: Path) -> None:
    """Put the wheel for SYSTEM into FOLDER, and check it."""
    if find_spec("ziglang") is None or find_spec("wheel") is None:
        raise click.ClickException("the compiler is not installed: pip install ziglang wheel")
    begun = time.monotonic()
    target = TARGETS[system]
    defined = (f"CMAKE_TOOLCHAIN_FILE={ROOT}/vendor/toolchains/{system}.cmake", *target.options)
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", temporary]
        command += ["-C", f"build-dir=build/{system}", "-C", "cmake.args=-GNinja"]
        for each in defined:
            command += ["-C", "cmake.define." + each]
        environment = os.environ | {"ZIG": zig()}
        if subprocess.run([*command, "."], cwd=ROOT, env=environment).returncode:
            raise click.ClickException("the build has failed, see above")
        [made] = Path(temporary).glob("*.whl")
        if not made.stem.endswith(f"-{target.tag}"):  # named for the system that compiles
            made = retagged(made, target.tag)
        folder.mkdir(parents=True, exist_ok=True)
        wheel = made.replace(folder / made.name)
    click.echo(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB in {time.monotonic() - begun:.0f} s")
    report(wheel)


def zig() -> str:
    """Return the path of the compiler, as CMake writes paths."""
    spec = find_spec("ziglang")
    assert spec is not None and spec.origin is not None
    return next(Path(spec.origin).parent.glob("zig*")).as_posix()


@main.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check(wheel: Path) -> None:
    """Check the libraries in WHEEL."""
    report(wheel)


def report(wheel: Path) -> None:
    system = "windows" if "win_amd64" in wheel.name else "macos"
    libraries = {name: read(data) for name, data in contents(wheel)}
    for name, library in sorted(libraries.items()):
        more = f", macOS {library.minimum} or newer" if library.minimum else ""
        click.echo(f"{name:28} {library.processor}, {len(library.exported)} exported{more}")
    if found := faults(libraries, TARGETS[system]):
        raise click.ClickException("\n".join(found))
    click.echo(f"all {len(bound()) + len(PROTOTYPES) + 1} functions that Python calls are exported")


def contents(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the names, without prefix and suffix, and bytes of the libraries in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if path.suffix in (".dll", ".dylib", ".so"):
                yield path.stem.removeprefix("lib"), archive.read(name)


def bound() -> frozenset[str]:
    """Names of the functions that the stock bindings look up in the library of llama.cpp, all of
    them when they are imported."""
    file = ROOT / "vendor" / "llama.cpp" / "bindings" / "llama_cpp" / "llama_cpp.py"
    return frozenset(a or b for a, b in BOUND.findall(file.read_text(encoding="utf-8")))


def faults(libraries: Mapping[str, Library], target: Target) -> list[str]:
    """Return a line for everything that would fail when these libraries are loaded and used."""
    wanted = {LLAMA: bound(), PROCESSOR: frozenset(["selfspec_processor_has"])}
    found = [f"there is no {name}" for name in (*wanted, *PARTS) if name not in libraries]
    if not any(name.startswith(CPU) for name in libraries):
        found.append(f"there is no {CPU}")
    for name, functions in wanted.items():
        if name in libraries and (missing := functions - libraries[name].exported):
            found.append(f"{name} does not export {', '.join(sorted(missing))}")
    together = [libraries[name].exported for name in (LLAMA, *PARTS) if name in libraries]
    if missing := frozenset(PROTOTYPES).difference(*together):
        found.append(f"no library exports {', '.join(sorted(missing))}")
    for name, library in libraries.items():
        found += [f"{name}: {fault}" for fault in _faults(library, libraries, target)]
    return found


def _faults(library: Library, libraries: Mapping[str, Library], target: Target) -> Iterator[str]:
    if library.processor != target.processor:
        yield f"is for {library.processor}, not for {target.processor}"
    for needed in sorted(library.needed):
        stem = PurePosixPath(needed).stem.removeprefix("lib")
        if stem not in libraries and not target.own.match(needed):
            yield f"needs {needed}, which is neither in the wheel nor a part of the system"
    if target is TARGETS["macos"] and not library.is_signed:
        yield "is not signed, and Macs with ARM processors load nothing else"


if __name__ == "__main__":
    main()
