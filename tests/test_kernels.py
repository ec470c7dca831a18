"""The products of pyselfspec/native/kernels by themselves, with instructions of other processors
too, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from pyselfspec.runtime._lib import LIB_DIR

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "pyselfspec" / "native" / "kernels"
SOURCES = ("floats", "blocks", "columns", "activations")
N_KINDS = 12  # nine types, three of them in columns too

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


@pytest.mark.slow
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_products(name: str, tmp_path: Path) -> None:
    if missing := set(INSTRUCTIONS[name]) - flags():
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler
    ggml, program = llama_cpp() / "ggml", tmp_path / "kernels"
    include = (KERNELS, KERNELS.parent, ggml / "include", ggml / "src", ggml / "src" / "ggml-cpu")
    command = [compiler, "-std=c++17", "-O1", "-g", "-ffp-contract=off", "-o", program]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command += [f"-m{flag}" for flag in INSTRUCTIONS[name]] + [f"-I{path}" for path in include]
    command += [ROOT / "tests" / "native" / "kernels.cpp"]
    command += [KERNELS / f"{source}.cpp" for source in SOURCES]
    libraries = sorted(LIB_DIR.glob("*ggml-base*"))
    command += [libraries[0], f"-Wl,-rpath,{LIB_DIR}"]
    subprocess.run(command, check=True)
    run = subprocess.run([program], capture_output=True, text=True)
    assert (run.stdout, run.returncode) == (f"{N_KINDS} kinds of weights, 0 wrong\n", 0), run.stderr
