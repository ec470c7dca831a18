"""Find modules by the name that users give: one file per name in a folder.

Packages register further names in an entry-point group.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from ..errors import ArgumentError


@cache
def registered(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. Installed packages are scanned once per process."""
    return tuple(entry_points(group=group))


def names(path: Iterable[str]) -> tuple[str, ...]:
    """Return the names in a package with this ``__path__``, as the command line spells them,
    sorted."""
    found = {m.name.replace("_", "-") for m in pkgutil.iter_modules(path) if m.name[0] != "_"}
    return tuple(sorted(found))


def all_names(path: Iterable[str], group: str) -> tuple[str, ...]:
    """Return the names in a package with this ``__path__`` and in an entry-point group, sorted."""
    return tuple(sorted({*names(path), *(each.name for each in registered(group))}))


@cache
def load(package: str, kind: str, name: str, group: str | None = None) -> ModuleType:
    """Import the module of this name; files of the package come before entry points.

    Raises ArgumentError, which names the kind, for an unknown name and for a module of an entry
    point that cannot be imported.
    """
    path = importlib.import_module(package).__path__
    if name in names(path):
        return importlib.import_module(f"{package}.{name.replace('-', '_')}")
    for point in registered(group) if group is not None else ():
        if point.name != name:
            continue
        try:
            module: ModuleType = point.load()
        except Exception as error:  # raised by another package's code
            raise ArgumentError(f"the {kind} {name!r} cannot be loaded: {error}") from error
        return module
    found = names(path) if group is None else all_names(path, group)
    raise ArgumentError(f"there is no {kind} {name!r}; there are: {', '.join(found)}")
