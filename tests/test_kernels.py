"""Products and attention of pyselfspec/native/kernels by themselves, with instructions of other
processors too, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from pyselfspec.runtime._lib import LIB_DIR

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "pyselfspec" / "native" / "kernels"
PRODUCTS = ("floats", "blocks", "superblocks", "columns", "activations")
N_KINDS = 21  # sixteen types, five of them in columns too

AVX2 = ("avx2", "fma", "f16c")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
INSTRUCTIONS = {
    "AVX2": AVX2,
    "AVX-VNNI": (*AVX2, "avxvnni"),
    "AVX-512": AVX512,
    "AVX-512 VNNI": (*AVX512, "avx512vnni"),
    "AVX-512 BF16": (*AVX512, "avx512vnni", "avx512bf16"),
}


def flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        return set()
    [line, *_] = [li for li in cpuinfo.read_text().splitlines() if li.startswith("flags")]
    # as the compiler names them
    return set(line.replace("avx512_", "avx512").replace("avx_", "avx").split()[2:])


def llama_cpp() -> Path:
    trees = [ROOT / "vendor" / name for name in ("llama.cpp", "work")]
    found = [tree for tree in trees if (tree / "ggml" / "include").exists()]
    if not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("llama.cpp is not unpacked here")
    return found[0]


def compiled(folder: Path, *files: Path, options: Sequence[str] = ()) -> Path:
    """A program under sanitizers, with the rules for floating point that the library is built
    with: products and sums may be joined where the code does not say how."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler
    program = folder / "program"
    command = [compiler, "-std=gnu++17", "-O1", "-g", f"-I{KERNELS}", f"-I{KERNELS.parent}"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", *options]
    subprocess.run([*command, *map(str, files), "-o", str(program)], check=True)
    return program


# experts chosen at one token, rows of each: Qwen3-30B-A3B, DeepSeek-V3, Mixtral
EXPERTS = {"qwen3": (8, 768), "deepseek": (8, 2048), "mixtral": (2, 14336)}


@pytest.mark.parametrize("n_threads", [1, 2, 8, 16, 32, 64])
def test_every_thread_gets_rows_of_an_expert(n_threads: int, tmp_path: Path) -> None:
    """One token goes through few of many experts; the pieces are cut for those."""
    program = compiled(tmp_path, ROOT / "tests" / "native" / "chunks.cpp")
    for name, (n_chosen, n_rows) in {**EXPERTS, "small": (1, 5), "none": (0, 64)}.items():
        command = [program, *map(str, (n_chosen, n_rows, n_threads))]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        pieces = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
        rows = sorted((m, r) for m, begin, end in pieces for r in range(begin, end))
        assert rows == [(m, r) for m in range(n_chosen) for r in range(n_rows)], name
        assert len(pieces) >= min(n_threads, n_chosen * n_rows // 8), name


VNNI = '#include "simd.h"\nstatic_assert(selfspec::HAS_VNNI == %s);\n'


@pytest.mark.skipif(platform.machine() != "x86_64", reason="options of another processor")
@pytest.mark.parametrize(
    ("instructions", "has_vnni"),
    [
        (AVX2, "false"),
        ((*AVX2, "avxvnni"), "true"),
        (AVX512, "false"),
        ((*AVX512, "avxvnni"), "false"),
        ((*AVX512, "avx512vnni"), "true"),
    ],
)
def test_vnni_is_that_of_the_vectors_in_use(
    instructions: Sequence[str], has_vnni: str, tmp_path: Path
) -> None:
    """No processor has the short one beside long vectors only, but options can say so."""
    source = tmp_path / "vnni.cpp"
    source.write_text(VNNI % has_vnni)
    command = ["c++", "-std=gnu++17", "-fsyntax-only", f"-I{KERNELS}", str(source)]
    subprocess.run([*command, *(f"-m{flag}" for flag in instructions)], check=True)


def native_test(name: str, source: str, parts: Sequence[str], folder: Path) -> str:
    """What a program of tests/native prints when it is built with these instructions."""
    if missing := set(INSTRUCTIONS[name]) - flags():
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    ggml = llama_cpp() / "ggml"
    include = (ggml / "include", ggml / "src", ggml / "src" / "ggml-cpu")
    options = [f"-m{flag}" for flag in INSTRUCTIONS[name]] + [f"-I{path}" for path in include]
    libraries = sorted(LIB_DIR.glob("*ggml-base*"))
    program = compiled(
        folder,
        ROOT / "tests" / "native" / source,
        *(KERNELS / f"{part}.cpp" for part in parts),
        libraries[0],
        options=[*options, f"-Wl,-rpath,{LIB_DIR}"],
    )
    run = subprocess.run([program], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_products(name: str, tmp_path: Path) -> None:
    printed = native_test(name, "kernels.cpp", PRODUCTS, tmp_path)
    assert printed == f"{N_KINDS} kinds of weights, 0 wrong\n"


@pytest.mark.parametrize("name", ["AVX2", "AVX-512"])
def test_attention(name: str, tmp_path: Path) -> None:
    assert native_test(name, "attention.cpp", ["attention"], tmp_path) == "200 cases, 0 wrong\n"
