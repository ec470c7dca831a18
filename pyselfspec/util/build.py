"""Facts that the build wrote about itself, and the folder of the library. Loads nothing native.

They are read on first use: modules that import this one also import where nothing is built.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import LibraryError

BUILD_ID: str
BACKENDS: tuple[str, ...]
# Instruction sets that each CPU backend is compiled for, the least demanding backend first.
CPU_BACKENDS: dict[str, str]
DYNAMIC: bool  # backends are files to load, none is linked
LIB_DIR: Path
TARGET: str  # system and processor that it was built for, such as "Linux x86_64"
UPSTREAM: str  # requirement of the bindings, such as "llama-cpp-python==1.0"
LLAMA_CPP_VERSION: str
COMPILER: str  # such as "GNU 12.2.0"
BUILD_TYPE: str  # of CMake
CMAKE_ARGS: str  # "" for the defaults

_WRITTEN = (
    *("BUILD_ID", "BACKENDS", "CPU_BACKENDS", "DYNAMIC", "TARGET", "UPSTREAM"),
    *("LLAMA_CPP_VERSION", "COMPILER", "BUILD_TYPE", "CMAKE_ARGS"),
)


def __getattr__(name: str) -> Any:
    """Return a fact of the build. Raises LibraryError when none or another version is installed."""
    if name == "LIB_DIR":
        return Path(_build().__file__).resolve().parent / "lib"
    if name in _WRITTEN:
        return getattr(_build(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _build() -> Any:
    """Import the module that the build wrote; the library lies beside it.

    The source folder has neither. Python started there finds this package before the installed
    one, so the build is then taken from the installation.
    """
    module = _import_build()
    if not all(hasattr(module, name) for name in _WRITTEN):
        raise LibraryError(
            "the installed library belongs to another version of pyselfspec; install it again"
        )
    return module


def _import_build() -> Any:
    try:
        return importlib.import_module("pyselfspec._build")
    except ModuleNotFoundError:
        pass
    try:
        file = importlib.metadata.distribution("pyselfspec").locate_file("pyselfspec/_build.py")
        spec = importlib.util.spec_from_file_location("pyselfspec._build", str(file))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (importlib.metadata.PackageNotFoundError, OSError):
        raise LibraryError(
            "this is the source folder of pyselfspec and nothing is installed; "
            "install it with pip install ."
        ) from None
    return module
