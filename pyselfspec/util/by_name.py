"""Kinds of things with one file each in a package: users call them by the names of the files.

Packages of others add to a kind through an entry-point group.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from importlib.metadata import entry_points
from types import ModuleType

from ..errors import ArgumentError


def names(path: Iterable[str], group: str | None = None) -> tuple[str, ...]:
    """What a package with this ``__path__`` offers, and others in this entry-point group, as the
    command line spells it, sorted."""
    found = {m.name.replace("_", "-") for m in pkgutil.iter_modules(path) if m.name[0] != "_"}
    if group is not None:
        found |= {point.name for point in entry_points(group=group)}
    return tuple(sorted(found))


def load(package: str, kind: str, name: str, group: str | None = None) -> ModuleType:
    """The module of this name. Raises ArgumentError, which names the kind, when there is none; the
    package's own files come before those of others."""
    own = names(importlib.import_module(package).__path__)
    if name in own:
        return importlib.import_module(f"{package}.{name.replace('-', '_')}")
    points = entry_points(group=group, name=name) if group is not None else ()
    for point in points:
        try:
            module: ModuleType = point.load()
        except Exception as error:  # of somebody else's code
            raise ArgumentError(f"the {kind} {name!r} cannot be loaded: {error}") from error
        return module
    known = names(importlib.import_module(package).__path__, group)
    raise ArgumentError(f"there is no {kind} {name!r}; there are: {', '.join(known)}")
