"""Products and attention of pyselfspec/native/kernels by themselves, with instructions of other
processors too, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, product
from pathlib import Path

import pytest
from parameters import nightly_unless
from places import ROOT, llama_cpp

from pyselfspec.util.build import LIB_DIR
from tools.bench.cycles import SOURCES

KERNELS = ROOT / "pyselfspec" / "native" / "kernels"
KINDS = 46  # 28 types, sixteen of them in columns too, two with activations as they are

AVX2 = ("avx2", "fma", "f16c")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
INSTRUCTIONS = {
    "AVX2": AVX2,
    "AVX-VNNI": (*AVX2, "avxvnni"),
    "AVX-512": AVX512,
    "AVX-512 VNNI": (*AVX512, "avx512vnni"),
    "AVX-512 BF16": (*AVX512, "avx512vnni", "avx512bf16", "avx512vbmi"),
}


def flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        return set()
    [line, *_] = [li for li in cpuinfo.read_text().splitlines() if li.startswith("flags")]
    # as the compiler names them
    return set(line.replace("avx512_", "avx512").replace("avx_", "avx").split()[2:])


SANITIZERS = (
    *("-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    # what AddressSanitizer finds as well, and doubles the time to compile; x86 needs no alignment
    "-fno-sanitize=null,object-size,pointer-overflow,alignment",
)


def compiled(folder: Path, *files: Path, options: Sequence[str] = SANITIZERS) -> Path:
    """A program with the rules for floating point that the library is built with: products and sums
    may be joined where the code does not say how."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler
    command = [compiler, "-std=gnu++17", "-O1", f"-I{KERNELS}", f"-I{KERNELS.parent}", *options]

    def made_of(file: Path) -> Path:
        if file.suffix != ".cpp":
            return file
        part = folder / f"{file.parent.name}-{file.stem}.o"
        subprocess.run([*command, "-c", str(file), "-o", str(part)], check=True)
        return part

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(made_of, files))
    program = folder / "program"
    subprocess.run([*command, *map(str, parts), "-o", str(program)], check=True)
    return program


# experts chosen at one token, rows of each: Qwen3-30B-A3B, DeepSeek-V3, Mixtral
EXPERTS = {"qwen3": (8, 768), "deepseek": (8, 2048), "mixtral": (2, 14336)}


@pytest.fixture(scope="session")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("chunks"), ROOT / "tests" / "native" / "chunks.cpp")


