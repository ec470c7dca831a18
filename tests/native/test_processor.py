"""Which CPU backend is chosen, and what is said where none fits, before anything could crash."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import run_alone

from pyselfspec.errors import LibraryError
from pyselfspec.runtime import processor
from pyselfspec.util import build

TABLE = Path(__file__).parents[2] / "pyselfspec/native/processor/instruction-sets.h"
SETS = re.findall(r"^INSTRUCTION_SET(?:_ARM)?\((\w+)", TABLE.read_text(), re.MULTILINE)

OLD, MIDDLE, WIDE = "ggml-cpu-old", "ggml-cpu-middle", "ggml-cpu-wide"
NEEDS = {OLD: ["sse4_2"], MIDDLE: ["sse4_2", "avx2"], WIDE: ["sse4_2", "avx2", "avx512f"]}


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ({"sse4_2"}, OLD),
        ({"sse4_2", "avx2"}, MIDDLE),
        ({"sse4_2", "avx2", "avx512f", "gfni"}, WIDE),
        ({"sse4_2", "avx512f"}, OLD),  # a part of what is needed is not enough
    ],
)
def test_the_last_that_fits(offered: set[str], chosen: str) -> None:
    assert processor.choose(NEEDS, offered) == chosen


def test_a_backend_that_needs_nothing_fits_any_processor() -> None:
    assert processor.choose({"ggml-cpu": []}, set()) == "ggml-cpu"


def test_none_fits() -> None:
    with pytest.raises(LibraryError, match="with sse4_2, which this one lacks; it cannot run here"):
        processor.choose(NEEDS, {"avx2"})


@pytest.mark.parametrize(
    ("n", "said"),
    [(1, "s0, which"), (4, "s0, s1, s2, s3, which"), (6, "s3 and 2 more instruction sets, which")],
)
def test_a_build_for_another_processor(n: int, said: str) -> None:
    needs = {"ggml-cpu": ["avx2", *(f"s{i}" for i in range(n))]}
    with pytest.raises(LibraryError) as error:
        processor.choose(needs, {"avx2"})
    assert said in str(error.value) and "install it again on this machine" in str(error.value)


def test_one_can_be_named() -> None:
    everything = {name for needs in NEEDS.values() for name in needs}
    assert processor.choose(NEEDS, everything, "middle") == MIDDLE
    with pytest.raises(LibraryError, match="PYSELFSPEC_CPU=wide needs a processor with avx512f"):
        processor.choose(NEEDS, everything - {"avx512f"}, "wide")
    with pytest.raises(
        LibraryError, match="is 'huge'; this build of pyselfspec has old, middle, w"
    ):
        processor.choose(NEEDS, everything, "huge")
    with pytest.raises(LibraryError, match="is 'haswell'; this build of pyselfspec has native"):
        processor.choose({"ggml-cpu": []}, everything, "haswell")


@pytest.mark.parametrize(
    ("target", "system", "machine"),
    [
        ("Linux x86_64", "Linux", "x86_64"),
        ("Linux aarch64", "Linux", "aarch64"),
        ("Darwin arm64", "Darwin", "arm64"),
        ("Windows AMD64", "Windows", "AMD64"),
        ("Linux arm64", "Linux", "aarch64"),
    ],
)
def test_a_build_for_this_machine(target: str, system: str, machine: str) -> None:
    processor.require_target(target, system, machine)


@pytest.mark.parametrize(
    ("target", "system", "machine", "said"),
    [
        ("Linux x86_64", "Linux", "aarch64", "Linux on x86_64, and this is Linux on aarch64; ins"),
        ("Linux x86_64", "Darwin", "x86_64", "Linux on x86_64, and this is Darwin on x86_64; ins"),
        ("Darwin arm64", "Linux", "aarch64", "Darwin on arm64, and this is Linux on aarch64; ins"),
    ],
)
def test_a_build_for_another_machine(target: str, system: str, machine: str, said: str) -> None:
    with pytest.raises(LibraryError) as error:
        processor.require_target(target, system, machine)
    assert said in str(error.value) and str(error.value).count("\n") == 0


def test_the_machine_is_looked_at_before_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another kind of processor, even the library's probe could not be loaded."""
    monkeypatch.setattr(processor.platform, "machine", lambda: "riscv64")
    processor.cpu_backend.cache_clear()
    with pytest.raises(LibraryError, match="on riscv64; install the wheel for it"):
        processor.cpu_backend()


def test_the_build_says_what_it_needs() -> None:
    sets = [name for needs in build.CPU_BACKENDS.values() for name in needs.split()]
    assert {*sets} <= {*SETS}
    assert sets or platform.machine() not in ("x86_64", "AMD64")  # SSE3 at least, by any flags


# As Linux calls them, where that is not the name here; and those that a kernel may not know yet.
IN_CPUINFO = {
    "sse3": "pni",
    "lzcnt": "abm",
    "avx512_ifma": "avx512ifma",
    "avx512_vbmi": "avx512vbmi",
}
NEWER = {"avx_ifma", "avx_vnni", "avx_vnni_int8", "avx_vnni_int16", "avx512_fp16"}


