"""The kernels for 64-bit ARM on emulated processors with different instruction sets: cross-compiled
without the building machine's headers, and run by qemu-user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from places import ROOT, llama_cpp

from tools.bench.cycles import SOURCES

KERNELS = ROOT / "pyselfspec" / "native" / "kernels"
PROGRAMS = {
    "kernels": SOURCES,
    "attention": ("attention",),
}
N_KINDS = 23  # 21 types, two with activations as they are
N_ATTENTION = 72
VERSION = '#define GGML_VERSION ""\n#define GGML_COMMIT ""\n'  # made by CMake otherwise
GGML = ("ggml.c", "ggml-quants.c", "ggml-threading.cpp")

# of the emulator: the baseline, ARMv8.2 with dot products, everything that it has
PROCESSORS = {
    "cortex-a72": "armv8-a",
    "neoverse-n1": "armv8.2-a+dotprod",
    "max": "armv8.2-a+dotprod",
}
EMULATOR = "qemu-aarch64"
CXX, CC = "aarch64-linux-gnu-g++", "aarch64-linux-gnu-gcc"

pytestmark = [pytest.mark.slow, pytest.mark.emulated]


@pytest.fixture(autouse=True)
def tools() -> None:
    missing = [name for name in (EMULATOR, CXX, CC) if not shutil.which(name)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: no programs for ARM here")


def made(folder: Path, sources: Sequence[Path], march: str) -> list[Path]:
    """Object files of these sources for a 64-bit ARM processor."""
    ggml = llama_cpp() / "ggml"
    include = (KERNELS, KERNELS.parent, ggml / "include", ggml / "src", ggml / "src" / "ggml-cpu")
    (folder / "ggml-version.h").write_text(VERSION)
    options = ["-O1", "-D_GNU_SOURCE", f"-march={march}", "-ffunction-sections", "-c"]
    options += [f"-I{path}" for path in (folder, *include)]

    def made_of(source: Path) -> Path:
        compiler = [CC] if source.suffix == ".c" else [CXX, "-std=gnu++17"]
        to = folder / f"{source.parent.name}-{source.stem}.o"
        subprocess.run([*compiler, *options, str(source), "-o", str(to)], check=True)
        return to

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(made_of, sources))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The parts of ggml that unpack weights, for any 64-bit ARM processor."""
    if not shutil.which(CC) or not shutil.which(CXX):
        return []
    source = llama_cpp() / "ggml" / "src"
    return made(tmp_path_factory.mktemp("base"), [source / name for name in GGML], "armv8-a")


def said_by(program: str, processor: str, base: Sequence[Path], folder: Path) -> str:
    """Compile a program of tests/native for an emulated processor; return its output."""
    names = subprocess.run([EMULATOR, "-cpu", "help"], capture_output=True, text=True).stdout
    if processor not in names.split():
        pytest.skip(f"this version of {EMULATOR} does not emulate {processor}")
    sources = [KERNELS / f"{name}.cpp" for name in PROGRAMS[program]]
    sources.append(ROOT / "tests" / "native" / f"{program}.cpp")
    objects = [*made(folder, sources, PROCESSORS[processor]), *base]
    # what ggml calls beyond these files is never reached, and left out with the callers
    linked = [CXX, "-static", "-pthread", "-Wl,--gc-sections", *map(str, objects)]
    subprocess.run([*linked, "-o", str(folder / program)], check=True)
    words = [EMULATOR, "-cpu", processor, str(folder / program)]
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("processor", PROCESSORS)
def test_products(processor: str, base: list[Path], tmp_path: Path) -> None:
    """Every type of weights against sums in double precision, and every width against width 1."""
    said = said_by("kernels", processor, base, tmp_path)
    found = re.fullmatch(r"(\d+) kinds of weights, (\d+) results compared, 0 wrong\n", said)
    assert found and int(found[1]) == N_KINDS and int(found[2]) > 100_000, said


@pytest.mark.parametrize("processor", PROCESSORS)
def test_attention(processor: str, base: list[Path], tmp_path: Path) -> None:
    """A token alone and among others, with up to 16 threads, for several types of K and V."""
    said = said_by("attention", processor, base, tmp_path)
    assert said == f"{N_ATTENTION} kinds of attention, 0 wrong\n"