@pytest.mark.parametrize("n_threads", [1, 2, 8, 16, 32, 64])
def test_every_thread_gets_rows_of_an_expert(n_threads: int, chunks: Path) -> None:
    """One token goes through few of many experts; the pieces are cut for those."""
    for name, (n_chosen, n_rows) in {**EXPERTS, "small": (1, 5), "none": (0, 64)}.items():
        command = [chunks, *map(str, (n_chosen, n_rows, n_threads))]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        pieces = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
        rows = sorted((m, r) for m, begin, end in pieces for r in range(begin, end))
        assert rows == [(m, r) for m in range(n_chosen) for r in range(n_rows)], name
        assert len(pieces) >= min(n_threads, n_chosen * n_rows // 8), name


# heads of K and V, values of each, and heads that share one
HEADS = {
    "smollm2": (3, 64, 3),
    "llama": (8, 128, 4),
    "qwen3": (4, 128, 8),
    "gemma3": (1, 256, 4),
    "deepseek": (1, 512, 128),
}


@pytest.mark.parametrize("n_threads", [1, 2, 3, 16, 64])
def test_every_thread_gets_results_of_attention(n_threads: int, chunks: Path) -> None:
    """One token, vectors of 16 values: every result is computed once, and no thread does more
    than 1.2 times its share plus one vector of one query."""
    for name, (n_heads, size, n_queries) in {**HEADS, "none": (0, 64, 1)}.items():
        n_units = size // 16
        command = [chunks, *map(str, (n_heads, n_units, n_queries, n_threads))]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        done = Counter[int]()
        results = []
        for line in run.stdout.splitlines():
            thread, head, unit0, unit1, query0, query1 = map(int, line.split())
            done[thread] += (unit1 - unit0) * (query1 - query0)
            results += list(product([head], range(unit0, unit1), range(query0, query1)))
        everything = product(range(n_heads), range(n_units), range(n_queries))
        assert sorted(results) == list(everything), name
        assert max(done.values(), default=0) <= 1.2 * len(results) / n_threads + 1, name


def test_every_row_is_interleaved_once(tmp_path: Path) -> None:
    files = (ROOT / "tests" / "native" / "interleave.cpp", KERNELS / "interleave.cpp")
    headers = f"-I{llama_cpp() / 'ggml' / 'include'}"
    program = compiled(tmp_path, *files, options=[*SANITIZERS, "-pthread", headers])
    subprocess.run([program], check=True)


def shares(program: Path, *arguments: object) -> list[list[int]]:
    """The pieces that each thread takes, in its order."""
    words = [str(program), *map(str, arguments)]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    taken: list[list[int]] = [[] for _ in range(int(words[-1]))]
    for line in run.stdout.splitlines():
        thread, piece = map(int, line.split())
        taken[thread].append(piece)
    return taken


def test_a_thread_takes_its_share_and_then_the_ends_of_others(tmp_path: Path) -> None:
    source = ROOT / "tests" / "native" / "chunks.cpp"
    program = compiled(tmp_path, source, options=[*SANITIZERS, "-pthread"])
    alone = shares(program, "steal", "in-turn", 12, 3)
    assert alone == [[0, 1, 2, 3, 7, 6, 5, 4, 11, 10, 9, 8], [], []]
    assert shares(program, "keep", "in-turn", 12, 3) == [
        [*range(4)],
        [*range(4, 8)],
        [*range(8, 12)],
    ]
    for n, n_threads in ((0, 2), (1, 4), (7, 3), (5000, 8)):
        for way in ("steal", "keep"):
            taken = shares(program, way, "together", n, n_threads)
            assert sorted(chain(*taken)) == list(range(n)), (way, n, n_threads)


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


def all_right(said: str, name: str) -> bool:
    n_kinds = KINDS - 2 * ("avx512vbmi" in INSTRUCTIONS[name])  # IQ1 is not in columns then
    wanted = rf"{n_kinds} kinds of weights, \d+ results compared, 0 wrong\n"
    return re.fullmatch(wanted, said) is not None


def checked(name: str, folder: Path, program: str, sources: Sequence[str]) -> str:
    """Compile a program of tests/native for these instruction sets; return its output."""
    if missing := set(INSTRUCTIONS[name]) - flags():
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    options = [*SANITIZERS, *(f"-m{flag}" for flag in INSTRUCTIONS[name])]
    return output_of(folder, program, sources, options)


def output_of(folder: Path, program: str, sources: Sequence[str], options: Sequence[str]) -> str:
    """Compile and run a program of tests/native; return its output."""
    ggml = llama_cpp() / "ggml"
    include = (ggml / "include", ggml / "src", ggml / "src" / "ggml-cpu")
    options = [*options, *(f"-I{path}" for path in include)]
    libraries = sorted(LIB_DIR.glob("*ggml-base*"))
    made = compiled(
        folder,
        ROOT / "tests" / "native" / f"{program}.cpp",
        *(KERNELS / f"{source}.cpp" for source in sources),
        libraries[0],
        options=[*options, "-pthread", f"-Wl,-rpath,{LIB_DIR}"],
    )
    run = subprocess.run([made], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


# the best of this machine
BEST = [name for name, needed in INSTRUCTIONS.items() if {*needed} <= flags()][-1:]


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_unless(["AVX2", *BEST], INSTRUCTIONS))
def test_products(name: str, tmp_path: Path) -> None:
    assert all_right(checked(name, tmp_path, "kernels", SOURCES), name)


EMULATED = {"AVX-512": "AVX512", "AVX-512 VNNI": "AVX512_VNNI", "AVX-VNNI": "AVX_VNNI"}


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize("name", EMULATED)
def test_products_with_emulated_vectors(name: str, tmp_path: Path) -> None:
    """On processors without them."""
    options = [*emulating(name), "-DSELFSPEC_PARTS_APART"]  # compiles fast
    assert all_right(output_of(tmp_path, "kernels", SOURCES, options), name)


def emulating(name: str) -> list[str]:
    """Return the compiler's options for vectors that this processor need not have."""
    if not set(AVX2) <= flags() or not Path("/usr/include/simde").is_dir():
        pytest.skip("this needs AVX2 and SIMDe (libsimde-dev)")
    header = ROOT / "tests" / "native" / "emulated_vectors.h"
    macro = f"-DEMULATED_{EMULATED[name]}"
    return ["-w", "-include", str(header), macro, *(f"-m{flag}" for flag in AVX2)]


ALL_KINDS = "72 kinds of attention, 0 wrong\n"


@pytest.mark.parametrize("name", ["AVX2", "AVX-512"])
def test_attention(name: str, tmp_path: Path) -> None:
    """A token alone and among others, with up to 16 threads, for several types of K and V."""
    said = checked(name, tmp_path, "attention", ["attention"])
    assert said == ALL_KINDS


@pytest.mark.emulated
def test_attention_with_emulated_vectors(tmp_path: Path) -> None:
    assert output_of(tmp_path, "attention", ["attention"], emulating("AVX-512")) == ALL_KINDS


# whether the copy of the state before is left out, and that of the state after; nodes left out
LEFT_OUT = """plain: 1 1 2
two sequences: 1 1 2
one of two sequences is stored: 0 0 0
33 sequences: 0 1 1
two states kept: 0 0 0
not stored: 0 0 0
the copy is read: 0 1 1
the cache is written in between: 0 1 1
the new state is read: 0 0 0
results are read: 1 1 2
the cache is read before it is stored: 0 0 0
an output: 0 0 0
"""


def test_copies_of_states_are_left_out_where_nothing_else_reads_them(tmp_path: Path) -> None:
    assert checked("AVX2", tmp_path, "in_place", ["in_place", "recurrences"]) == LEFT_OUT
