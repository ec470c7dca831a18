"""Kinds of things with one file each in a package: users call them by the names of the files."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from ..errors import ArgumentError


def names(path: Iterable[str]) -> tuple[str, ...]:
    """What a package with this ``__path__`` offers, as the command line spells it, sorted."""
    modules = (m.name for m in pkgutil.iter_modules(path))
    return tuple(sorted(name.replace("_", "-") for name in modules if not name.startswith("_")))


def load(package: str, kind: str, name: str) -> ModuleType:
    """The file of this name. Raises ArgumentError, which names the kind, when there is none."""
    known = names(importlib.import_module(package).__path__)
    if name not in known:
        raise ArgumentError(f"there is no {kind} {name!r}; there are: {', '.join(known)}")
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")
