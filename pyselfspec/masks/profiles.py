"""The best mask known for a model, with what is known about it, in the user's data folder.

One file per model, named by the model's fingerprint, so that a model keeps its profile when it is
renamed and another one never gets it.
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
    """A file that holds no profile."""


class Fingerprinted(Protocol):
    """What a profile needs to know of a model. The fingerprint is read only where it is needed."""

    @property
    def path(self) -> Path: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def n_layer(self) -> int: ...


def _from_format_1(data: records.Data) -> records.Data:
    """Format 1 called the fingerprint a SHA-256, which it is not for large files."""
    data["fingerprint"] = data.pop("model_sha256", None)
    return data


@dataclass(frozen=True, slots=True)
class Profile:
    """agreement, cost, speed: as measured and expected when it was made; None for imported ones."""

    FORMAT: ClassVar[int] = 2
    OLDER: ClassVar[records.Older] = {1: _from_format_1}

    model: str  # file name
    fingerprint: str  # of the model, see gguf/fingerprint.py
    mask: LayerMask
    source: str  # "scan-layers", "search" or "import", with the file of results
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
    """Raises ArgumentError for a file that is no profile."""
    return records.load(path, Profile, what="profile")


def find(model: Fingerprinted) -> Profile | None:
    """The profile of a model, None when it has none."""
    if not any(_paths()):
        return None  # spares the fingerprint
    return _sound(path_of(model.fingerprint))


def every() -> list[Profile]:
    return [found for path in _paths() if (found := _sound(path)) is not None]


def _sound(path: Path) -> Profile | None:
    """What a file holds. Warns of one that is no use; another one can take its place."""
    try:
        return load(path)
    except FileNotFoundError:
        return None
    except (OSError, ArgumentError) as error:
        warnings.warn(f"{error}; it is ignored until then", ProfileWarning, stacklevel=3)
        return None


def remove(model: Fingerprinted) -> bool:
    """Whether there was one."""
    path = path_of(model.fingerprint)
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def mask_for(model: Fingerprinted) -> LayerMask | None:
    """What the model's profile says to skip."""
    profile = find(model)
    return None if profile is None else profile.mask.require(model.n_layer)


def _paths() -> Iterator[Path]:
    return iter(sorted(paths.data("profiles").glob("*.json")))
