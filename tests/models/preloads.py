"""Shared libraries that put functions before those of the library under test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def shared_library(source: Path, folder: Path) -> Path:
    """Compile a file in C or C++ to a shared library in a folder."""
    variable, usual = ("CC", "cc") if source.suffix == ".c" else ("CXX", "c++")
    compiler, library = shutil.which(os.environ.get(variable, usual)), folder / f"{source.stem}.so"
    assert compiler
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
    return library


def preload(library: Path) -> str:
    """Return a value of LD_PRELOAD: what it has already, which may be a sanitizer's, and this."""
    return f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()
