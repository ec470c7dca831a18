"""Builds programs of llama.cpp itself from the pinned source: unpatched, or with the patches and
our C++ in the library."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "vendor"))

import source  # noqa: E402  (vendor/source.py)

NEEDED = "CMakeLists.txt LICENSE cmake common ggml include licenses src vendor".split()
# what can be built, and the folders it takes
KINDS = {
    "TESTS": ["tests"],
    "TOOLS": ["tools"],
    "EXAMPLES": ["examples", "pocs"],
    "SERVER": ["tools", "scripts/ui-assets.cmake"],  # with TOOLS
}
NEVER = ("APP", "UI")
# As in native/kernels/kernels.cmake. -march=native would switch it on again behind CMAKE_CXX_FLAGS.
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
COMPILE = "<CMAKE_{0}_COMPILER> <DEFINES> <INCLUDES> <FLAGS> {1} -o <OBJECT> -c <SOURCE>"


def pin() -> source.Pin:
    return source.Project(ROOT).pin


def stock_options(kinds: Sequence[str]) -> list[str]:
    """For CMake, in llama.cpp's own folder."""
    options = [f"-DLLAMA_BUILD_{k}={'ON' if k in kinds else 'OFF'}" for k in (*KINDS, *NEVER)]
    options += ["-DLLAMA_USE_PREBUILT_UI=OFF"]  # else the server's web pages are downloaded
    options += ["-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON"]  # the libraries move, see below
    if platform.machine() == "x86_64" and sys.platform == "linux":
        rules = {lang: COMPILE.format(lang, NO_AMX) for lang in ("C", "CXX")}
        options += [f"-DCMAKE_{lang}_COMPILE_OBJECT={rule}" for lang, rule in rules.items()]
    return options


def patched_options(project: source.Project, tree: Path, kinds: Sequence[str]) -> list[str]:
    """For CMake, in the folder of our C++."""
    return [
        f"-DPYSELFSPEC_LLAMA_CPP_DIR={tree}",
        f"-DPYSELFSPEC_BUILD_ID={source.build_id(project)}",
        f"-DPYSELFSPEC_UPSTREAM={project.pin.requirement}",
        f"-DPYSELFSPEC_PARTS={';'.join(['COMMON', *kinds])}",
    ]


def build(
    folder: Path,
    programs: Sequence[str],
    kinds: Sequence[str],
    *,
    patched: bool = False,
    project_folder: Path | None = None,
) -> None:
    """Put programs and the libraries they need into a folder. kinds: of KINDS, where they are.
    project_folder: with a project that adds the unpatched llama.cpp in LLAMA_CPP_DIR; None: build
    llama.cpp's own."""
    project = source.Project(ROOT)
    keep = [*NEEDED, *(folder for kind in kinds for folder in KINDS[kind])]
    with tempfile.TemporaryDirectory() as temporary:
        tree, made = Path(temporary, "source"), Path(temporary, "build")
        source.unpack(source.fetch_sdist(project), project.pin.folder, keep, tree)
        top, options = tree, stock_options(kinds)
        if patched:
            source.apply_patches(project.patches, tree)
            top, options = ROOT / "pyselfspec" / "native", patched_options(project, tree, kinds)
        elif project_folder is not None:
            top = project_folder
            options.append(f"-DLLAMA_CPP_DIR={tree}")
        options += ["-DCMAKE_BUILD_TYPE=Release"]
        subprocess.run(["cmake", "-S", top, "-B", made, *options], check=True)
        jobs = str(os.cpu_count() or 1)
        subprocess.run(["cmake", "--build", made, "-j", jobs, "--target", *programs], check=True)
        shutil.copytree(made / "bin", folder, symlinks=True, dirs_exist_ok=True)
