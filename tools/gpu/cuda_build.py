"""Checks that the CUDA build compiles, on a machine that needs no GPU.

    python tools/gpu/cuda_build.py FOLDER --arch 90

Needs nvcc 12 or 13, a C++ compiler, CMake, and cuBLAS: the toolkit's, or the nvidia-cublas wheel
in this Python. Compiles everything that an install compiles, for the architectures named, and
looks at what came out; it cannot be run here, so that is all it says. What it takes grows with the
number of architectures (pyselfspec/native/CUDA.md).
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click

sys.path.append(str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vendor"))

import source
from tools.gpu import cuda_toolkit

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("libllama.so", "libggml-cuda.so", "libggml-cpu.so", "libggml.so", "libggml-base.so")


def driver_stub(folder: Path) -> Path:
    """An empty library under the name of the driver's, for linkers on machines without one."""
    stub = folder / "libcuda.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, "-x", "c", os.devnull, "-o", str(stub)], check=True)
    return stub


def configure(folder: Path, toolkit: cuda_toolkit.Toolkit, arch: str) -> None:
    project = source.Project(ROOT)
    prepared = source.prepare(project)
    definitions = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CUDA_ARCHITECTURES": arch,
        "CUDA_cuda_driver_LIBRARY": driver_stub(folder),
        "PYSELFSPEC_LLAMA_CPP_DIR": prepared.path,
        "PYSELFSPEC_BUILD_ID": prepared.build_id,
        "PYSELFSPEC_UPSTREAM": project.pin.requirement,
    }
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    command = ["cmake", *generator, "-S", str(ROOT / "pyselfspec" / "native"), "-B", str(folder)]
    command += [f"-D{name}={value}" for name, value in definitions.items()]
    subprocess.run([*command, *toolkit.cmake_options()], check=True, stdout=sys.stderr)


def built(folder: Path) -> dict[str, int]:
    """Bytes of the libraries; raises ClickException when one is missing."""
    sizes = {path.name: path.stat().st_size for path in folder.rglob("lib*.so")}
    if missing := [name for name in LIBRARIES if name not in sizes]:
        raise click.ClickException(f"the build made no {missing[0]}")
    return {name: sizes[name] for name in LIBRARIES}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--arch", default="90", help="Architectures, like 80 or 86;89 or all-major.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=len(os.sched_getaffinity(0)))
@click.option("--cublas", type=click.Path(exists=True, path_type=Path), help="Folder with cuBLAS.")
def main(folder: Path, arch: str, jobs: int, cublas: Path | None) -> None:
    """Compile the library with CUDA in FOLDER, and say what that took."""
    start = time.monotonic()
    try:
        toolkit = cuda_toolkit.find(None if cublas is None else cublas.resolve())
        folder.mkdir(parents=True, exist_ok=True)
        configure(folder.resolve(), toolkit, arch)
        subprocess.run(["cmake", "--build", str(folder), "-j", str(jobs)], check=True)
    except (cuda_toolkit.ToolkitError, source.SourceError) as error:
        raise click.ClickException(str(error)) from None
    except subprocess.CalledProcessError as error:
        raise click.ClickException(
            f"{error.cmd[0]} stopped with status {error.returncode}"
        ) from None
    sizes = built(folder)
    on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    click.echo(
        f"CUDA {toolkit.version}, architectures {arch}: {time.monotonic() - start:.0f} s with "
        f"{jobs} jobs, {(spent.ru_utime + spent.ru_stime) / 60:.0f} minutes of processor time, "
        f"{on_disk / 1e6:.0f} MB on disk, libggml-cuda.so {sizes['libggml-cuda.so'] / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
