"""What is known of a model before it is fetched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be fetched, for whoever decides whether to."""

    name: str  # as asked for
    about: str
    files: tuple[str, ...]  # packages as pip takes them, or files of the repository
    n_bytes: int  # to fetch
    licence: str
    origin: str
    repository: str = ""  # of files, where they have one
    sha256: tuple[str | None, ...] = ()  # of each file, where they have one
    chosen: str = ""  # why this file and not another