def test_the_processor_is_asked_as_the_system_does() -> None:
    """The oracle is Linux' own list."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        pytest.skip("a list of Linux on x86-64")
    flags = {*next(li for li in cpuinfo.read_text().splitlines() if li.startswith("flags")).split()}
    asked = [name for name in SETS if name not in NEWER]
    assert len(asked) > 25 and "sse4_2" in asked
    want = {name for name in asked if IN_CPUINFO.get(name, name) in flags}
    assert processor._offered(asked) == want
    assert {name for name in NEWER if name in flags} <= processor._offered(NEWER)
    assert processor._offered(["teleport", ""]) == frozenset()


ELSEWHERE = (
    "import sys\nfrom pyselfspec.util import build\nbuild.CPU_BACKENDS = {'ggml-cpu': 'teleport'}\n"
)


@pytest.mark.parametrize(
    "use",
    [
        "import pyselfspec; pyselfspec.Model",
        "from pyselfspec import LayerMask",
        "from pyselfspec.runtime.processor import cpu_backend; cpu_backend()",
    ],
)
def test_the_sentence_comes_before_anything_that_could_crash(use: str, run_python: Any) -> None:
    """numpy also has a least processor, and ends the process on others."""
    run = run_python(
        f"{ELSEWHERE}try:\n    {use}\n"
        "except ImportError as error:\n    print(error)\n"
        "print({'numpy', 'llama_cpp'} & {*sys.modules})\n"
        "print([line for line in open('/proc/self/maps') if 'ggml' in line])\n"
    )
    assert run.returncode == 0, run.stderr
    sentence, modules, libraries = run.stdout.splitlines()
    assert "needs a processor with teleport, which this one lacks" in sentence
    assert (modules, libraries) == ("set()", "[]")


def test_errors_can_be_caught_by_name_there(run_python: Any) -> None:
    run = run_python(
        f"{ELSEWHERE}import pyselfspec as ps\n"
        "try:\n    ps.Model\nexcept ps.SelfSpecError as error:\n    print('caught')\n"
    )
    assert run.stdout == "caught\n", run.stderr


@pytest.mark.parametrize("args", [("generate", "-p", "x"), ("--help",), ("--version",)])
def test_the_command_line_says_it_in_one_line(args: tuple[str, ...], run_python: Any) -> None:
    run = run_python(f"{ELSEWHERE}import sys\nfrom pyselfspec.cli import main\nmain({[*args]!r})\n")
    assert (run.returncode, run.stdout) == (1, "")
    [line] = run.stderr.splitlines()
    assert line.startswith("Error: this build of pyselfspec needs a processor with teleport")


def test_version_and_info_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = processor.variant(processor.cpu_backend())
    assert run_alone("--version").stdout.endswith(f", CPU code {name}\n")
    monkeypatch.setenv("PYSELFSPEC_CPU", name)
    assert run_alone("--version").status == 0
    facts = run_alone("models", "info", "demo", "--json").json
    assert facts["cpu_code"] == name
    line = f"CPU code: {name}; logits are identical in passes of up to "
    assert line in run_alone("models", "info", "demo").stdout


# The part of the system's headers that the file uses: any compiler compiles it for ARM Macs.
HEADERS = {
    "string.h": "typedef unsigned long size_t;\n#define NULL 0\n"
    "int strcmp(const char *, const char *);",
    "stdio.h": "int snprintf(char *, size_t, const char *, ...);",
    "errno.h": "extern int error;\n#define errno error\n#define ENOENT 2",
    "sys/sysctl.h": "int sysctlbyname(const char *, void *, size_t *, void *, size_t);",
}
MAC = """
int printf(const char *, ...);
int error;

// Answers as a Mac with an M1: `MACOS` is the version of the system.
int sysctlbyname(const char * name, void * value, size_t * size, void * to, size_t n) {
    (void) to; (void) n;
    const char * known[] = {"FEAT_DotProd", "FEAT_LSE", "FEAT_I8MM", "FEAT_BF16"};
    for (int i = 0; MACOS > 11 && i < 4; i++) {
        if (*size == sizeof(int) && strcmp(name + 16, known[i]) == 0 && name[15] == '.') {
            *(int *) value = i < 2;
            return 0;
        }
    }
    error = ERROR;
    return -1;
}

#undef INSTRUCTION_SET
#undef INSTRUCTION_SET_ARM

int main(void) {
#define INSTRUCTION_SET(...)
#define INSTRUCTION_SET_ARM(name, ...) if (selfspec_processor_has(#name)) printf("%s ", #name);
#include "instruction-sets.h"
    return selfspec_processor_has("avx2") || selfspec_processor_has("teleport");
}
"""
OF_M1 = "crc32 atomics rdm fp16 fp16fml fcma jscvt frint dotprod"


@pytest.mark.parametrize(
    ("macos", "error", "has"), [(12, 2, OF_M1), (11, 2, OF_M1), (12, 1, "atomics dotprod")]
)
def test_macs_that_know_no_names_have_what_all_have(
    macos: int, error: int, has: str, tmp_path: Path
) -> None:
    """macOS 11 has none of the names, and every Mac with an ARM processor what an M1 has. A system
    that refuses to answer has nothing."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler")
    (tmp_path / "sys").mkdir()
    for name, text in HEADERS.items():
        (tmp_path / name).write_text(text)
    program, source = tmp_path / "program", tmp_path / "program.c"
    source.write_text(f'#include "{TABLE.parent}/processor.c"\n{MAC}')
    options = [f"-DMACOS={macos}", f"-DERROR={error}", "-nostdinc", "-D__APPLE__", "-D__aarch64__"]
    options += ["-U__linux__", "-U__x86_64__", f"-I{tmp_path}", f"-I{TABLE.parent}", "-Wall"]
    subprocess.run([compiler, *options, "-Werror", source, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, has.split())
