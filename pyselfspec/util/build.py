"""What the build wrote about itself, and where the library lies. Loads nothing native."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

from ..errors import LibraryError


def _import_build() -> Any:
    """The module that the build wrote; the library lies beside it.

    In the source folder there is neither. Python started there finds this package before the
    installed one, so the build is then taken from the installation.
    """
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
            "install it with CMAKE_ARGS='-DLLAMA_BUILD=OFF' pip install ."
        ) from None
    return module


_build = _import_build()
try:
    BUILD_ID: str = _build.BUILD_ID
    BACKENDS: tuple[str, ...] = _build.BACKENDS
    # Instruction sets that each CPU backend is compiled for, the least demanding backend first.
    CPU_BACKENDS: dict[str, str] = _build.CPU_BACKENDS
    DYNAMIC: bool = _build.DYNAMIC  # backends are files to load, none is linked
except AttributeError:
    raise LibraryError(
        "the installed library belongs to another version of pyselfspec; install it again"
    ) from None
LIB_DIR = Path(_build.__file__).resolve().parent / "lib"
