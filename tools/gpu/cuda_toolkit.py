"""Finds what a CUDA build needs: the compiler, and cuBLAS from the toolkit or from a wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

USUAL_PLACE = "/usr/local/cuda/bin"
HEADER = Path("include", "cublas_v2.h")


class ToolkitError(Exception):
    """One sentence for the user: what is missing and where to get it."""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """cublas: a folder with include/ and lib/, None where the toolkit has cuBLAS itself."""

    nvcc: Path
    version: str
    cublas: Path | None

    def cmake_options(self) -> list[str]:
        options = ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={self.nvcc}"]
        return options + ([f"-DPYSELFSPEC_CUBLAS_DIR={self.cublas}"] if self.cublas else [])


def program(name: str) -> str | None:
    """The path of a program of the toolkit, None where there is none."""
    return shutil.which(name) or shutil.which(name, path=USUAL_PLACE)


def find(cublas: Path | None = None, places: Iterable[str] = sys.path) -> Toolkit:
    """The toolkit whose nvcc is in PATH or at its usual place.

    cublas: where cuBLAS is if the toolkit has none; default: the nvidia-cublas wheel in one of
    ``places``. Raises ToolkitError.
    """
    found = program("nvcc")
    if found is None:
        raise ToolkitError(
            "there is no nvcc: install the CUDA toolkit, 12 or 13, and put its bin/ into PATH"
        )
    nvcc = Path(found).resolve()
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", text)
    if release is None:
        raise ToolkitError(f"{nvcc} --version does not name its release")
    if cublas is None and not (nvcc.parents[1] / HEADER).exists():
        cublas = _wheel(release[1], places)
    if cublas is not None and not (cublas / HEADER).exists():
        raise ToolkitError(f"{cublas} has no {HEADER}: name a folder such as nvidia/cu13")
    return Toolkit(nvcc, f"{release[1]}.{release[2]}", cublas)


def _wheel(major: str, places: Iterable[str]) -> Path:
    """The folder of the nvidia-cublas wheel for this release."""
    inside = Path("nvidia", "cublas" if major == "12" else f"cu{major}")
    for place in places:
        if (Path(place) / inside / HEADER).exists():
            return Path(place).resolve() / inside
    wheel = "nvidia-cublas-cu12" if major == "12" else "nvidia-cublas"
    raise ToolkitError(
        f"the CUDA {major} toolkit has no cuBLAS headers and no {wheel} wheel is installed: "
        f"pip install {wheel}, or name a folder that has {HEADER} with --cublas"
    )
