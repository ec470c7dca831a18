"""The tests of the native part under sanitizers.

    python tools/sanitize.py         # addresses and undefined behaviour
    python tools/sanitize.py --quick # the tests marked sanitized: what .ci/run does
    python tools/sanitize.py --calls 600  # and random calls, see tools/random_calls.py
    python tools/sanitize.py thread  # races between threads

The first compiles our own files anew, into the build folder of the checkout; the next install takes
that back. ThreadSanitizer has to see all that synchronizes, so it gets llama.cpp compiled for it in
a folder of its own (build/thread), with ggml's threads instead of OpenMP's, which it cannot see
through. What is installed stays as it is: the library goes into a scratch environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
NATIVE = """masks kv context interleaved adapters odd_models sampling widths threads head branches
short_list failed_passes rollback own_head later_blocks assistant block_heads ngram_index
random_calls""".split()
# These limit the memory of a process, of which sanitizers take terabytes without using them.
LIMITED = "cannot_be_had or huge_memory"
# The conformance suite runs no native code.
FAKED = "TestHead"


@dataclass(frozen=True)
class Kind:
    """cmake: what to build with. libraries: to be loaded before Python. mark: of a library that was
    built so."""

    cmake: str
    libraries: tuple[str, ...]
    environment: dict[str, str]
    mark: bytes
    tests: tuple[str, ...]
    build_dir: str | None = None


KINDS = {
    "address": Kind(
        "-DPYSELFSPEC_SANITIZE=address,undefined",
        ("libasan.so", "libubsan.so"),
        # Python itself leaves memory behind; what we do is looked for in tests/native/test_leaks.py
        # an allocation of tens of gigabytes fails as it does elsewhere; it does not end the process
        {
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:"
            "max_allocation_size_mb=8192",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        },
        b"__asan_report_load",
        tuple(NATIVE),
    ),
    "thread": Kind(
        "-DGGML_OPENMP=OFF -DGGML_SANITIZE_THREAD=ON -DLLAMA_SANITIZE_THREAD=ON",
        ("libtsan.so",),
        {"TSAN_OPTIONS": "halt_on_error=1"},
        b"__tsan_read",
        ("threads", "meetings"),
        build_dir="build/thread",
    ),
}


def runtime(library: str) -> str:
    """Return the path of a sanitizer's library, from the compiler."""
    command = [os.environ.get("CC", "cc"), f"-print-file-name={library}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        raise click.ClickException(f"the compiler brings no {library}: install it, or use GCC")
    return path


def environment_with(folder: Path, kind: Kind, root: Path = ROOT) -> Path:
    """Return a Python with the packages of this one, and in front of them pyselfspec, built from a
    checkout for a sanitizer."""
    venv.create(folder, symlinks=True)
    places = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", places))
    around = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    site.joinpath("around.pth").write_text("".join(f"{path}\n" for path in sorted(around)))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
    if kind.build_dir:
        command += ["-C", f"build-dir={root / kind.build_dir}"]
    env = os.environ | {"CMAKE_ARGS": f"{os.environ.get('CMAKE_ARGS', '')} {kind.cmake}"}
    subprocess.run([*map(str, command), str(root)], env=env, check=True)
    for name in ("libllama.so", "libggml-cpu.so"):
        if kind.mark not in site.joinpath("pyselfspec", "lib", name).read_bytes():
            raise click.ClickException(f"{name} was built without the sanitizer")
    return folder / "bin" / "python"


@click.command(help=__doc__)
@click.argument("name", type=click.Choice(list(KINDS)), default="address")
@click.option("--quick", is_flag=True, help="Only the tests marked sanitized.")
@click.option("--calls", type=float, metavar="SECONDS", help="Make random calls too.")
@click.option("--durations", is_flag=True, help="Say what the tests took.")
def main(name: str, quick: bool, calls: float | None, durations: bool) -> None:
    if sys.platform != "linux":
        raise click.ClickException("the sanitizers are loaded before Python, as Linux does it")
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as scratch:
        python = environment_with(Path(scratch, "python"), kind)
        command = [python, "-P", "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider"]
        command += ["-k", f"not ({LIMITED} or {FAKED})"]
        command += ["--capture=sys"]  # a report ends the process: it must not wait in a file
        command += ["-m", "sanitized" if quick else "not archs"]
        command += ["--durations=15"] if durations else []
        command += [f"tests/native/test_{test}.py" for test in kind.tests]
        libraries = " ".join(runtime(library) for library in kind.libraries)
        env = kind.environment | os.environ | {"LD_PRELOAD": libraries}
        status = subprocess.run(list(map(str, command)), cwd=ROOT, env=env).returncode
        if calls is not None:
            command = [python, "-P", "tools/random_calls.py", "--seconds", calls]
            status = subprocess.run(list(map(str, command)), cwd=ROOT, env=env).returncode or status
    sys.exit(status)


if __name__ == "__main__":
    main()
