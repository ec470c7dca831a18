"""Profiles: the best mask known for a model, with its measurements, in the user's data folder.

There is one file per model, named by the model's fingerprint, so that a model keeps its profile
when it is renamed, and no other model gets it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from ..errors import ArgumentError
from ..util import paths, records
from .layer_mask import LayerMask


class ProfileWarning(UserWarning):
    """Warns of a file that is not a profile."""


class Fingerprinted(Protocol):
    """The properties of a model that profiles use; the fingerprint is read only when needed."""

    @property
    def path(self) -> Path: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def n_layer(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Profile:
    """The best mask known for a model, and the agreement, cost and speed that were measured or
    expected when it was found; None for imported masks."""

    FORMAT: ClassVar[int] = 1

    model: str  # file name
    fingerprint: str  # of the model, see gguf/fingerprint.py
    mask: LayerMask
    source: str  # "scan-layers", "layers search" or "import", with the file of results
    version: str
    build: str
    date: str
    command: str
    agreement: float | None = None
    n_tokens: int | None = None
    cost: float | None = None
    speed: float | None = None
    draft_max: int | None = None


def path_of(fingerprint: str) -> Path:
    return paths.data("profiles") / f"{fingerprint[:32]}.json"


def save(profile: Profile) -> Path:
    path = path_of(profile.fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    records.save(path, profile)
    return path


def load(path: Path) -> Profile:
    """Return the profile in a file. Raises ArgumentError for a file that is not a profile."""
    return records.load(path, Profile, what="profile")


def find(model: Fingerprinted) -> Profile | None:
    """Return the profile of a model, None when it has none."""
    if not any(_paths()):
        return None  # spares the fingerprint
    return _sound(path_of(model.fingerprint))


def every() -> list[Profile]:
    return [found for path in _paths() if (found := _sound(path)) is not None]


def _sound(path: Path) -> Profile | None:
    """Return the profile in a file, None without one; warns of a broken file, which may be
    replaced."""
    try:
        return load(path)
    except FileNotFoundError:
        return None
    except (OSError, ArgumentError) as error:
        warnings.warn(f"{error}; it is ignored until then", ProfileWarning, stacklevel=3)
        return None


def remove(model: Fingerprinted) -> bool:
    """Remove the profile of a model, and return whether there was one."""
    path = path_of(model.fingerprint)
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def mask_for(model: Fingerprinted) -> LayerMask | None:
    """Return the mask of the model's profile, None without one."""
    profile = find(model)
    return None if profile is None else profile.mask.require(model.n_layer)


def _paths() -> Iterator[Path]:
    return iter(sorted(paths.data("profiles").glob("*.json")))
