"""Describes a download before it starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be downloaded, with the facts by which to decide."""

    name: str  # as given
    about: str
    files: tuple[str, ...]  # packages as pip takes them, or files of the repository
    n_bytes: int  # to download
    licence: str
    origin: str
    repository: str = ""  # of the files, if any
    sha256: tuple[str | None, ...] = ()  # of each file, if known
    chosen: str = ""  # how to choose another file
