"""Find llama-cpp-python's bindings: an installed package comes first, then the copy that comes with
this package."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

from ..errors import LibraryError
from . import build

NAME = "llama_cpp"
DISTRIBUTION = "llama-cpp-python"


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


def offer() -> None:
    """Let ``import llama_cpp`` find the copy where no such package is installed."""
    sys.meta_path.append(_CopyFinder())  # asked last


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
