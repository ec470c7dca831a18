"""Shared libraries in a folder, by the names that each system gives them. Loads nothing."""

from __future__ import annotations

import platform as machine_facts
import sys
from pathlib import Path

SUFFIXES = {"linux": (".so",), "darwin": (".dylib", ".so"), "win32": (".dll",)}
SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
PREFIXES = ("lib", "")


def find(folder: Path, name: str, system: str = sys.platform) -> Path | None:
    """Return the library of this name, such as "ggml-base", or None. system: as sys.platform."""
    for suffix in SUFFIXES.get(system, SUFFIXES["linux"]):
        for prefix in PREFIXES:
            file = folder / f"{prefix}{name}{suffix}"
            if file.is_file():
                return file
    return None


def why_missing(folder: Path, name: str, system: str = sys.platform) -> str:
    """Return the error message for a library that `find` does not find: what is there instead, and
    what to do."""
    here = f"{SYSTEMS.get(system, system)} on {machine_facts.machine() or 'this processor'}"
    for other, title in SYSTEMS.items():
        if other != system and find(folder, name, other) is not None:
            return (
                f"the library in {folder} is for {title}, and this is {here}; install pyselfspec "
                "again with the pip of this Python"
            )
    if system not in SYSTEMS:
        return (
            f"pyselfspec has no library for {here}, only for {', '.join(SYSTEMS.values())}; "
            "run it on one of these"
        )
    return f"the folder {folder} has no library for {here}; install pyselfspec again"
