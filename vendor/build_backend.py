"""The PEP 517 and 660 build backend: scikit-build-core, once the llama.cpp source is prepared.

Only the two hooks that compile prepare the source; the others are those of scikit-build-core.
"""

from __future__ import annotations

# isort: off
import source  # first: it tells users of an older Python that they need a newer one

# isort: on
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from scikit_build_core import build as _build
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ConfigSettings = dict[str, list[str] | str]

COMPILERS = ("c++", "g++", "clang++")


def check_platform(platform: str = sys.platform) -> None:
    """Raise SourceError on Windows: its compiler would leave our kernels empty without a warning,
    and functions of ggml are not found through the library of llama.cpp there."""
    if platform in ("win32", "cygwin"):
        raise source.SourceError(
            "pyselfspec runs on Linux and macOS, not on Windows itself: install it in WSL, the "
            "Windows Subsystem for Linux."
        )


def check_compiler(environ: Mapping[str, str] = os.environ) -> None:
    """Raise SourceError when CMake would find no C++ compiler."""
    cmake_args = environ.get("CMAKE_ARGS", "")
    chosen_for_cmake = "CMAKE_CXX_COMPILER" in cmake_args or "TOOLCHAIN" in cmake_args
    if chosen_for_cmake or "CMAKE_TOOLCHAIN_FILE" in environ:
        return
    named = shlex.split(environ.get("CXX", ""))[:1]
    candidates = named or COMPILERS
    if not any(shutil.which(name, path=environ.get("PATH")) for name in candidates):
        raise source.SourceError(
            f"No C++ compiler found (looked for {', '.join(candidates)}): install one that "
            "supports C++17, such as g++ or clang++, or name it in the environment variable CXX."
        )


def _with_source(config_settings: ConfigSettings | None) -> ConfigSettings:
    """Prepare the source, and return the settings plus its path, build id and requirement."""
    project = source.Project(Path(__file__).resolve().parent.parent)
    try:
        check_platform()
        check_compiler()
        prepared = source.prepare(project)
    except source.SourceError as error:
        # pip prints the text of a SystemExit without a traceback.
        raise SystemExit(f"pyselfspec: {error}") from None
    return {
        **(config_settings or {}),
        "cmake.define.PYSELFSPEC_LLAMA_CPP_DIR": prepared.path.as_posix(),
        "cmake.define.PYSELFSPEC_BUILD_ID": prepared.build_id,
        "cmake.define.PYSELFSPEC_UPSTREAM": project.pin.requirement,
    }


def build_wheel(
    wheel_directory: str,
    config_settings: ConfigSettings | None = None,
    metadata_directory: str | None = None,
) -> str:
    return _build.build_wheel(wheel_directory, _with_source(config_settings), metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: ConfigSettings | None = None,
    metadata_directory: str | None = None,
) -> str:
    return _build.build_editable(wheel_directory, _with_source(config_settings), metadata_directory)
