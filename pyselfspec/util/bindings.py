"""Find llama-cpp-python's bindings: an installed package comes first, then the copy that comes with
this package."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType

from ..errors import LibraryError
from . import build, libraries

NAME = "llama_cpp"
DISTRIBUTION = "llama-cpp-python"
MTMD = f"{NAME}.mtmd_cpp"  # bindings of libmtmd
MTMD_VARIABLE = "MTMD_CPP_LIB"  # the folder of the library that they load


class _CopyFinder(MetaPathFinder):
    """Finds the copy under the name of the installed package, which its own modules import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        folder = build.LIB_DIR.parent / "bindings" / NAME
        file = folder / "__init__.py"
        if not file.is_file():
            return None
        return spec_from_file_location(NAME, file, submodule_search_locations=[str(folder)])


class _PicturesLoader(SourceFileLoader):
    """Executes the bindings of libmtmd so that they load the library of this package."""

    def exec_module(self, module: ModuleType) -> None:
        before = os.environ.get(MTMD_VARIABLE)
        os.environ[MTMD_VARIABLE] = str(build.LIB_DIR)
        try:
            super().exec_module(module)
        finally:
            if before is None:
                del os.environ[MTMD_VARIABLE]
            else:
                os.environ[MTMD_VARIABLE] = before


class _PicturesFinder(MetaPathFinder):
    """Finds the bindings of libmtmd where they are, for the loader above."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MTMD or libraries.find(build.LIB_DIR, "mtmd") is None:
            return None
        found = PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            return None
        loader = _PicturesLoader(fullname, found.origin)
        return spec_from_file_location(fullname, found.origin, loader=loader)


def offer() -> None:
    """Let ``import llama_cpp`` find the copy where no such package is installed, and the bindings
    of libmtmd the library of this package."""
    sys.meta_path.append(_CopyFinder())  # asked last
    sys.meta_path.insert(0, _PicturesFinder())


def require_version() -> None:
    """Raise LibraryError where another version of llama-cpp-python is installed: its structs may
    not be those of the library."""
    _, _, needed = build.UPSTREAM.partition("==")
    try:
        found = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return
    if found != needed:
        raise LibraryError(
            f"{DISTRIBUTION} {found} is installed, and this pyselfspec works with {needed} only; "
            f"uninstall it (pyselfspec has its own copy), or install {build.UPSTREAM}"
        )
