"""The best mask known for a model, with what is known about it, in the user's data folder.

One file per model, named by the model's fingerprint, so that a model keeps its profile when it is
renamed and another one never gets it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, Self

from ..errors import ArgumentError, SelfSpecError
from ..util import paths
from ..util.files import replacing
from .layer_mask import LayerMask

FORMAT = 1


class Fingerprinted(Protocol):
    """What a profile needs to know of a model. The fingerprint is read only where it is needed."""

    @property
    def path(self) -> Path: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def n_layer(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Profile:
    """agreement, cost, speed: as measured and expected when it was made; None for imported ones."""

    model: str  # file name
    model_sha256: str
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
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"mask": self.mask.to_dict()}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Raises KeyError, TypeError or a SelfSpecError for anything that is no profile."""
        if data["format"] != FORMAT:
            raise ArgumentError(f"its format is {data['format']}, known is {FORMAT}")
        values = {field.name: data[field.name] for field in fields(cls)}
        return cls(**values | {"mask": LayerMask.from_dict(data["mask"])})


def path_of(model_sha256: str) -> Path:
    return paths.data("profiles") / f"{model_sha256[:32]}.json"


def save(profile: Profile) -> Path:
    path = path_of(profile.model_sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(profile.to_dict(), indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> Profile:
    """Raises ArgumentError for a file that is no profile."""
    try:
        return Profile.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, SelfSpecError) as error:
        raise ArgumentError(f"{path} is no profile ({error}); remove it") from None


def find(model: Fingerprinted) -> Profile | None:
    """The profile of a model, None when it has none."""
    if not any(_paths()):
        return None  # spares the fingerprint
    path = path_of(model.fingerprint)
    return load(path) if path.exists() else None


def every() -> list[Profile]:
    return [load(path) for path in _paths()]


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
