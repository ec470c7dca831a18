"""The PEP 517 and 660 build backend: scikit-build-core, once the llama.cpp source is prepared.

Only the two hooks that compile prepare the source; the others are those of scikit-build-core.
"""

from __future__ import annotations

# isort: off
import source  # first: it tells users of an older Python that they need a newer one

# isort: on
import os
import platform as machine_facts
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping
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


def check_platform(platform: str = sys.platform, machine: str = machine_facts.machine()) -> None:
    """Raise SourceError where pyselfspec cannot be built: on Cygwin, and on Windows for processors
    other than x86-64."""
    if platform == "cygwin" or (platform == "win32" and machine.upper() not in ("AMD64", "X86_64")):
        raise source.SourceError(
            "pyselfspec is built for Linux, for macOS, and for Windows on x86-64, and this is "
            f"{platform} on {machine}: install it in WSL, the Windows Subsystem for Linux."
        )


def is_compiler_chosen(environ: Mapping[str, str], settings: Collection[str] = ()) -> bool:
    """Tell whether the user has chosen a compiler for CMake. settings: names of the settings given
    to pip."""
    cmake_args = " ".join([environ.get("CMAKE_ARGS", ""), *settings])
    chosen_for_cmake = "CMAKE_CXX_COMPILER" in cmake_args or "TOOLCHAIN" in cmake_args
    return chosen_for_cmake or "CMAKE_TOOLCHAIN_FILE" in environ


def platform_settings(
    root: Path,
    settings: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
    platform: str = sys.platform,
) -> dict[str, list[str] | str]:
    """Return the settings that a build needs in addition on Windows, for the compiler that comes as
    a Python package. Microsoft's does not know our kernels' operations, and GCC misplaces AVX
    registers there."""
    if platform != "win32" or is_compiler_chosen(environ, settings):
        return {}
    toolchain = root / "vendor" / "toolchains" / "windows.cmake"
    return {
        "cmake.define.CMAKE_TOOLCHAIN_FILE": toolchain.as_posix(),
        "cmake.args": ["-GNinja"],  # Visual Studio's projects take its own compiler only
    }


def check_compiler(environ: Mapping[str, str] = os.environ, settings: Collection[str] = ()) -> None:
    """Raise SourceError when CMake would find no C++ compiler. settings: as for
    `is_compiler_chosen`."""
    if is_compiler_chosen(environ, settings):
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
        given = {
            **platform_settings(project.root, config_settings or {}),
            **(config_settings or {}),
        }
        check_compiler(settings=given)
        prepared = source.prepare(project)
    except source.SourceError as error:
        # pip prints the text of a SystemExit without a traceback.
        raise SystemExit(f"pyselfspec: {error}") from None
    return {
        **given,
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
